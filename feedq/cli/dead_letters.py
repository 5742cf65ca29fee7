"""`feedq feed dead-letters`: the records that the database refused, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.invocation import Invocation, changes, limit_option, pass_invocation, yes_option
from feedq.cli.output import ProgressBar, TableColumn, answer, answer_list, number, write_lines
from feedq.errors import FeedqError, NotFound

if TYPE_CHECKING:
    from feedq.core.model import FeedView
    from feedq.sinks.base import DeadLetter

TEXT_WIDTH = 60
LONG_AGO = datetime.min.replace(tzinfo=UTC)
LETTER_ID = click.IntRange(1, 2**63 - 1)
ids_argument = click.argument("ids", nargs=-1, type=LETTER_ID, metavar="[ID]...")
all_option = click.option("--all", "all_", is_flag=True, help="All of the feed's, instead of naming each.")


@click.group("dead-letters", short_help="Records that the database refused: list, replay, drop.")
def dead_letters() -> None:
    """Records that the database refused, kept in the feed's sink with the reason.

    \b
    Example:
      feedq feed dead-letters list acme/orders
      feedq feed dead-letters replay acme/orders --all
    """


@dead_letters.command("list")
@click.argument("name", required=False)
@ids_argument
@limit_option(50)
@pass_invocation
def list_(invocation: Invocation, *, name: str | None, ids: Sequence[int], limit: int) -> None:
    """The refused records of a feed, newest first, or those with these ids, whole; without a name, the feeds that
    have had some refused, each with the latest reason.

    \b
    Example:
      feedq feed dead-letters list
      feedq feed dead-letters list acme/orders --limit 10
      feedq feed dead-letters list acme/orders 17
    """
    from feedq.verbs.report.rows import dead_letter_row
    from feedq.verbs.wording import ago, cut, printable

    if name is None:
        _list_feeds(invocation, limit)
        return
    if ids:
        _show(invocation, name, ids)
        return
    letters = invocation.sink_verbs.letters(name, limit=limit)
    now = invocation.clock.now()
    columns: list[TableColumn[DeadLetter]] = [
        number("ID", lambda letter: str(letter.id)),
        number("AGE", lambda letter: ago(letter.at, now=now)),
        number("EPOCH", lambda letter: str(letter.epoch)),
        TableColumn("ERROR", lambda letter: cut(printable(letter.error), TEXT_WIDTH)),
        TableColumn("RECORD", lambda letter: cut(_text(letter.record), TEXT_WIDTH)),
    ]
    answer_list(invocation, letters, dead_letter_row, columns, empty=f"{name} has no dead letters")


def _show(invocation: Invocation, name: str, ids: Sequence[int]) -> None:
    from feedq.verbs.report.details import detail_lines
    from feedq.verbs.report.rows import dead_letter_row
    from feedq.verbs.wording import as_json, stamp

    letters = invocation.sink_verbs.letters(name, ids=ids, limit=len(ids))
    if missing := sorted({*ids} - {letter.id for letter in letters}):
        raise NotFound(f"{name} has no dead letter {missing[0]}")

    def write() -> None:
        for position, letter in enumerate(letters):
            if position:
                click.echo()
            write_lines(
                detail_lines(
                    [
                        ("id", str(letter.id)),
                        ("feed", letter.feed),
                        ("at", stamp(letter.at)),
                        ("epoch", str(letter.epoch)),
                        ("cursor", as_json(letter.cursor)),
                        ("error", letter.error),
                        ("record", _text(letter.record)),
                    ]
                )
            )

    answer(invocation, map(dead_letter_row, letters), write)


def _list_feeds(invocation: Invocation, limit: int) -> None:
    """What the workers have told of their feeds: no sink is asked."""
    from feedq.core.selection import Selection
    from feedq.verbs.wording import ago, said

    views = [v for v in invocation.store.feeds.selected(Selection()) if v.lease.dead_letters_total]
    views.sort(key=lambda view: view.lease.dead_letter_at or LONG_AGO, reverse=True)
    now = invocation.clock.now()
    columns: list[TableColumn[FeedView]] = [
        TableColumn("NAME", lambda view: view.feed.name),
        number("REFUSED", lambda view: f"{view.lease.dead_letters_total:,}"),
        number("LATEST", lambda view: ago(view.lease.dead_letter_at, now=now)),
        TableColumn(
            "REASON", lambda view: view.lease.dead_letter_error and said(view.lease.dead_letter_error)
        ),
    ]
    empty = "no record of any feed was refused"
    answer_list(invocation, views[:limit], _feed_document, columns, empty=empty)


def _feed_document(view: FeedView) -> dict[str, Any]:
    from feedq.verbs.report.rows import feed_row

    row = feed_row(view)
    return {key: row[key] for key in ("name", "dead_letters_total", "dead_letter_at", "dead_letter_error")}


@dead_letters.command()
@click.argument("name")
@ids_argument
@all_option
@changes
def replay(invocation: Invocation, *, name: str, ids: Sequence[int], all_: bool) -> None:
    """Land refused records after all, once the table or the feed was mended.

    Each lands as the feed is declared now, in the transaction that takes it from the dead letters; what is
    refused again stays there, with the new reason. They land after records that came later. With --all, those that
    are refused meanwhile are left for the next time.

    \b
    Example:
      feedq feed dead-letters replay acme/orders 17 18
      feedq feed dead-letters replay acme/orders --all
    """
    from feedq.verbs.wording import printable

    with ProgressBar("records tried", None if all_ else len(set(ids))) as bar:
        found = invocation.sink_verbs.replay(name, ids, all_, on_progress=bar)

    def write() -> None:
        click.echo(f"{name}: {found.landed} landed, {len(found.refused)} refused again")
        if found.passed_over:
            click.echo(
                f"  {found.passed_over} passed over: somebody else is at them, or has just dealt with them"
            )
        for letter_id, error in list(found.refused.items())[:10]:
            click.echo(f"  {letter_id}: {printable(error)}")

    document = {"name": name, **asdict(found)}
    answer(invocation, document, write)
    if found.refused:
        raise FeedqError(f"{len(found.refused)} records are refused still; they stay where they are")


@dead_letters.command()
@click.argument("name")
@ids_argument
@all_option
@yes_option
@changes
def drop(invocation: Invocation, *, name: str, ids: Sequence[int], all_: bool, yes: bool) -> None:
    """Delete refused records for good.

    \b
    Example:
      feedq feed dead-letters drop acme/orders 17 --yes
    """
    drop_them = partial(invocation.sink_verbs.drop, name, ids, all_)
    if not yes:
        drop_them(dry_run=True)
    which = "all" if all_ else str(len(set(ids)))
    invocation.confirm(f"Delete {which} refused records of {name} for good?", yes=yes)
    dropped = drop_them()
    answer(invocation, {"name": name, "dropped": dropped}, f"{name}: {dropped} dropped")


def _text(record: bytes) -> str:
    from feedq.verbs.wording import printable

    return printable(record.decode("utf-8", "backslashreplace"))
