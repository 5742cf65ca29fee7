"""Many feeds declared at once, as a plan says: where new ones begin, and then the changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from feedq.control.store.feeds import Feeds
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed, FeedSpec, StartCursor, Version
from feedq.errors import SinkUnavailable
from feedq.sinks.base import Checkpoint
from feedq.verbs import bulk
from feedq.verbs.adoption import Adopting, Newcomer, OpenSink, known_newcomers
from feedq.verbs.bulk import BulkResult, Done
from feedq.verbs.manifest.changes import Action, Change
from feedq.verbs.manifest.feed_entry import validate

Starts = Mapping[str, Checkpoint | StartCursor]


@dataclass(frozen=True, slots=True)
class Begun:
    """Changes of feeds, with what to know of new ones and where they begin."""

    changes: Sequence[Change]
    starts: Starts
    """Of those that begin elsewhere than their sources do, by name."""
    unasked: Sequence[str]
    """What kept us from asking sinks whether they know the new feeds."""


def begun(
    changes: Sequence[Change], resumes: Mapping[str, StartCursor], open_sink: OpenSink, *, adopt: bool
) -> Begun:
    """Raises `SinkUnavailable` when a sink that is to be adopted from cannot be asked."""
    added = [c.spec for c in changes if c.action is Action.ADD and isinstance(c.spec, FeedSpec)]
    newcomers, unasked = known_newcomers(added, open_sink)
    if adopt and unasked:
        raise SinkUnavailable("\n".join(unasked))
    starts: dict[str, Checkpoint | StartCursor] = dict(resumes)
    if adopt:
        starts |= {name: newcomer.last for name, newcomer in newcomers.items()}
    notes = {name: _note(newcomer, starts.get(name)) for name, newcomer in newcomers.items()}
    noted = [replace(c, note=notes[c.name]) if c.noun == "feed" and c.name in notes else c for c in changes]
    return Begun(noted, starts, unasked)


def _note(newcomer: Newcomer, start: Checkpoint | StartCursor | None) -> str:
    match start:
        case Checkpoint():
            return f"{newcomer.note()}: adopted"
        case StartCursor():
            return f"{newcomer.note()}: it is left alone, as the manifest says where to begin"
    return f"{newcomer.note()}: it is left alone; --adopt goes on from its cursor"


def declare(
    store: PostgresStore,
    open_sink: OpenSink,
    changes: Sequence[Change],
    starts: Starts,
    *,
    expected: Version | None = None,
    told: Done = lambda done: None,
) -> BulkResult[Change, Feed | None]:
    """Make these changes of feeds; ``expected`` is the version of a single one.

    Raises `Unavailable`: what was done before stays done.
    """
    special = [c for c in changes if c.action is Action.ADD and c.name in starts]
    names = {change.name for change in special}
    plain = [change for change in changes if change.name not in names]
    result: BulkResult[Change, Feed | None] = BulkResult()
    made = bulk.each(store.feeds, plain, partial(carry_out, expected=expected), told=told)
    result.done += made.done
    result.failed += made.failed
    with Adopting(store, open_sink) as adopting:

        def begin(change: Change) -> None:
            assert isinstance(change.spec, FeedSpec)
            adopting.add(change.spec, starts[change.name], store.feeds.add)

        return bulk.one_by_one(special, begin, result, told=lambda done: told(len(plain) + done))


def add_feed(store: PostgresStore, spec: FeedSpec) -> Feed:
    """Declare a new feed. Raises `InvalidInput` or `Conflict` (the name is taken)."""
    validate(spec)
    return store.feeds.add(spec)


def edit_feed(store: PostgresStore, spec: FeedSpec) -> Feed:
    """Replace the declaration of the feed of that name. Raises `InvalidInput`, `NotFound`."""
    validate(spec)
    return store.feeds.edit(spec.name, spec)


def carry_out(feeds: Feeds, change: Change, *, expected: Version | None = None) -> Feed:
    """One change of a plan, whose declarations have been checked; repeating a plan that broke off half way does
    what is left of it."""
    if change.action is Action.REMOVE:
        return feeds.remove(change.name, expected=expected)
    assert isinstance(change.spec, FeedSpec)
    if change.action is Action.ADD:
        return feeds.add(change.spec)
    return feeds.edit(change.name, change.spec, expected=expected)
