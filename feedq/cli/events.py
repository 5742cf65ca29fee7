"""`feedq events`: the history of everything, and what is added to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.invocation import Invocation, OneOf, pass_invocation
from feedq.cli.options import duration
from feedq.cli.output import answer_list, write_json_line

if TYPE_CHECKING:
    from feedq.control.store.history import ListedEvent
    from feedq.telemetry.event_names import EventKind

LOOK_S = 1.0
"""How often ``--follow`` looks for more."""
LISTED_MAX = 10_000
SINCE = "5m"
"""How far back everything is shown; one feed's history is shown whole."""


@click.command(short_help="What happened to feeds, workers and schedules; --follow goes on.")
@click.option(
    "--since",
    metavar="DURATION",
    help=f"How far back, such as 90s or 2h. [default: {SINCE}; with --feed, as far as it is kept]",
)
@click.option("--feed", metavar="NAME", help="Only events of this feed.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=OneOf("feedq.telemetry.event_names:EventKind"),
    help="Only events of this kind; may be repeated.",
)
@click.option("--tenant", help="Only events of this tenant's feeds.")
@click.option(
    "--limit",
    type=click.IntRange(1, LISTED_MAX),
    default=1_000,
    show_default=True,
    help="The newest so many.",
)
@click.option("--follow", "follow_on", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@pass_invocation
def events(
    invocation: Invocation,
    *,
    since: str | None,
    feed: str | None,
    kinds: Sequence[EventKind],
    tenant: str | None,
    limit: int,
    follow_on: bool,
) -> None:
    """The history of everything, oldest first: who got which feed, what failed, what people changed.

    With --json and --follow, one document a line.

    \b
    Example:
      feedq events --since 5m
      feedq events --kind feed_paused --kind feed_edited --since 1d
      feedq events --feed acme/orders --follow
    """
    from feedq.cli.tables import EVENT_COLUMNS, EVENT_EPOCH

    if feed is not None and tenant is not None:
        raise click.UsageError("--feed and --tenant exclude each other")
    began = None
    if since is not None or feed is None:
        began = invocation.clock.now() - timedelta(seconds=duration(since or SINCE, option="--since"))
    which: dict[str, Any] = {"feed": feed, "kinds": tuple(kinds), "tenant": tenant, "since": began}
    found = list(_newest(invocation, which, limit))[::-1]
    if follow_on:
        _follow(invocation, which, found)
        return
    empty = "no events" if began is None else f"nothing happened within the last {since or SINCE}"
    answer_list(invocation, found, EVENT_COLUMNS, empty=empty, wide=EVENT_EPOCH)


def _newest(
    invocation: Invocation, which: dict[str, Any], limit: int, *, after: int = 0
) -> Iterator[ListedEvent]:
    """The newest of them that came after this one, newest first."""
    from feedq.verbs.fleet import list_events

    return takewhile(lambda listed: listed.id > after, invocation.pages(limit, list_events, **which))


def _follow(invocation: Invocation, which: dict[str, Any], found: list[ListedEvent]) -> None:
    """Shows what was found, one on a line, and then what there is more of, until Ctrl-C."""
    from feedq.cli.tables import EVENT_COLUMNS

    last = 0
    try:
        while True:
            for listed in found:
                if invocation.json:
                    write_json_line(listed)
                else:
                    click.echo("  ".join(column.show(listed) for column in EVENT_COLUMNS))
            sys.stdout.flush()
            last = max([last, *(listed.id for listed in found)])
            time.sleep(LOOK_S)
            found = list(_newest(invocation, which, LISTED_MAX, after=last))[::-1]
    except KeyboardInterrupt:
        return
