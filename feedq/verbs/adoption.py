"""Adopts a checkpoint that a feed of the same name has left in a sink: deliberately, and never by itself.

For feeds that were removed and declared again, and for an installation whose control database was lost: its feeds
are declared anew, and find in the sink what their namesakes have left there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed, FeedSpec, StartCursor, TargetState
from feedq.errors import Conflict, FeedqError, InvalidInput, NotFound, SinkUnavailable
from feedq.sinks.base import Checkpoint, CheckpointChange, Judge, Sink, anybody, parse_sink
from feedq.sinks.checkpoints import owner_of
from feedq.verbs.manifest.changes import Action, Change

T = TypeVar("T")
OpenSink = Callable[[str], AbstractContextManager[Sink]]
"""Opens a session with a named sink. Raises `InvalidInput` when it is not set up here."""


def choose(sink: Sink, feed: Feed, *, number: int | None = None, force: bool = False) -> Checkpoint:
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
            f"no other feed named {feed.name!r} has a checkpoint in the sink; to be adopted are: {numbers}"
        )
    if len(found) > 1:
        listed = "\n".join(f"  {one.feed_id}: {owner_of(one)}" for one in found)
        raise InvalidInput(
            f"the sink has several checkpoints of that name; choose one with --number\n{listed}"
        )
    own = [one for one in known if one.feed_uuid == feed.identity.feed and one.records]
    if own and not force:
        raise Conflict(
            f"feed {feed.name!r} has landed {own[0].records} records of its own since it was declared; they stay, "
            "and some of them may be there twice. --force adopts all the same"
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
    """What sinks know of feeds that are about to be declared, by name; and what kept us from asking others."""
    found: dict[str, Checkpoint] = {}
    unasked: list[str] = []
    for name, named in _by_sink((spec, spec) for spec in specs):
        try:
            with open_sink(name) as sink:
                known = sink.checkpoints(list(named))
        except FeedqError as error:
            unasked.append(f"sink {name!r} could not be asked whether it knows these feeds: {error}")
        else:
            found |= {one.feed: one for one in sorted(known, key=lambda one: one.updated_at)}
    return found, unasked


@dataclass(frozen=True, slots=True)
class Begun:
    """Changes of feeds, with what to know of new ones and where they begin."""

    changes: Sequence[Change]
    starts: Mapping[str, Checkpoint | StartCursor]
    """Of those that begin elsewhere than their sources do, by name."""
    unasked: Sequence[str]
    """What kept us from asking sinks whether they know the new feeds."""


def begun(
    changes: Sequence[Change], resumes: Mapping[str, StartCursor], open_sink: OpenSink, *, adopt: bool
) -> Begun:
    """Raises `SinkUnavailable` when a sink that is to be adopted from cannot be asked."""
    added = [c.spec for c in changes if c.action is Action.ADD and isinstance(c.spec, FeedSpec)]
    known, unasked = _known(added, open_sink)
    if adopt and unasked:
        raise SinkUnavailable("\n".join(unasked))
    starts: dict[str, Checkpoint | StartCursor] = {**resumes, **(known if adopt else {})}
    notes: dict[str, str] = {}
    for spec in added:
        if (last := known.get(spec.name)) is not None:
            what = "it is left alone; --adopt goes on from its cursor"
            if spec.name in starts:
                what = "adopted" if adopt else "it is left alone, as the manifest says where to begin"
            sink = parse_sink(spec.sink).name
            notes[spec.name] = f"sink {sink!r} has a checkpoint of {owner_of(last)}: {what}"
    noted = [replace(c, note=notes[c.name]) if c.noun == "feed" and c.name in notes else c for c in changes]
    return Begun(noted, starts, unasked)


def resumes_of(feeds: Iterable[Feed], open_sink: OpenSink) -> dict[str, StartCursor]:
    """Where these feeds stand in their sinks, by name; those that have begun. Raises `SinkUnavailable`."""
    found: dict[str, StartCursor] = {}
    for name, named in _by_sink((feed.spec, feed) for feed in feeds):
        with open_sink(name) as sink:
            for one in sink.checkpoints(list(named)):
                feed = named[one.feed]
                if one.cursor is not None and one.feed_uuid == feed.identity.feed:
                    found[feed.name] = StartCursor(one.cursor, one.records)
    return found


def _by_sink(items: Iterable[tuple[FeedSpec, T]]) -> Iterable[tuple[str, dict[str, T]]]:
    """What is by the name of its feed, for each sink."""
    by_sink: dict[str, dict[str, T]] = {}
    for spec, item in items:
        by_sink.setdefault(parse_sink(spec.sink).name, {})[spec.name] = item
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
