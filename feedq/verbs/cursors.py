"""The cursor of a feed: where it stands in its source, and having it go on from elsewhere, or from the checkpoint
that a feed of the same name has left in its sink. A checkpoint is adopted deliberately, and never by itself: for
feeds that were removed and declared again, and for an installation whose control database was lost.

::

    sink: lock the checkpoint ─ choose the cursor ─ new cursor, new commit id ─────────────── commit
    control database:                                             history, restart: commit ─╯

What is decided here is which cursor comes next; `Sink.change_checkpoint` makes the change in one transaction.
Right before its commit the history gets both cursors and the feed is restarted, since the owner of a quiet source
would notice only with its next record. Killed at any moment, the command leaves the old cursor or the new one, and
once it is the new one, the history has the old one. Killed between the two commits, it leaves the old cursor, and
in the history a change that did not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from feedq.connectors import base as connectors
from feedq.control.store.postgresql import PostgresStore
from feedq.core.differences import Action, Change
from feedq.core.model import JSON, ChangedCursor, Feed, FeedSpec, StartCursor, TargetState
from feedq.core.moments import DEFAULT_ZONE, parse_moment_near
from feedq.core.roles import AccessRole
from feedq.errors import Conflict, FeedqError, InvalidInput, NotFound, SinkUnavailable
from feedq.sinks.base import Checkpoint, CheckpointChange, Judge, Sink, anybody, check_cursor, parse_sink
from feedq.verbs.registry import At, Expected, NameArgument, OpenSink, Past, verb


class CursorVerb(StrEnum):
    """The kinds of cursor change."""

    SET = "set"
    RESET = "reset"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class CursorDocument:
    """Where a feed stands; without cursor and epoch, and with 0 records, when it has not begun."""

    name: str
    cursor: Any = None
    records: int = 0
    updated_at: datetime | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CursorChange:
    """A change of a cursor that was made, or would be."""

    name: str
    change: ChangedCursor
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Adopted:
    """The checkpoint from which a feed continues."""

    name: str
    owner: str
    """Whose it was."""
    dry_run: bool


@verb("GET /feeds/{name}/cursor")
def show_cursor(at: At, *, name: NameArgument) -> CursorDocument:
    """Show where a feed stands in its source."""
    feed = at.feed(name)
    with sink_of(at, feed) as sink:
        found = checkpoint_of(sink, feed)
    if found is None:
        return CursorDocument(name)
    return CursorDocument(name, found.cursor, found.records, found.updated_at, found.epoch)


@verb("POST /feeds/{name}/cursor", role=AccessRole.OPERATOR)
def change_cursor(
    at: At,
    *,
    name: NameArgument,
    change: CursorVerb,
    cursor: Any = None,
    records: Annotated[int, Meta(ge=1, le=2**62)] | None = None,
    to: Past | None = None,
    expected: Expected = None,
    dry_run: bool = False,
) -> CursorChange:
    """Make a feed continue from another place in its source.

    ``set`` continues after ``cursor``, ``reset`` starts over where the feed first began, and ``rewind`` goes back
    by a number of ``records`` or ``to`` a time. The feed may be running; it restarts from there.
    """
    feed = at.own_feed(name, expected)
    try:
        at_time = None if to is None else parse_moment_near(to, DEFAULT_ZONE, now=at.store.now(), sign=-1)
    except ValueError as error:
        raise InvalidInput(f"to: {error}") from None
    choose = _next_cursor(feed, change, cursor=cursor, records=records, to=at_time)
    with sink_of(at, feed) as sink:
        return CursorChange(name, changed(at.store, sink, feed, change, choose, dry_run=dry_run), dry_run)


def _next_cursor(
    feed: Feed, change: CursorVerb, *, cursor: JSON, records: int | None, to: datetime | None
) -> Callable[[JSON], JSON]:
    """How the new cursor follows from the present one. Raises `InvalidInput` for what is not a cursor of this
    feed's connector."""
    options = connectors.parse_options(feed.spec.connector, feed.spec.source)
    if change is CursorVerb.SET:
        check_cursor(options, cursor)
        return lambda before: cursor
    if change is CursorVerb.RESET:
        return lambda before: feed.spec.initial_cursor
    if (records is None) == (to is None):
        raise InvalidInput("rewind: give either records or to")

    def back(before: JSON) -> JSON:
        if before is None:
            raise InvalidInput(f"feed {feed.name!r} has no cursor yet, so it cannot be rewound")
        try:
            if to is not None:
                return options.cursor_at(before, to)
            assert records is not None, "either of them is given"
            return options.cursor_back(before, records)
        except ValueError as error:
            raise InvalidInput(
                f"feed {feed.name!r} cannot be rewound like this from cursor {connectors.show_cursor(before)}: "
                f"{error}. Set a cursor with `feedq feed cursor set`, or start over with "
                "`feedq feed cursor rewind --to-start`"
            ) from None

    return back


