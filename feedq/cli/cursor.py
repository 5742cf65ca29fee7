"""`feedq feed cursor`, `backfill` and `dead-letters`: where a feed stands in its source, how to have it go on from
elsewhere, how to land again what lies between two cursors, and what to do about records that the database refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from feedq.cli import options
from feedq.cli.choosing import await_feeds
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import ProgressLine, TableColumn, answer, answer_list, fact_lines, first, number, state
from feedq.errors import FeedqError

with lazily():
    from feedq.connectors import base as connectors_base
    from feedq.core import model, remedies
    from feedq.verbs import backfills, cursors, details, feeds, landing, wording

TWICE: Final = "its sink has no key, so records that the source sends again will be duplicated"
CURSOR_WIDTH: Final = 40
TEXT_WIDTH: Final = 60
WAIT_S: Final = 86_400.0
"""A backfill may take a day."""

dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen without doing it.")


@options.command(short_help="Where a feed stands in its source: show, set, rewind.")
@options.has_verbs(
    show="name",
    set="name cursor dry_run yes wait timeout_s",
    rewind="name records to to_start dry_run yes wait timeout_s",
)
@click.argument("name")
@click.argument("cursor", required=False)
@click.option("--records", type=click.IntRange(min=1), metavar="NUMBER", help="Rewind by this many records.")
@click.option(
    "--to", metavar="TIME", help="Rewind to a time, such as 2026-12-01T08:00Z, or an age, such as 90m."
)
@click.option("--to-start", is_flag=True, help="Rewind to where the feed began.")
@dry_run_option
@options.yes
@options.waits()
@options.changes
def cursor(
    invocation: Invocation, *, verb: str, name: str, cursor: str | None, to_start: bool, **asked: Any
) -> None:
    """Show or change where a feed stands in its source, also while it runs.

    `show` prints the cursor in the sink. `set` continues after CURSOR, which is JSON or text. `rewind` goes back
    to the beginning or, if the connector supports it, by records or to a time. Records that the source
    sends again land twice unless the sink has a `key`.

    \b
    Example:
      feedq feed cursor show acme/orders
      feedq feed cursor set acme/ticks '{"ticks": "1764064800000-0"}'
      feedq feed cursor rewind acme/orders --records 1000
    """
    if verb == "show":
        _show_cursor(invocation, name)
    elif verb == "set":
        if cursor is None:
            raise click.UsageError("give the CURSOR after which the feed continues")
        _change(invocation, name, change=cursors.CursorVerb.SET, cursor=options.read_cursor(cursor), **asked)
    elif (asked["records"] is not None) + (asked["to"] is not None) + to_start != 1:
        raise click.UsageError("give one of --records, --to and --to-start")
    else:
        change = cursors.CursorVerb.RESET if to_start else cursors.CursorVerb.REWIND
        _change(invocation, name, change=change, **asked)


def _show_cursor(invocation: Invocation, name: str) -> None:
    found = invocation.do(cursors.show_cursor, name=name)
    at = found.updated_at
    facts: list[details.Fact] = [
        ("name", name),
        ("cursor", wording.as_json(found.cursor) if at else "none: it has not begun"),
        ("records", f"{found.records:,}"),
        ("updated", wording.stamp(at) if at else "-"),
    ]
    answer(invocation, found, fact_lines(facts))


def _change(
    invocation: Invocation, name: str, *, dry_run: bool, yes: bool, wait: bool, timeout_s: float, **asked: Any
) -> None:
    done = invocation.do_confirmed(
        cursors.change_cursor,
        lambda tried: f"{_said(name, tried.change, 'continues')}. Do it?",
        yes=yes,
        dry_run=dry_run,
        name=name,
        **asked,
    )
    if wait and not dry_run:
        generation = invocation.do(feeds.show_feed, name=name).view.feed.generation
        begun = [feeds.Done(name, generation)]
        await_feeds(invocation, feeds.FeedAction.RESTART, begun, timeout_s=timeout_s)
    answer(invocation, done, _said(name, done.change, "would continue" if dry_run else "continues"))


def _said(name: str, change: model.ChangedCursor, goes: str) -> str:
    after = "where it began" if change.after is None else f"after cursor {_shown(change.after)}"
    before = "none" if change.before is None else _shown(change.before)
    said = f"{name} {goes} {after} (before: {before})"
    return f"{said}; {TWICE}" if change.duplicates else said


def _shown(cursor: model.JSON) -> str:
    return connectors_base.show_cursor(cursor)


# -- backfills ---------------------------------------------------------------------------------------


@options.command(short_help="Import again from one cursor to another, beside the live stream.")
@options.has_verbs(begin="name begin end rows_per_s key dry_run wait timeout_s", show="name", cancel="name")
@click.argument("name", required=False)
@click.option("--from", "begin", metavar="CURSOR", help="Start after this cursor or time.")
@click.option(
    "--to", "end", metavar="CURSOR", help="Stop after this cursor. [default: where the feed stands]"
)
@click.option(
    "--rows-per-s",
    type=click.FloatRange(min=0.001),
    help="Rate limit. [default: 10,000 records a second]",
)
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key starts nothing twice.")
@dry_run_option
@options.waits(WAIT_S)
@options.changes
def backfill(
    invocation: Invocation, *, verb: str, name: str | None, wait: bool, timeout_s: float, **asked: Any
) -> None:
    """Import the records between two cursors again, while the live stream continues.

    A backfill has its own lease and checkpoint, and lands in the same table by `key`: existing rows stay,
    or are updated with `on_conflict: update`. A cursor is JSON, text or, if the connector supports it, a
    time. `show` lists running backfills, or one feed's latest. `cancel` keeps what has landed.

    \b
    Example:
      feedq feed backfill begin acme/orders --from 1000 --to 250000 --wait
      feedq feed backfill begin acme/ticks --from 2026-12-01T08:00Z --rows-per-s 500
      feedq feed backfill show
    """
    if name is None:
        if verb != "show":
            raise click.UsageError("NAME is missing")
        found = invocation.do(backfills.list_backfills).items
        answer_list(invocation, found, _columns(), empty="no backfill is under way")
    elif verb == "show":
        shown = invocation.do(backfills.show_backfill, name=name)
        answer(invocation, shown, fact_lines(_facts(shown)))
    elif verb == "cancel":
        ended = invocation.do(backfills.cancel_backfill, name=name)
        answer(invocation, ended, f"backfill of {name} cancelled; {ended.records:,} records have landed")
    elif asked["begin"] is None:
        raise click.UsageError("--from is missing")
    else:
        made = invocation.do(backfills.begin_backfill, name=name, **asked)
        if wait and made.status != "planned":
            made = _await_end(invocation, made, timeout_s=timeout_s)
        _answer_begun(invocation, made)
        if wait and made.status == "cancelled":
            history = remedies.command("events", "--feed", name)
            raise FeedqError(f"the backfill of {name} was cancelled: see `{history}`")


def _answer_begun(invocation: Invocation, found: backfills.BackfillDocument) -> None:
    said = f"backfill of {found.name} from {_shown(found.begins_after)} to {_shown(found.ends_at)}"
    if found.limit_rows_per_s:
        said += f", at most {found.limit_rows_per_s:,g} records a second"
    if found.status == "finished":
        said += f": finished, {found.records:,} records"
    answer(invocation, found, said + (" (nothing was begun)" if found.status == "planned" else ""))


def _await_end(
    invocation: Invocation, begun: backfills.BackfillDocument, *, timeout_s: float
) -> backfills.BackfillDocument:
    with ProgressLine(f"% of the backfill of {begun.name}") as line:

        def has_ended(seen: backfills.BackfillDocument) -> bool:
            line(round(100 * (seen.part or 0)))
            return seen.ended_at is not None

        return invocation.wait_for(
            lambda: invocation.do(backfills.show_backfill, name=begun.name),
            has_ended,
            timeout_s=timeout_s,
            what=f"backfill of {begun.name}",
            why=lambda seen: seen.because,
        )


def _facts(found: backfills.BackfillDocument) -> list[details.Fact]:
    limit = found.limit_rows_per_s
    return [
        ("backfill of", found.name),
        ("status", found.status),
        ("why", found.because),
        ("from", _shown(found.begins_after)),
        ("to", _shown(found.ends_at)),
        ("at", _shown(found.cursor)),
        ("done", _percent(found)),
        ("records", _count(found.records)),
        ("dead letters", _count(found.dead_letters)),
        ("limit", f"{limit:,g} records a second" if limit else None),
        ("worker", found.worker),
        ("begun", wording.stamp(found.begun_at) if found.begun_at else None),
        ("ended", wording.stamp(found.ended_at) if found.ended_at else None),
    ]


def _columns() -> list[TableColumn[backfills.BackfillDocument]]:
    return [
        TableColumn("FEED", lambda one: one.name),
        state("STATUS", lambda one: one.status),
        number("DONE", _percent),
        number("RECORDS", lambda one: _count(one.records)),
        number("ROWS/S", lambda one: None if one.rows_per_s is None else f"{one.rows_per_s:,.1f}"),
        TableColumn("WORKER", lambda one: one.worker),
        TableColumn("CURSOR", lambda one: wording.cut(_shown(one.cursor), CURSOR_WIDTH)),
        TableColumn("TO", lambda one: wording.cut(_shown(one.ends_at), CURSOR_WIDTH)),
    ]


def _percent(found: backfills.BackfillDocument) -> str | None:
    return None if found.part is None else f"{100 * found.part:.0f} %"


def _count(found: int | None) -> str | None:
    return None if found is None else f"{found:,}"


# -- dead letters ------------------------------------------------------------------------------------


@options.command("dead-letters", short_help="Records that the database refused: list, replay, drop.")
@options.has_verbs(list="name ids limit", replay="name ids all", drop="name ids all yes")
@click.argument("name")
@click.argument("ids", nargs=-1, type=click.IntRange(1, 2**63 - 1), metavar="[ID]...")
@click.option("--all", is_flag=True, help="All records, instead of single IDs.")
@options.limit(50)
@options.yes
@options.changes
def dead_letters(
    invocation: Invocation, *, verb: str, name: str, ids: tuple[int, ...], limit: int, yes: bool, **which: Any
) -> None:
    """Records that the database refused, kept in the feed's sink with the reason.

    `list` shows them, newest first; those given by ID in full. `replay` tries them again, with the feed as it
    is declared now, once you have fixed the table or the feed; what is refused again stays. `drop` deletes
    them for good. `feedq feed list --dead-letters` finds feeds that have some.

    \b
    Example:
      feedq feed dead-letters list acme/orders 17
      feedq feed dead-letters replay acme/orders --all
      feedq feed dead-letters drop acme/orders 17 --yes
    """
    if verb == "replay":
        _replay(invocation, name, ids=ids, **which)
    elif verb == "drop":
        with invocation.progress("records dropped"):
            dropped = invocation.do_confirmed(
                landing.drop_dead_letters,
                lambda tried: f"Delete {tried.dropped:,} refused records of {name} for good?",
                yes=yes,
                name=name,
                ids=ids,
                **which,
            )
        answer(invocation, dropped, f"{name}: {dropped.dropped} dropped")
    elif ids:
        _show_letters(invocation, name, ids)
    else:
        _list_letters(invocation, name, limit)


def _list_letters(invocation: Invocation, name: str, limit: int) -> None:
    found = first(invocation.pages(landing.list_dead_letters, name=name), limit)
    now = invocation.clock.now()
    columns: list[TableColumn[landing.DeadLetterDocument]] = [
        number("ID", lambda letter: str(letter.id)),
        number("AGE", lambda letter: wording.ago(letter.at, now=now)),
        number("EPOCH", lambda letter: str(letter.epoch)),
        TableColumn("ERROR", lambda letter: wording.cut(wording.printable(letter.error), TEXT_WIDTH)),
        TableColumn("RECORD", lambda letter: wording.cut(_letter_text(letter), TEXT_WIDTH)),
    ]
    answer_list(invocation, found, columns, empty=f"{name} has no dead letters")


def _show_letters(invocation: Invocation, name: str, ids: Sequence[int]) -> None:
    found = [
        invocation.do(landing.show_dead_letter, name=name, id=one) for one in sorted({*ids}, reverse=True)
    ]

    answer(invocation, found, *(fact_lines(_letter_facts(letter)) for letter in found))


def _letter_facts(letter: landing.DeadLetterDocument) -> list[details.Fact]:
    return [
        ("id", str(letter.id)),
        ("feed", letter.feed),
        ("at", wording.stamp(letter.at)),
        ("epoch", str(letter.epoch)),
        ("cursor", wording.as_json(letter.cursor)),
        ("error", letter.error),
        ("record", _letter_text(letter)),
    ]


def _replay(invocation: Invocation, name: str, **which: Any) -> None:
    with invocation.progress("records tried"):
        found = invocation.do(landing.replay_dead_letters, name=name, **which)
    lines = [f"{name}: {found.landed} landed, {len(found.refused)} refused again"]
    if found.passed_over:
        lines.append(f"  {found.passed_over} skipped: somebody else is handling them, or has just done so")
    refused = [f"  {letter_id}: {error}" for letter_id, error in found.refused.items()]
    answer(invocation, found, "\n".join([*lines, *wording.first_few(refused, "  and {:,} more")]))
    if found.refused:
        raise FeedqError(f"{len(found.refused)} records are still refused; they stay dead letters")


def _letter_text(letter: landing.DeadLetterDocument) -> str:
    if letter.record is not None:
        return wording.printable(letter.record)
    return wording.printable(bytes.fromhex(letter.record_hex or "").decode("utf-8", "backslashreplace"))
