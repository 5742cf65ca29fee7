"""`feedq feed dead-letters`: the records that the database refused, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from feedq.cli import options
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import TableColumn, answer, answer_list, fact_lines, first, number
from feedq.errors import FeedqError

with lazily():
    from feedq.verbs import details, landing, wording

TEXT_WIDTH = 60


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
        _show(invocation, name, ids)
    else:
        _list(invocation, name, limit)


def _list(invocation: Invocation, name: str, limit: int) -> None:
    found = first(invocation.pages(landing.list_dead_letters, name=name), limit)
    now = invocation.clock.now()
    columns: list[TableColumn[landing.DeadLetterDocument]] = [
        number("ID", lambda letter: str(letter.id)),
        number("AGE", lambda letter: wording.ago(letter.at, now=now)),
        number("EPOCH", lambda letter: str(letter.epoch)),
        TableColumn("ERROR", lambda letter: wording.cut(wording.printable(letter.error), TEXT_WIDTH)),
        TableColumn("RECORD", lambda letter: wording.cut(_text(letter), TEXT_WIDTH)),
    ]
    answer_list(invocation, found, columns, empty=f"{name} has no dead letters")


def _show(invocation: Invocation, name: str, ids: Sequence[int]) -> None:
    found = [
        invocation.do(landing.show_dead_letter, name=name, id=one) for one in sorted({*ids}, reverse=True)
    ]

    answer(invocation, found, *(fact_lines(_facts(letter)) for letter in found))


def _facts(letter: landing.DeadLetterDocument) -> list[details.Fact]:
    return [
        ("id", str(letter.id)),
        ("feed", letter.feed),
        ("at", wording.stamp(letter.at)),
        ("epoch", str(letter.epoch)),
        ("cursor", wording.as_json(letter.cursor)),
        ("error", letter.error),
        ("record", _text(letter)),
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


def _text(letter: landing.DeadLetterDocument) -> str:
    if letter.record is not None:
        return wording.printable(letter.record)
    return wording.printable(bytes.fromhex(letter.record_hex or "").decode("utf-8", "backslashreplace"))
