"""`feedq feed`: feeds as they are, and the verbs for them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.choosing import none_match, selection_of, selection_options
from feedq.cli.cursor import cursor
from feedq.cli.dead_letters import dead_letters
from feedq.cli.declare import edit_feed, set_feeds
from feedq.cli.feed_backfill import backfill
from feedq.cli.feed_test import feed_test
from feedq.cli.feed_verbs import move, pause, remove, restart, resume
from feedq.cli.invocation import (
    Invocation,
    OneOf,
    changes,
    pass_invocation,
    shows,
    yes_option,
)
from feedq.cli.output import answer, answer_list, write_json_line, write_lines, write_table

if TYPE_CHECKING:
    from feedq.core.landed import Span
    from feedq.core.selection import SelectionOrder

TIME_WIDTH = len("2026-12-01T08:00:00.123")
TAP_S, TAPPED_MAX = 600, 1_000_000
"""Seconds and records; the API takes no more."""


@click.group(
    short_help="List, show, test, set, edit, pause, resume, restart, move, adopt, remove; cursors, dead letters."
)
def feed() -> None:
    """Feeds, by name or by what they have in common.

    \b
    Example:
      feedq feed list --tenant acme
      feedq feed show acme/orders
    """


for _command in (
    set_feeds,
    edit_feed,
    feed_test,
    dead_letters,
    cursor,
    backfill,
    pause,
    resume,
    restart,
    move,
    remove,
):
    feed.add_command(_command)


@feed.command("list")
@selection_options
@click.option(
    "--sort",
    type=OneOf("feedq.core.selection:SelectionOrder"),
    default="name",
    show_default=True,
    help="What the first of them have most of; age is that of the last record.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many.")
@shows
def list_(invocation: Invocation, *, sort: SelectionOrder, limit: int | None, **chosen: Any) -> None:
    """All feeds by name, with their status and progress.

    \b
    Example:
      feedq feed list --status failed --status stalled
      feedq feed list --tenant acme --sort bytes --limit 10
    """
    from feedq.cli.tables import feed_columns, wide_feed_columns
    from feedq.verbs.feeds import list_feeds

    selection = replace(selection_of(**chosen), removing=True)
    views = list(invocation.pages(limit, list_feeds, select=selection, order=sort))
    empty = "" if views else none_match(invocation)
    now = invocation.clock.now()
    answer_list(invocation, views, feed_columns(now), empty=empty, wide=wide_feed_columns(now))


@feed.command()
@click.argument("name")
@shows
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one feed: status, why it does not stream, progress, last error, declaration.

    \b
    Example:
      feedq feed show acme/orders
    """
    from feedq.core.model import BACKFILL_SUFFIX, known_as
    from feedq.verbs.feeds import show_feed
    from feedq.verbs.report.details import declaration_lines, detail_lines, lease_lines

    now = invocation.clock.now()
    found = invocation.do(show_feed, name=name)
    view, goes_to = found.view, {}
    if found.goes_to is not None and found.view.lease.promised_to is not None:
        goes_to = {found.view.lease.promised_to: found.goes_to}
    of = known_as(name) if name.endswith(BACKFILL_SUFFIX) else None
    lines = [
        *detail_lines(
            [("name", name), ("backfill of", of), ("status", view.status), ("why", found.explanation)]
        ),
        *lease_lines(view, now=now, workers=goes_to),
        *declaration_lines(view, now=now),
    ]
    answer(invocation, found, lambda: write_lines(lines))


@feed.command()
@click.argument("name")
@click.option(
    "--span",
    type=OneOf("feedq.core.landed:Span"),
    default="hour",
    show_default=True,
    help="The last hour by minutes, or the last day by quarters of an hour.",
)
@pass_invocation
def history(invocation: Invocation, *, name: str, span: Span) -> None:
    """What one feed landed in the last hour or day, as a picture and in numbers.

    \b
    Example:
      feedq feed history acme/orders --span day
    """
    from feedq.cli.tables import LANDED_COLUMNS
    from feedq.verbs.fleet import show_landed
    from feedq.verbs.wording import sparkline

    found = invocation.do(show_landed, name=name, span=span)
    buckets = found.buckets
    known = [one for one in buckets if one.rows is not None]

    def show() -> None:
        click.echo(f"rows/s  {sparkline([one.rows_per_s for one in buckets])}")
        write_table(known, LANDED_COLUMNS)

    empty = "nothing is known yet: the elected beat counts once a minute"
    answer(invocation, found, show if known else empty)


