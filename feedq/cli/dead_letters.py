"""`feedq feed dead-letters`: the records that the database refused, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from feedq.cli.invocation import Invocation, changes, limit_option, pass_invocation, yes_option
from feedq.cli.output import TableColumn, answer, answer_list, number, write_lines
from feedq.errors import FeedqError

if TYPE_CHECKING:
    from feedq.core.model import FeedView
    from feedq.verbs.dead_letters import DeadLetterDocument

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
    from feedq.verbs.dead_letters import list_dead_letters
    from feedq.verbs.wording import ago, cut, printable

    if name is None:
        _list_feeds(invocation, limit)
        return
    if ids:
        _show(invocation, name, ids)
        return
    letters = list(invocation.pages(limit, list_dead_letters, name=name, newest=True))
    now = invocation.clock.now()
    columns: list[TableColumn[DeadLetterDocument]] = [
        number("ID", lambda letter: str(letter.id)),
        number("AGE", lambda letter: ago(letter.at, now=now)),
        number("EPOCH", lambda letter: str(letter.epoch)),
        TableColumn("ERROR", lambda letter: cut(printable(letter.error), TEXT_WIDTH)),
        TableColumn("RECORD", lambda letter: cut(_text(letter), TEXT_WIDTH)),
    ]
    answer_list(invocation, letters, columns, empty=f"{name} has no dead letters")


def _show(invocation: Invocation, name: str, ids: Sequence[int]) -> None:
    from feedq.verbs.dead_letters import show_dead_letter
    from feedq.verbs.report.details import detail_lines
    from feedq.verbs.wording import as_json, stamp

    letters = [invocation.do(show_dead_letter, name=name, id=one) for one in sorted({*ids}, reverse=True)]

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
                        ("record", _text(letter)),
                    ]
                )
            )

    answer(invocation, letters, write)


def _list_feeds(invocation: Invocation, limit: int) -> None:
    """What the workers have told of their feeds: no sink is asked."""
    from feedq.core.selection import Selection
    from feedq.verbs.feeds import list_feeds
    from feedq.verbs.wording import ago, said

    views = list(invocation.pages(None, list_feeds, select=Selection(dead_letters=True)))
    views.sort(key=lambda view: view.lease.dead_letter_at or LONG_AGO, reverse=True)
    now = invocation.clock.now()
    columns: list[TableColumn[FeedView]] = [
        TableColumn("NAME", lambda view: view.feed.name),
        number("REFUSED", lambda view: f"{view.lease.dead_letters:,}"),
        number("LATEST", lambda view: ago(view.lease.dead_letter_at, now=now)),
        TableColumn(
            "REASON", lambda view: view.lease.dead_letter_error and said(view.lease.dead_letter_error)
        ),
    ]
    answer_list(invocation, views[:limit], columns, empty="no feed has dead letters")


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
    from feedq.verbs.dead_letters import replay_dead_letters
    from feedq.verbs.wording import printable

    with invocation.progress("records tried"):
        found = invocation.do(replay_dead_letters, name=name, ids=tuple(ids), all=all_)

    def write() -> None:
        click.echo(f"{name}: {found.landed} landed, {len(found.refused)} refused again")
        if found.passed_over:
            click.echo(
                f"  {found.passed_over} passed over: somebody else is at them, or has just dealt with them"
            )
        for letter_id, error in list(found.refused.items())[:10]:
            click.echo(f"  {letter_id}: {printable(error)}")

    answer(invocation, found, write)
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
    from feedq.verbs.dead_letters import drop_dead_letters

    if not yes:
        tried = invocation.do(drop_dead_letters, name=name, ids=tuple(ids), all=all_, dry_run=True)
        which = "all" if all_ else str(tried.dropped)
        invocation.confirm(f"Delete {which} refused records of {name} for good?", yes=yes)
    with invocation.progress("records dropped"):
        found = invocation.do(drop_dead_letters, name=name, ids=tuple(ids), all=all_)
    answer(invocation, found, f"{name}: {found.dropped} dropped")


def _text(letter: DeadLetterDocument) -> str:
    from feedq.verbs.wording import printable

    if letter.record is not None:
        return printable(letter.record)
    return printable(bytes.fromhex(letter.record_hex or "").decode("utf-8", "backslashreplace"))
