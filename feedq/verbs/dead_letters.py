"""Dead letters: the records of a feed that its sink refused; to read, to land after all, and to drop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.core.roles import AccessRole
from feedq.errors import InvalidInput, NotFound, SinkUnavailable
from feedq.sinks.base import DeadLetter, Sink, target_of_feed
from feedq.telemetry.event_names import EventKind
from feedq.verbs.cursors import require_still_own, sink_of
from feedq.verbs.registry import At, Cursor, Expected, Limit, NameArgument, Page, page_of, page_place, verb

ID_MAX: Final = 2**63 - 1
AT_ONCE: Final = 20
"""Bounds one transaction of a replay, and what is held of records in memory: a record may have a mebibyte, or more
where its feed allows that."""

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


@dataclass(slots=True)
class Replayed:
    """What became of records that were to land after all."""

    name: str
    landed: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    """Why they were refused again, by their ids."""
    passed_over: int = 0
    """Somebody else is at them, or has just dealt with them."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """How many dead letters were deleted, or would be."""

    name: str
    dropped: int
    dry_run: bool


@verb("GET /feeds/{name}/dead-letters")
def list_dead_letters(
    at: At, *, name: NameArgument, limit: Limit = 100, cursor: Cursor = None
) -> Page[DeadLetterDocument]:
    """Dead letters of a feed, newest first."""
    (before,) = page_place(cursor, int) or (None,)
    with sink_of(at, at.feed(name)) as sink:
        found = sink.dead_letters(name, before=before, limit=limit + 1)
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
    feed, found = at.own_feed(name, expected), Replayed(name, dry_run=dry_run)
    judge, are_left = partial(require_still_own, at, name), True
    target = target_of_feed(feed.spec)
    with sink_of(at, feed) as sink:
        chosen = _parts(sink, name, ids, all)
        if dry_run:
            found.landed = sum(map(len, chosen))
            return found
        try:
            for part in chosen:
                done = sink.replay(part, target, judge=judge)
                found.landed += done.landed
                found.refused |= done.refused
                found.passed_over += len(part) - done.landed - len(done.refused)
                at.told(found.landed + len(found.refused) + found.passed_over, None)
            are_left = bool(sink.dead_letters(name, limit=1))
        except SinkUnavailable as away:
            raise SinkUnavailable(f"{away}; {found.landed} had landed before") from away
        finally:
            # A later part may fail: the earlier ones are done.
            told = {"landed": found.landed, "refused": len(found.refused)}
            at.store.feeds.dead_letters_gone(
                name, EventKind.DEAD_LETTERS_REPLAYED, told, gone=found.landed, are_left=are_left
            )
    return found


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
        chosen = _parts(sink, name, ids, all)
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


# -- some at a time ------------------------------------------------------------------------------------


def _parts(sink: Sink, name: str, ids: Sequence[int], all_: bool) -> Iterator[list[int]]:
    """Ids of dead letters of this feed, oldest first, some at a time.

    Raises at once: `InvalidInput`, and `NotFound` unless each that is named is one of this feed.
    """
    if bool(ids) == all_:
        raise InvalidInput("name the ids of dead letters, or say --all")
    if not all_:
        left = sorted(set(ids))
        parts = [left[start : start + AT_ONCE] for start in range(0, len(left), AT_ONCE)]
        there = {one.id for part in parts for one in sink.dead_letters(name, ids=part, limit=AT_ONCE)}
        if missing := [one for one in left if one not in there]:
            raise NotFound(f"{name} has no dead letter {', '.join(map(str, missing))}")
        return iter(parts)
    # Up to this one: of a feed that goes on being refused, there would never be an end.
    newest = sink.dead_letters(name, limit=1)
    return _every(sink, name, up_to=newest[0].id) if newest else iter(())


def _every(sink: Sink, name: str, *, up_to: int) -> Iterator[list[int]]:
    last = 0
    while ids := [x.id for x in sink.dead_letters(name, after=last, limit=AT_ONCE) if x.id <= up_to]:
        last = ids[-1]
        yield ids
