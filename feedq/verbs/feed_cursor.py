"""The cursor of a feed in the hands of a person: shown, set, reset and rewound, while the feed runs or not.

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

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from feedq.connectors.base import ConnectorOptions, parse_options, show_cursor
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import JSON, ChangedCursor, Feed, FeedSpec, StartCursor
from feedq.errors import InvalidInput
from feedq.sinks.base import Checkpoint, CheckpointChange, Sink, parse_sink
from feedq.sinks.checkpoints import check_cursor

Choose = Callable[[JSON], JSON]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants of a cursor: the verb, and how the new cursor follows from the present one."""

    verb: str
    choose: Choose


def checkpoint_of(sink: Sink, feed: Feed) -> Checkpoint | None:
    """Where a feed stands; None when it has not begun. Raises `SinkUnavailable`."""
    known = sink.checkpoints([feed.name])
    return next((one for one in known if one.feed_uuid == feed.identity.feed), None)


def change(
    store: PostgresStore, sink: Sink, feed: Feed, wish: Wish, *, dry_run: bool = False
) -> ChangedCursor:
    """Change the cursor of a feed, which may be running; a ``dry_run`` only says what would come.

    Raises `InvalidInput`, `Conflict`, `SinkUnavailable`, and `Forbidden` when the feed is not the author's to
    change.
    """
    duplicates = not parse_sink(feed.spec.sink).key

    def changed(own: Checkpoint | None) -> ChangedCursor:
        before, records = (None, 0) if own is None else (own.cursor, own.records)
        return ChangedCursor(wish.verb, before, wish.choose(before), records, duplicates)

    if dry_run:
        return changed(checkpoint_of(sink, feed))
    done = list[ChangedCursor]()

    def choose(own: Checkpoint | None) -> StartCursor:
        # Once more after a deadlock: the last one counts.
        done[:] = [changed(own)]
        return StartCursor(done[0].after, done[0].records)

    def judge() -> None:
        store.feeds.cursor_changed(feed.name, done[0])

    sink.change_checkpoint(CheckpointChange(feed.id, feed.name, feed.identity, choose, judge=judge))
    return done[0]


# -- wishes --------------------------------------------------------------------------------------------


def set_to(feed: Feed, cursor: JSON) -> Wish:
    """Raises `InvalidInput` for what is no cursor of this feed's connector."""
    check_cursor(_options(feed.spec), cursor)
    return Wish("set", lambda before: cursor)


def reset(feed: Feed) -> Wish:
    """Begin where the feed began."""
    return Wish("reset", lambda before: feed.spec.initial_cursor)


def rewind(feed: Feed, *, records: int | None = None, to: datetime | None = None) -> Wish:
    """Go back by so many records, or to a moment."""
    options = _options(feed.spec)

    def choose(before: JSON) -> JSON:
        if before is None:
            raise InvalidInput(f"feed {feed.name!r} has no cursor yet: there is nothing to go back from")
        try:
            if to is not None:
                return options.cursor_at(before, to)
            assert records is not None, "either of them is given"
            return options.cursor_back(before, records)
        except ValueError as error:
            raise InvalidInput(
                f"feed {feed.name!r}: from cursor {show_cursor(before)} nobody can go back so: {error}. Name the "
                "cursor with `feedq feed cursor set`, or begin again with `feedq feed cursor rewind --to-start`"
            ) from None

    return Wish("rewind", choose)


def _options(spec: FeedSpec) -> ConnectorOptions:
    return parse_options(spec.connector, spec.source)
