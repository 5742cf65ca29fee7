"""`feedq feed backfill`: a bounded second stream beside that of a feed, into the same table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from feedq.cli.invocation import Invocation, changes, pass_invocation, reason_option
from feedq.cli.output import ProgressBar, TableColumn, answer, answer_list, number, state, write_lines
from feedq.errors import FeedqError

if TYPE_CHECKING:
    from feedq.verbs.backfills import BackfillDocument

CURSOR_WIDTH: Final = 40
WAIT_S: Final = 86_400.0


@click.group(short_help="Import again from one cursor to another, beside the live stream.")
def backfill() -> None:
    """Land the records from one cursor to another again, beside the live stream, which goes on.

    It has a lease and a checkpoint of its own, and lands into the same table by `key`: what is there already
    stays, or is put right with `on_conflict: update`.

    \b
    Example:
      feedq feed backfill begin acme/orders --from 1000 --to 250000 --wait
      feedq feed backfill show
    """


@backfill.command()
@click.argument("name")
@click.option("--from", "begin", required=True, metavar="CURSOR", help="Begin after this cursor, or time.")
@click.option(
    "--to", "end", metavar="CURSOR", help="Nothing after this one; where the feed stands, unless given."
)
@click.option(
    "--rows-per-s",
    type=click.FloatRange(min=0.001),
    help="At most so many records a second, instead of 10,000.",
)
@click.option("--key", metavar="TEXT", help="Asked again with the same key, nothing is begun again.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and begin nothing.")
@reason_option
@click.option("--wait", is_flag=True, help="Return only once it has ended.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="With --wait: give up after this long; it goes on.",
)
@pass_invocation
def begin(
    invocation: Invocation,
    *,
    name: str,
    begin: str,
    end: str | None,
    rows_per_s: float | None,
    key: str | None,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
) -> None:
    """Begin a backfill: cursors are JSON, or else a text, or a time where the connector's cursors tell it.

    \b
    Example:
      feedq feed backfill begin acme/orders --from 1000 --to 250000
      feedq feed backfill begin acme/ticks --from 2026-12-01T08:00Z --rows-per-s 500
    """
    from feedq.connectors.base import show_cursor
    from feedq.verbs.backfills import begin_backfill

    found = invocation.do(
        begin_backfill, name=name, begin=begin, end=end, rows_per_s=rows_per_s, key=key, dry_run=dry_run
    )
    if wait and not dry_run:
        found = _await_end(invocation, found, timeout_s=timeout_s)
    said = f"from {show_cursor(found.begins_after)} to {show_cursor(found.ends_at)}"
    if found.limit_rows_per_s:
        said += f", at most {found.limit_rows_per_s:,g} records a second"
    if found.status == "finished":
        said += f": finished, {found.records:,} records"
    answer(invocation, found, f"backfill of {name} {said}{' (nothing was begun)' if dry_run else ''}")
    if wait and found.status == "cancelled":
        from feedq.core.remedies import command

        raise FeedqError(f"the backfill of {name} was cancelled: see `{command('events', '--feed', name)}`")


@backfill.command()
@click.argument("name", required=False)
@pass_invocation
def show(invocation: Invocation, *, name: str | None) -> None:
    """The backfill of a feed, or how its last one ended; without a name, all that are under way.

    \b
    Example:
      feedq feed backfill show
      feedq feed backfill show acme/orders
    """
    from feedq.connectors.base import show_cursor
    from feedq.verbs.backfills import show_backfill
    from feedq.verbs.report.details import detail_lines
    from feedq.verbs.wording import stamp

    if name is None:
        _list(invocation)
        return
    found = invocation.do(show_backfill, name=name)
    lines = detail_lines(
        [
            ("backfill of", name),
            ("status", found.status),
            ("why", found.because),
            ("from", show_cursor(found.begins_after)),
            ("to", show_cursor(found.ends_at)),
            ("at", show_cursor(found.cursor)),
            ("done", _percent(found)),
            ("records", _count(found.records)),
            ("dead letters", _count(found.dead_letters)),
            ("limit", f"{found.limit_rows_per_s:,g} records a second" if found.limit_rows_per_s else None),
            ("worker", found.worker),
            ("begun", stamp(found.begun_at) if found.begun_at else None),
            ("ended", stamp(found.ended_at) if found.ended_at else None),
        ]
    )
    answer(invocation, found, lambda: write_lines(lines))


def _list(invocation: Invocation) -> None:
    from feedq.connectors.base import show_cursor
    from feedq.verbs.backfills import list_backfills
    from feedq.verbs.wording import cut

    columns: list[TableColumn[BackfillDocument]] = [
        TableColumn("FEED", lambda one: one.name),
        state("STATUS", lambda one: one.status),
        number("DONE", _percent),
        number("RECORDS", lambda one: _count(one.records)),
        number("ROWS/S", lambda one: None if one.rows_per_s is None else f"{one.rows_per_s:,.1f}"),
        TableColumn("WORKER", lambda one: one.worker),
        TableColumn("CURSOR", lambda one: cut(show_cursor(one.cursor), CURSOR_WIDTH)),
        TableColumn("TO", lambda one: cut(show_cursor(one.ends_at), CURSOR_WIDTH)),
    ]
    answer_list(invocation, invocation.do(list_backfills).items, columns, empty="no backfill is under way")


@backfill.command()
@click.argument("name")
@changes
def cancel(invocation: Invocation, *, name: str) -> None:
    """End the backfill of a feed. What it has landed stays; its feed goes on.

    \b
    Example:
      feedq feed backfill cancel acme/orders
    """
    from feedq.verbs.backfills import cancel_backfill

    found = invocation.do(cancel_backfill, name=name)
    answer(invocation, found, f"backfill of {name} cancelled; {found.records:,} records have landed")


def _await_end(invocation: Invocation, begun: BackfillDocument, *, timeout_s: float) -> BackfillDocument:
    from feedq.verbs.backfills import show_backfill

    latest = [begun]
    with ProgressBar(f"% of {begun.name}", 100) as bar:

        def has_ended() -> bool:
            latest[0] = invocation.do(show_backfill, name=begun.name)
            bar(round(100 * (latest[0].part or 0)))
            return latest[0].ended_at is not None

        invocation.wait_until(
            has_ended,
            timeout_s=timeout_s,
            what=f"backfill of {begun.name}",
            why=lambda: latest[0].because,
        )
    return latest[0]


def _percent(found: BackfillDocument) -> str | None:
    return None if found.part is None else f"{100 * found.part:.0f} %"


def _count(found: int | None) -> str | None:
    return None if found is None else f"{found:,}"