def changed(
    store: PostgresStore,
    sink: Sink,
    feed: Feed,
    change: CursorVerb,
    choose: Callable[[JSON], JSON],
    *,
    dry_run: bool = False,
) -> ChangedCursor:
    """Change the cursor of a feed, which may be running; a ``dry_run`` only says what would come.

    Raises `InvalidInput`, `Conflict`, `SinkUnavailable`, and `Forbidden` when the feed is not the author's to
    change.
    """
    duplicates = not parse_sink(feed.spec.sink).key

    def change_of(own: Checkpoint | None) -> ChangedCursor:
        before, records = (None, 0) if own is None else (own.cursor, own.records)
        return ChangedCursor(change, before, choose(before), records, duplicates)

    if dry_run:
        return change_of(checkpoint_of(sink, feed))
    done = list[ChangedCursor]()

    def start_of(own: Checkpoint | None) -> StartCursor:
        # Once more after a deadlock: the last one counts.
        done[:] = [change_of(own)]
        return StartCursor(done[0].after, done[0].records)

    def judge() -> None:
        store.feeds.cursor_changed(feed.name, done[0])

    sink.change_checkpoint(CheckpointChange(feed.id, feed.name, feed.identity, start_of, judge=judge))
    return done[0]


@verb("POST /feeds/{name}/adopt", role=AccessRole.OPERATOR)
def adopt_checkpoint(
    at: At,
    *,
    name: NameArgument,
    number: Annotated[int, Meta(ge=1)] | None = None,
    force: bool = False,
    expected: Expected = None,
    dry_run: bool = False,
) -> Adopted:
    """Make a feed continue from the checkpoint that another feed of the same name left in the sink.

    ``number`` says which one, if there are several; ``force`` adopts it even if the feed has landed records of its
    own.
    """
    feed = at.own_feed(name, expected)
    with sink_of(at, feed) as sink:
        old = to_adopt(sink, feed, number=number, force=force)
        if not dry_run:
            give(sink, feed, old, still_own(at, name))
    if not dry_run:
        at.store.feeds.restart(name)
    return Adopted(name, old.whose, dry_run)


def checkpoint_of(sink: Sink, feed: Feed) -> Checkpoint | None:
    """Where a feed stands; None when it has not begun. Raises `SinkUnavailable`."""
    known = sink.checkpoints([feed.name])
    return next((one for one in known if one.feed_uuid == feed.identity.feed), None)


def sink_of(at: At, feed: Feed) -> AbstractContextManager[Sink]:
    """A session with the sink of a feed. Raises `SinkUnavailable`, `InvalidInput`."""
    return at.open_sink(parse_sink(feed.spec.sink).name)


def still_own(at: At, name: str) -> Judge:
    """Check within the sink's transaction that a feed is still the caller's: its tenant may have changed since it
    was looked up."""

    def judge() -> None:
        at.own_feed(name)

    return judge


# -- checkpoints of namesakes --------------------------------------------------------------------------


def to_adopt(sink: Sink, feed: Feed, *, number: int | None = None, force: bool = False) -> Checkpoint:
    """The checkpoint that a feed may adopt; ``number`` says which, where there are several.

    Raises `NotFound` (there is none), `InvalidInput` (there are several), `Conflict` (the feed has landed records
    of its own, and ``force`` was not given), `SinkUnavailable`.
    """
    known = sink.checkpoints([feed.name])
    others = [one for one in known if one.feed_uuid != feed.identity.feed]
    found = [one for one in others if number in (None, one.feed_id)]
    if not found:
        numbers = ", ".join(str(one.feed_id) for one in others) or "none"
        raise NotFound(
            f"no other feed named {feed.name!r} has a checkpoint in the sink; available: {numbers}"
        )
    if len(found) > 1:
        listed = "\n".join(f"  {one.feed_id}: {one.whose}" for one in found)
        raise InvalidInput(
            f"the sink has several checkpoints of that name; choose one with --number\n{listed}"
        )
    own = [one for one in known if one.feed_uuid == feed.identity.feed and one.records]
    if own and not force:
        raise Conflict(
            f"feed {feed.name!r} has landed {own[0].records} records of its own since it was declared; they stay, "
            "and some of them may be duplicates. --force adopts anyway"
        )
    return found[0]


