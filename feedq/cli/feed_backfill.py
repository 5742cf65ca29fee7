"""`feedq feed backfill`: a bounded second stream beside that of a feed, into the same table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from feedq.cli.invocation import Invocation, changes, pass_invocation, reason_option
from feedq.cli.output import ProgressBar, TableColumn, answer, answer_list, number, state, write_lines
from feedq.errors import FeedqError

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

    row = invocation.sink_verbs.backfills.begin(
        name, begin=begin, end=end, rows_per_s=rows_per_s, key=key, dry_run=dry_run
    )
    if wait and not dry_run:
        row = _await_end(invocation, name, timeout_s=timeout_s)
    said = f"from {show_cursor(row['begins_after'])} to {show_cursor(row['ends_at'])}"
    if row["limit_rows_per_s"]:
        said += f", at most {row['limit_rows_per_s']:,g} records a second"
    if row["status"] == "finished":
        said += f": finished, {row['records']:,} records"
    answer(invocation, row, f"backfill of {name} {said}{' (nothing was begun)' if dry_run else ''}")
    if wait and row["status"] == "cancelled":
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
    from feedq.verbs.report.details import detail_lines
    from feedq.verbs.wording import stamp

    if name is None:
        _list(invocation)
        return
    row = invocation.sink_verbs.backfills.of(name)
    lines = detail_lines(
        [
            ("backfill of", name),
            ("status", row["status"]),
            ("why", row["because"]),
            ("from", show_cursor(row["begins_after"])),
            ("to", show_cursor(row["ends_at"])),
            ("at", show_cursor(row["cursor"])),
            ("done", _percent(row)),
            ("records", _count(row["records"])),
            ("dead letters", _count(row["dead_letters"])),
            ("limit", f"{row['limit_rows_per_s']:,g} records a second" if row["limit_rows_per_s"] else None),
            ("worker", row["worker"]),
            ("begun", stamp(row["begun_at"]) if row["begun_at"] else None),
            ("ended", stamp(row["ended_at"]) if row["ended_at"] else None),
        ]
    )
    answer(invocation, row, lambda: write_lines(lines))


def _list(invocation: Invocation) -> None:
    from feedq.connectors.base import show_cursor
    from feedq.verbs.wording import cut

    columns: list[TableColumn[Mapping[str, Any]]] = [
        TableColumn("FEED", lambda row: row["name"]),
        state("STATUS", lambda row: row["status"]),
        number("DONE", lambda row: _percent(row)),
        number("RECORDS", lambda row: f"{row['records']:,}"),
        number("ROWS/S", lambda row: f"{row['rows_per_s']:,.1f}"),
        TableColumn("WORKER", lambda row: row["worker"]),
        TableColumn("CURSOR", lambda row: cut(show_cursor(row["cursor"]), CURSOR_WIDTH)),
        TableColumn("TO", lambda row: cut(show_cursor(row["ends_at"]), CURSOR_WIDTH)),
    ]
    found: list[Mapping[str, Any]] = [*invocation.sink_verbs.backfills.running()]
    answer_list(invocation, found, dict, columns, empty="no backfill is under way")


@backfill.command()
@click.argument("name")
@changes
def cancel(invocation: Invocation, *, name: str) -> None:
    """End the backfill of a feed. What it has landed stays; its feed goes on.

    \b
    Example:
      feedq feed backfill cancel acme/orders
    """
    row = invocation.sink_verbs.backfills.cancel(name)
    answer(invocation, row, f"backfill of {name} cancelled; {row['records']:,} records have landed")


def _await_end(invocation: Invocation, name: str, *, timeout_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {}
    with ProgressBar(f"% of {name}", 100) as bar:

        def has_ended() -> bool:
            row.update(invocation.sink_verbs.backfills.of(name))
            bar(round(100 * (row["part"] or 0)))
            return row["ended_at"] is not None

        invocation.wait_until(
            has_ended, timeout_s=timeout_s, what=f"backfill of {name}", why=lambda: row["because"]
        )
    return row


def _percent(row: Mapping[str, Any]) -> str | None:
    return None if row["part"] is None else f"{100 * row['part']:.0f} %"


def _count(found: int | None) -> str | None:
    return None if found is None else f"{found:,}"