@feed.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, TAPPED_MAX),
    default=TAPPED_MAX,
    show_default=True,
    help="End after so many records.",
)
@changes
def tap(invocation: Invocation, *, name: str, limit: int) -> None:
    """Records of a running feed as they land, without another connection to its source, for ten minutes or until
    Ctrl-C.

    At most twenty a second are shown, each of at most 2,048 bytes, with secrets masked; it says how many were left
    out. The feed does not wait for whoever looks, and history says who did. With --json, one document a line.

    \b
    Example:
      feedq feed tap acme/orders --limit 10
    """
    from feedq.verbs.tap import tap_feed

    say = write_json_line if invocation.json else _say
    with suppress(KeyboardInterrupt):
        for row in invocation.do(tap_feed, name=name, seconds=TAP_S, limit=limit):
            if row is not None:
                say(row)


def _say(row: Mapping[str, Any]) -> None:
    from feedq.verbs.wording import printable

    match row["event"]:
        case "record":
            cut = f" … (cut: {row['bytes']:,} bytes)" if row["cut"] else ""
            click.echo(f"{row['at'][:TIME_WIDTH]}  {printable(row['record'])}{cut}")
        case "left_out":
            refused = f"; {row['refused']:,} of all were refused" if row["refused"] else ""
            click.echo(f"… {row['records']:,} more landed{refused}", err=True)
        case "end":
            click.echo(f"(ended: {printable(row['why'])})", err=True)


@feed.command()
@click.argument("name")
@click.option(
    "--number", type=click.IntRange(min=1), help="Which checkpoint, if there are several of that name."
)
@click.option("--force", is_flag=True, help="Also if the feed has landed records of its own already.")
@yes_option
@changes
def adopt(invocation: Invocation, *, name: str, number: int | None, force: bool, yes: bool) -> None:
    """Go on from the checkpoint that another feed of this name has left in its sink.

    For a feed that was removed and declared again, and for feeds declared anew after the control database was
    lost: nothing is taken over by itself. Whoever had the checkpoint has it no more, and cannot write to it. The
    feed starts anew.

    \b
    Example:
      feedq feed adopt acme/orders
    """
    from feedq.verbs.cursors import adopt_checkpoint

    if not yes:
        tried = invocation.do(adopt_checkpoint, name=name, number=number, force=force, dry_run=True)
        invocation.confirm(f"Take the checkpoint of {tried.owner}?", yes=yes)
    adopted = invocation.do(adopt_checkpoint, name=name, number=number, force=force)
    answer(invocation, adopted, f"{name} adopted")


@feed.command()
@click.argument("name")
@click.option("--apply", "must_apply", is_flag=True, help="Add the columns; needs `drift: add`.")
@yes_option
@changes
def drift(invocation: Invocation, *, name: str, must_apply: bool, yes: bool) -> None:
    """Fields of the records that no column takes, as workers have found them, and the statements that add columns
    for them.

    Workers look for them when `sink.drift` of the feed is not `ignore`. A column that is there fills within ten
    seconds.

    \b
    Example:
      feedq feed drift acme/orders
      feedq feed drift acme/orders --apply
    """
    from feedq.verbs.drift import add_columns, show_drift
    from feedq.verbs.wording import printable

    found = invocation.do(show_drift, name=name)
    if must_apply and found.statements:
        invocation.confirm(f"{printable('; '.join(found.statements))}. Do it?", yes=yes)
        found = invocation.do(add_columns, name=name)
    lines = [*(f"{field}  {type_}" for field, type_ in sorted(found.fields.items())), *found.statements]
    empty = f"no worker has told of a field of {name} that no column takes"
    answer(invocation, found, "\n".join(lines) or empty)
