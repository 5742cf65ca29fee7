"""The records of a feed: dead letters, to read, replay and drop; fields that no column takes, and columns for
them; and records as they land."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.control.store.taps import listen
from feedq.core.model import FeedView
from feedq.core.notices import new_fields
from feedq.core.roles import AccessRole
from feedq.core.tap import LIMIT_MAX, SECONDS_MAX
from feedq.errors import Conflict, InvalidInput, NotFound, SinkUnavailable
from feedq.sinks.base import DeadLetter, Sink, target_of_feed
from feedq.sinks.mapping import ColumnType, Drift
from feedq.telemetry.event_names import EventKind
from feedq.verbs.cursors import sink_of, still_own
from feedq.verbs.registry import At, Cursor, Expected, Limit, NameArgument, Page, page_of, page_place, verb

ID_MAX: Final = 2**63 - 1
AT_ONCE: Final = 20
"""Bounds one transaction of a replay, and what is held of records in memory: a record may have a mebibyte, or more
where its feed allows that."""

LetterId = Annotated[int, Meta(ge=1, le=ID_MAX)]
LetterIds = Annotated[tuple[LetterId, ...], Meta(max_length=10_000)]


@dataclass(frozen=True, slots=True)
class DeadLetterDocument:
    """A refused record; ``record_hex`` in the place of ``record`` if it is not a text."""

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
    """What a replay of dead letters did."""

    name: str
    landed: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    """Why they were refused again, by their ids."""
    passed_over: int = 0
    """Skipped: somebody else replays or drops them, or has just done so."""
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
    """List the dead letters of a feed, newest first."""
    (before,) = page_place(cursor, int) or (None,)
    with sink_of(at, at.feed(name)) as sink:
        found = sink.dead_letters(name, before=before, limit=limit + 1)
    return page_of(list(map(_document, found)), limit, lambda letter: (letter.id,))


@verb("GET /feeds/{name}/dead-letters/{id}")
def show_dead_letter(at: At, *, name: NameArgument, id: LetterId) -> DeadLetterDocument:
    """Show one dead letter."""
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
    """Land dead letters as the feed is declared now: those with these ids, or all.

    Each lands once, however often this is repeated; what is refused again stays.
    """
    feed, found = at.own_feed(name, expected), Replayed(name, dry_run=dry_run)
    judge, are_left = still_own(at, name), True
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
    judge = still_own(at, name)
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
        raise InvalidInput("give the ids of dead letters, or --all")
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


# -- fields that no column takes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriftDocument:
    """Fields that no column takes, and the statements that add columns for them."""

    name: str
    drift: Drift
    """What the feed does with such fields."""
    fields: Mapping[str, str]
    """The types of the fields, by name."""
    statements: Sequence[str]
    applied: bool


@verb("GET /feeds/{name}/drift")
def show_drift(at: At, *, name: NameArgument) -> DriftDocument:
    """Show the fields of a feed's records that have no column."""
    feed = at.feed(name)
    view = at.store.feeds.view(name)
    with sink_of(at, feed) as sink:
        return _drift_of(view, _added(sink, view, dry_run=True), applied=False)


@verb("POST /feeds/{name}/drift", role=AccessRole.OPERATOR)
def add_columns(
    at: At, *, name: NameArgument, expected: Expected = None, dry_run: bool = False
) -> DriftDocument:
    """Add columns for the fields that have none. May be repeated; it adds what is still missing."""
    feed = at.own_feed(name, expected)
    view = at.store.feeds.view(name)
    with sink_of(at, feed) as sink:
        if not dry_run and (drift := target_of_feed(feed.spec).drift) is not Drift.ADD:
            raise Conflict(
                f"feed {name!r}: sink.drift is {drift}, so nothing would fill new columns: set it to add "
                "(`feedq feed set NAME sink.drift=add`), or map the fields in sink.columns"
            )
        statements = _added(sink, view, dry_run=True)
        if statements and not dry_run:
            # Before it is done: the feed may have changed hands meanwhile, and then nothing is.
            detail = {"statements": statements}
            at.store.feeds.tell(name, EventKind.COLUMNS_ADDED, detail, before=view.feed.version)
            statements = _added(sink, view, dry_run=False)
        return _drift_of(view, statements, applied=not dry_run)


def _added(sink: Sink, view: FeedView, *, dry_run: bool) -> list[str]:
    """The statements that add columns for what no column takes. Raises `InvalidInput`, `SinkUnavailable`."""
    fields = sorted(new_fields(view.lease.noticed).items())
    if not fields:
        return []
    wanted = {name: ColumnType(type_) for name, type_ in fields}
    return sink.add_columns(target_of_feed(view.feed.spec), wanted, dry_run=dry_run)


def _drift_of(view: FeedView, statements: Sequence[str], *, applied: bool) -> DriftDocument:
    drift = target_of_feed(view.feed.spec).drift
    return DriftDocument(view.feed.name, drift, new_fields(view.lease.noticed), statements, applied)


# -- a tap ---------------------------------------------------------------------------------------------


Seconds = Annotated[int, Meta(ge=1, le=SECONDS_MAX, description="How long to listen, in seconds.")]
Records = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="End after this many records.")]


@verb("GET /feeds/{name}/tap", role=AccessRole.OPERATOR)
def tap_feed(
    at: At, *, name: NameArgument, seconds: Seconds = 600, limit: Records = LIMIT_MAX
) -> Iterator[dict[str, Any] | None]:
    """Show records of a running feed as they land.

    Each ``event`` is a ``record``, ``left_out`` (records that are not shown because there are too many) or
    ``end``. It shows customer data, so it needs the role of an operator, and the history says who listened.
    """
    feed = at.own_feed(name)
    return listen(at.store.taps, feed.id, seconds=seconds, limit=limit)