def give(sink: Sink, feed: Feed, start: Checkpoint | StartCursor, judge: Judge = anybody) -> None:
    """Give a feed a cursor, or the checkpoint of its namesake. Raises `Conflict`, `SinkUnavailable`, as ``judge``
    does."""
    old = start if isinstance(start, Checkpoint) else None
    cursor = StartCursor(start.cursor, start.records)
    sink.change_checkpoint(
        CheckpointChange(feed.id, feed.name, feed.identity, lambda own: cursor, instead_of=old, judge=judge)
    )


def _known(specs: Sequence[FeedSpec], open_sink: OpenSink) -> tuple[dict[str, Checkpoint], list[str]]:
    """The checkpoints that sinks have of feeds about to be declared, by name; and why some could not be asked."""
    found: dict[str, Checkpoint] = {}
    unasked: list[str] = []
    for name, feeds in _by_sink(specs):
        try:
            with open_sink(name) as sink:
                known = sink.checkpoints(feeds)
        except FeedqError as error:
            unasked.append(f"sink {name!r} could not be asked whether it knows these feeds: {error}")
        else:
            found |= {one.feed: one for one in sorted(known, key=lambda one: one.updated_at)}
    return found, unasked


Starts: TypeAlias = Mapping[str, Checkpoint | StartCursor]
"""Where feeds begin that begin elsewhere than their sources do, by name."""


def begun(
    changes: Sequence[Change], resumes: Mapping[str, StartCursor], open_sink: OpenSink, *, adopt: bool
) -> tuple[list[Change], Starts, list[str]]:
    """Changes of feeds, with notes on the new ones; where these begin; and why sinks could not be asked whether
    they know them.

    Raises `SinkUnavailable` when a sink that is to be adopted from cannot be asked.
    """
    added = [c.spec for c in changes if c.action is Action.ADD and isinstance(c.spec, FeedSpec)]
    known, unasked = _known(added, open_sink)
    if adopt and unasked:
        raise SinkUnavailable("\n".join(unasked))
    starts: dict[str, Checkpoint | StartCursor] = {**resumes, **(known if adopt else {})}
    notes: dict[str, str] = {}
    for spec in added:
        if (last := known.get(spec.name)) is not None:
            what = "it is left alone; --adopt continues from its cursor"
            if spec.name in starts:
                what = "adopted" if adopt else "it is left alone, as the manifest says where to begin"
            sink = parse_sink(spec.sink).name
            notes[spec.name] = f"sink {sink!r} has a checkpoint of {last.whose}: {what}"
    noted = [replace(c, note=notes[c.name]) if c.noun == "feed" and c.name in notes else c for c in changes]
    return noted, starts, unasked


def resumes_of(feeds: Sequence[Feed], open_sink: OpenSink) -> dict[str, StartCursor]:
    """Where these feeds stand in their sinks, by name; those that have begun. Raises `SinkUnavailable`."""
    found: dict[str, StartCursor] = {}
    own = {feed.identity.feed for feed in feeds}
    for name, named in _by_sink(feed.spec for feed in feeds):
        with open_sink(name) as sink:
            for one in sink.checkpoints(named):
                if one.cursor is not None and one.feed_uuid in own:
                    found[one.feed] = StartCursor(one.cursor, one.records)
    return found


def _by_sink(specs: Iterable[FeedSpec]) -> Iterable[tuple[str, list[str]]]:
    """The names of the feeds of each sink."""
    by_sink: dict[str, list[str]] = {}
    for spec in specs:
        by_sink.setdefault(parse_sink(spec.sink).name, []).append(spec.name)
    return by_sink.items()


def add_elsewhere(store: PostgresStore, sink: Sink, spec: FeedSpec, start: Checkpoint | StartCursor) -> Feed:
    """Declare a feed that begins elsewhere than its source does: as paused until it has its cursor, so that nobody
    begins it."""
    feed = store.feeds.add(spec.model_copy(update={"target_state": TargetState.PAUSED}))
    try:
        give(sink, feed, start)
    except FeedqError as error:
        raise type(error)(
            f"{error}\nit was declared as paused, without a checkpoint; remove it and apply again"
        ) from error
    if spec.target_state is TargetState.PAUSED:
        return feed
    return store.feeds.set_target(spec.name, TargetState.RUNNING)
