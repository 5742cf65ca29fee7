"""`feedq feed dead-letters`: the records that the database refused, and what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from feedq.cli.choosing import selection_of, selection_options
from feedq.cli.invocation import Invocation, limit_option, output_option, pass_invocation, yes_option
from feedq.cli.output import TableColumn, answer, answer_list, number, write_lines
from feedq.connectors.base import parse_options
from feedq.errors import FeedqError, InvalidInput, NotFound, SinkUnavailable
from feedq.model import FeedSpec, FeedView
from feedq.report.details import detail_lines
from feedq.report.rows import feed_row
from feedq.selection import Selection
from feedq.sinks.base import DeadLetter, Sink, parse_sink, target_of
from feedq.wording import ago, as_json, cut, printable, said, stamp

TEXT_WIDTH = 60
AT_ONCE = 100
FIRST_AT_ONCE = 10
BYTES_AT_ONCE = 16 * 2**20
"""These bound one transaction of a replay, and what is held of records in memory: so many at once, or fewer if
those before were large."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)
LETTER_ID = click.IntRange(1, 2**63 - 1)
ids_argument = click.argument("ids", nargs=-1, type=LETTER_ID, metavar="[ID]...")
all_option = click.option("--all", "all_", is_flag=True, help="All of the feed's, instead of naming each.")


@click.group("dead-letters", short_help="Records that the database refused: list, show, replay, drop.")
def dead_letters() -> None:
    """Records that the database refused, kept in the feed's sink with the reason.

    \b
    Example:
      feedq feed dead-letters list acme/orders
      feedq feed dead-letters replay acme/orders --all
    """


@dead_letters.command("list")
@click.argument("name", required=False)
@selection_options
@limit_option(50)
@output_option
@pass_invocation
def list_(invocation: Invocation, *, name: str | None, limit: int, **chosen: Any) -> None:
    """The refused records of a feed, newest first; without a name, the feeds that have had some refused, each with
    the latest reason.

    \b
    Example:
      feedq feed dead-letters list
      feedq feed dead-letters list acme/orders --limit 10
    """
    if name is None:
        _list_feeds(invocation, selection_of(**chosen), limit)
        return
    with _sink_of(invocation, name) as (_, sink):
        letters = sink.dead_letters(name, limit=limit)
    now = invocation.clock.now()
    columns: list[TableColumn[DeadLetter]] = [
        number("ID", lambda letter: str(letter.id)),
        number("AGE", lambda letter: ago(letter.at, now=now)),
        number("EPOCH", lambda letter: str(letter.epoch)),
        TableColumn("ERROR", lambda letter: cut(printable(letter.error), TEXT_WIDTH)),
        TableColumn("RECORD", lambda letter: cut(_text(letter.record), TEXT_WIDTH)),
    ]
    answer_list(invocation, letters, _document, columns, empty=f"{name} has no dead letters")


def _list_feeds(invocation: Invocation, selection: Selection, limit: int) -> None:
    """What the workers have told of their feeds: no sink is asked."""
    views = [v for v in invocation.store.feeds.selected(selection) if v.lease.dead_letters_total]
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
    empty = "no record of these feeds was refused"
    answer_list(invocation, views[:limit], _feed_document, columns, empty=empty)


def _feed_document(view: FeedView) -> dict[str, Any]:
    row = feed_row(view)
    return {key: row[key] for key in ("name", "dead_letters_total", "dead_letter_at", "dead_letter_error")}


