"""`feedq events`: the history of everything, and what is added to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import click

from feedq.cli.invocation import Invocation, output_option, pass_invocation
from feedq.cli.options import duration
from feedq.cli.output import TableColumn, answer, follow, write_table
from feedq.event_names import EventKind
from feedq.report.details import event_detail
from feedq.report.rows import listed_event_row
from feedq.store.event_listing import PAGE_MAX, EventFilter, ListedEvent
from feedq.wording import stamp

LOOK_S = 1.0
"""How often ``--follow`` looks for more."""
LISTED_MAX = 10_000

COLUMNS: list[TableColumn[ListedEvent]] = [
    TableColumn("AT", lambda listed: stamp(listed.event.at)),
    TableColumn("KIND", lambda listed: listed.event.kind),
    TableColumn("FEED", lambda listed: listed.feed),
    TableColumn("WORKER", lambda listed: listed.worker),
    TableColumn("DETAIL", lambda listed: event_detail(listed.event)),
]


@click.command(short_help="What happened to feeds, workers and schedules; --follow goes on.")
@click.option(
    "--since", default="5m", show_default=True, metavar="DURATION", help="How far back, such as 90s or 2h."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in EventKind]),
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
@output_option
@pass_invocation
def events(
    invocation: Invocation,
    *,
    since: str,
    kinds: Sequence[str],
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
      feedq events --tenant acme --follow
    """
    began = invocation.database_now() - timedelta(seconds=duration(since, option="--since"))
    which = EventFilter(tuple(map(EventKind, kinds)), tenant=tenant, since=began)
    found = list(_newest(invocation, which, limit))[::-1]
    if follow_on:
        _follow(invocation, which, found)
        return
    text = f"nothing happened within the last {since}"
    answer(invocation, map(listed_event_row, found), (lambda: write_table(found, COLUMNS)) if found else text)


def _newest(
    invocation: Invocation, which: EventFilter, limit: int, *, after: int = 0
) -> Iterator[ListedEvent]:
    """The newest of them that came after this one, newest first."""
    place = None
    while limit > 0:
        page = invocation.store.history.before(which, place=place, limit=min(limit, PAGE_MAX))
        new = [listed for listed in page if listed.id > after]
        yield from new
        if len(new) < min(limit, PAGE_MAX):
            return
        place, limit = page[-1].id, limit - len(page)


def _follow(invocation: Invocation, which: EventFilter, found: list[ListedEvent]) -> None:
    last = 0

    def more() -> list[ListedEvent]:
        nonlocal last, found
        last = max([last, *(listed.id for listed in found)])
        found = list(_newest(invocation, which, LISTED_MAX, after=last))[::-1]
        return found

    def text(listed: ListedEvent) -> str:
        return "  ".join(column.show(listed) for column in COLUMNS)

    follow(invocation, found, more, document=listed_event_row, text=text, every_s=LOOK_S)
