"""Dead letters: the records of a feed that its sink refused; to read, to land after all, and to drop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.core.roles import AccessRole
from feedq.errors import NotFound
from feedq.sinks.base import DeadLetter
from feedq.telemetry.event_names import EventKind
from feedq.verbs.cursors import require_still_own, sink_of
from feedq.verbs.refused_records import ReplayOutcome, parts, replay_parts
from feedq.verbs.registry import At, Cursor, Expected, Limit, NameArgument, Page, page_of, page_place, verb

ID_MAX: Final = 2**63 - 1

LetterId = Annotated[int, Meta(ge=1, le=ID_MAX)]
LetterIds = Annotated[tuple[LetterId, ...], Meta(max_length=10_000)]


@dataclass(frozen=True, slots=True)
class DeadLetterDocument:
    """A refused record; ``record_hex`` in the place of ``record`` if it is no text."""

    id: int
    feed: str
    epoch: int
    at: datetime
    error: str
    cursor: Any
    record: str | None = None
    record_hex: str | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of records that were to land after all."""

    name: str
    landed: int
    refused: dict[int, str]
    """Why they were refused again, by their ids."""
    passed_over: int
    """Somebody else is at them, or has just dealt with them."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """How many dead letters were deleted, or would be."""

    name: str
    dropped: int
    dry_run: bool


@verb("GET /feeds/{name}/dead-letters")
def list_dead_letters(
    at: At, *, name: NameArgument, newest: bool = False, limit: Limit = 100, cursor: Cursor = None
) -> Page[DeadLetterDocument]:
    """Dead letters of a feed, oldest first, or ``newest`` first."""
    (place,) = page_place(cursor, int) or (None if newest else 0,)
    with sink_of(at, at.feed(name)) as sink:
        if newest:
            found = sink.dead_letters(name, before=place, limit=limit + 1)
        else:
            found = sink.dead_letters(name, after=place, limit=limit + 1)
    return page_of(list(map(_document, found)), limit, lambda letter: (letter.id,))


@verb("GET /feeds/{name}/dead-letters/{id}")
def show_dead_letter(at: At, *, name: NameArgument, id: LetterId) -> DeadLetterDocument:
    """One dead letter."""
    with sink_of(at, at.feed(name)) as sink:
        found = sink.dead_letters(name, ids=[id], limit=1)
    if not found:
        raise NotFound(f"{name} has no dead letter {id}")
    return _document(found[0])


@verb("POST /feeds/{name}/dead-letters/replay", role=AccessRole.OPERATOR)
def replay_dead_letters(
    at: At,
    *,
    name: NameArgument,
    ids: LetterIds = (),
    all: bool = False,
    expected: Expected = None,
    dry_run: bool = False,
) -> Replayed:
    """Land dead letters after all, as the feed is declared now: those with these ids, or all.

    Each lands once, however often this is repeated; what is refused again stays.
    """
    feed, outcome = at.own_feed(name, expected), ReplayOutcome()

    def tried(so_far: int) -> None:
        at.told(so_far, None)

    with sink_of(at, feed) as sink:
        chosen = parts(sink, name, ids, all)
        if dry_run:
            return Replayed(name, sum(map(len, chosen)), {}, 0, dry_run=True)
        judge, are_left = partial(require_still_own, at, name), True
        try:
            replay_parts(feed.spec, sink, chosen, judge, outcome, on_progress=tried)
            are_left = bool(sink.dead_letters(name, limit=1))
        finally:
            # A later part may fail: the earlier ones are done.
            told = {"landed": outcome.landed, "refused": len(outcome.refused)}
            at.store.feeds.dead_letters_gone(
                name, EventKind.DEAD_LETTERS_REPLAYED, told, gone=outcome.landed, are_left=are_left
            )
    return Replayed(name, outcome.landed, outcome.refused, outcome.passed_over, dry_run=False)


@verb("POST /feeds/{name}/dead-letters/drop", role=AccessRole.OPERATOR)
def drop_dead_letters(
    at: At,
    *,
    name: NameArgument,
    ids: LetterIds = (),
    all: bool = False,
    expected: Expected = None,
    dry_run: bool = False,
) -> Dropped:
    """Delete dead letters for good: those with these ids, or all."""
    feed, dropped, are_left = at.own_feed(name, expected), 0, True
    judge = partial(require_still_own, at, name)
    with sink_of(at, feed) as sink:
        chosen = parts(sink, name, ids, all)
        if dry_run:
            return Dropped(name, sum(map(len, chosen)), dry_run=True)
        try:
            for part in chosen:
                dropped += sink.drop(part, judge=judge)
                at.told(dropped, None)
            are_left = bool(sink.dead_letters(name, limit=1))
        finally:
            at.store.feeds.dead_letters_gone(
                name, EventKind.DEAD_LETTERS_DROPPED, {"dropped": dropped}, gone=dropped, are_left=are_left
            )
    return Dropped(name, dropped, dry_run=False)


def _document(letter: DeadLetter) -> DeadLetterDocument:
    try:
        shown = {"record": letter.record.decode()}
    except UnicodeDecodeError:
        shown = {"record_hex": letter.record.hex()}
    return DeadLetterDocument(
        letter.id, letter.feed, letter.epoch, letter.at, letter.error, letter.cursor, **shown
    )