@dead_letters.command()
@click.argument("name")
@click.argument("letter_id", type=LETTER_ID, metavar="ID")
@output_option
@pass_invocation
def show(invocation: Invocation, *, name: str, letter_id: int) -> None:
    """One refused record, whole, with the reason.

    \b
    Example:
      feedq feed dead-letters show acme/orders 17
    """
    with _sink_of(invocation, name) as (_, sink):
        letters = sink.dead_letters(name, ids=[letter_id], limit=1)
    if not letters:
        raise NotFound(f"{name} has no dead letter {letter_id}")
    (letter,) = letters
    lines = detail_lines(
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
    answer(invocation, _document(letter), lambda: write_lines(lines))


@dead_letters.command()
@click.argument("name")
@ids_argument
@all_option
@pass_invocation
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
    landed = passed_over = 0
    refused: dict[int, str] = {}
    with _sink_of(invocation, name) as (spec, sink):
        target = target_of(parse_sink(spec.sink), parse_options(spec.connector, spec.source))
        for part in _parts(sink, name, ids, all_):
            try:
                done = sink.replay(part, target)
            except SinkUnavailable as away:
                raise SinkUnavailable(f"{away}; {landed} had landed before") from away
            landed += done.landed
            refused |= done.refused
            passed_over += len(part) - done.landed - len(done.refused)

    def write() -> None:
        click.echo(f"{name}: {landed} landed, {len(refused)} refused again")
        if passed_over:
            click.echo(f"  {passed_over} passed over: somebody else is at them, or has just dealt with them")
        for letter_id, error in list(refused.items())[:10]:
            click.echo(f"  {letter_id}: {printable(error)}")

    document = {"name": name, "landed": landed, "refused": refused, "passed_over": passed_over}
    answer(invocation, document, write)
    if refused:
        raise FeedqError(f"{len(refused)} records are refused still; they stay where they are")


@dead_letters.command()
@click.argument("name")
@ids_argument
@all_option
@yes_option
@pass_invocation
def drop(invocation: Invocation, *, name: str, ids: Sequence[int], all_: bool, yes: bool) -> None:
    """Delete refused records for good.

    \b
    Example:
      feedq feed dead-letters drop acme/orders 17 --yes
    """
    with _sink_of(invocation, name) as (_, sink):
        parts = _parts(sink, name, ids, all_)
        which = "all" if all_ else str(len(set(ids)))
        invocation.confirm(f"Delete {which} refused records of {name} for good?", yes=yes)
        dropped = sum(map(sink.drop, parts))
    answer(invocation, {"name": name, "dropped": dropped}, f"{name}: {dropped} dropped")


@contextmanager
def _sink_of(invocation: Invocation, name: str) -> Iterator[tuple[FeedSpec, Sink]]:
    spec = invocation.store.feeds.get(name).spec
    with invocation.open_sink(parse_sink(spec.sink).name) as sink:
        yield spec, sink


def _parts(sink: Sink, name: str, ids: Sequence[int], all_: bool) -> Iterator[list[int]]:
    """Yields the ids of this feed's dead letters, oldest first, some at a time. Raises `InvalidInput` at once."""
    if bool(ids) == all_:
        raise InvalidInput("name the ids of dead letters, or say --all")
    if not all_:
        return iter(_named(sink, name, ids))
    # Up to this one: of a feed that goes on being refused, there would never be an end.
    newest = sink.dead_letters(name, limit=1)
    return _every(sink, name, up_to=newest[0].id) if newest else iter(())


def _every(sink: Sink, name: str, *, up_to: int) -> Iterator[list[int]]:
    last, at_once = 0, FIRST_AT_ONCE
    while letters := [x for x in sink.dead_letters(name, after=last, limit=at_once) if x.id <= up_to]:
        last, at_once = letters[-1].id, _at_once_after(letters)
        yield [letter.id for letter in letters]


def _named(sink: Sink, name: str, ids: Collection[int]) -> list[list[int]]:
    """Raises `NotFound` unless each of them is one of this feed, before anything is done with any."""
    left, at_once = sorted(set(ids)), FIRST_AT_ONCE
    parts: list[list[int]] = []
    missing: list[int] = []
    while left:
        asked, left = left[:at_once], left[at_once:]
        letters = sink.dead_letters(name, ids=asked, limit=len(asked))
        at_once = _at_once_after(letters)
        parts.append(sorted(letter.id for letter in letters))
        missing += sorted(set(asked).difference(parts[-1]))
    if missing:
        raise NotFound(f"{name} has no dead letter {', '.join(map(str, missing))}")
    return parts


def _at_once_after(letters: Sequence[DeadLetter]) -> int:
    """Says how many to take next if they are as large as these; twice as many at most, for they need not be."""
    size = sum(len(letter.record) for letter in letters)
    return max(1, min(AT_ONCE, 2 * len(letters), len(letters) * BYTES_AT_ONCE // max(1, size)))


def _document(letter: DeadLetter) -> dict[str, Any]:
    try:
        record, is_text = letter.record.decode(), True
    except UnicodeDecodeError:
        record, is_text = letter.record.hex(), False
    return {
        "id": letter.id,
        "feed": letter.feed,
        "epoch": letter.epoch,
        "at": letter.at,
        "error": letter.error,
        "cursor": letter.cursor,
        "record" if is_text else "record_hex": record,
    }


def _text(record: bytes) -> str:
    return printable(record.decode("utf-8", "backslashreplace"))
