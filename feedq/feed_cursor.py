"""The cursor of a feed in the hands of a person: shown, set, reset, rewound, and taken back.

What is decided here is which cursor comes next, and which rows go with it; `feedq.sinks.cursor_change` makes it so
in one transaction of the sink. The control database is told afterwards, and has the feed start anew: the owner of
a quiet source would notice only with its next record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from feedq.authorship import require_own
from feedq.connectors.base import ConnectorOptions, parse_options, show_cursor
from feedq.errors import Conflict, InvalidInput
from feedq.model import JSON, ChangedCursor, Feed, FeedSpec
from feedq.sinks.base import (
    Checkpoint,
    CursorChange,
    LandedRows,
    Sink,
    Target,
    parse_sink,
    target_of_feed,
)
from feedq.sinks.cursors import check_cursor
from feedq.sinks.mapping import Origin
from feedq.store.base import Store

Choose = Callable[[JSON, ChangedCursor | None], JSON]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants of a cursor: the verb, and how the new cursor follows from the present one."""

    verb: str
    choose: Choose


def checkpoint_of(sink: Sink, feed: Feed) -> Checkpoint | None:
    """Where a feed stands; None when it has not begun. Raises `SinkUnavailable`."""
    assert feed.identity is not None, "a feed of the store has one"
    known = sink.checkpoints([feed.name])
    return next((one for one in known if one.is_of(feed.id, feed.name, feed.identity)), None)


def change(
    store: Store, sink: Sink, feed: Feed, wish: Wish, *, delete: bool = False, dry_run: bool = False
) -> ChangedCursor:
    """Change the cursor of a feed, which may be running.

    With ``delete`` what it has landed after the new cursor is deleted in the same commit. A ``dry_run`` does all
    of it and takes it back. Raises `InvalidInput`, `Conflict`, `SinkUnavailable`.
    """
    assert feed.identity is not None, "a feed of the store has one"
    rows = _landed_rows(store, feed) if delete else None

    def choose(before: JSON, last: ChangedCursor | None) -> JSON:
        # Within the sink's transaction, once the checkpoint is locked: the feed may have changed hands meanwhile.
        require_own(store.feeds.get(feed.name).spec.tenant, f"feed {feed.name!r}")
        return wish.choose(before, last)

    asked = CursorChange(feed.id, feed.name, feed.identity, wish.verb, choose, rows, dry_run)
    done = sink.change_cursor(asked)
    if not dry_run:
        store.feeds.cursor_changed(feed.name, done)
    return done


# -- wishes --------------------------------------------------------------------------------------------


def set_to(feed: Feed, cursor: JSON) -> Wish:
    """Raises `InvalidInput` for what is no cursor of this feed's connector."""
    check_cursor(_options(feed.spec), cursor)
    return Wish("set", lambda before, last: cursor)


def reset(feed: Feed) -> Wish:
    """Begin where the feed began."""
    return Wish("reset", lambda before, last: feed.spec.initial_cursor)


def rewind(feed: Feed, *, records: int | None = None, to: datetime | None = None) -> Wish:
    """Go back by so many records, or to a moment."""
    options = _options(feed.spec)

    def choose(before: JSON, last: ChangedCursor | None) -> JSON:
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
                "cursor with `feedq feed cursor set`, or begin again with `reset`"
            ) from None

    return Wish("rewind", choose)


def undo(feed: Feed, *, force: bool = False) -> Wish:
    """Go back to the cursor before the last change."""

    def choose(before: JSON, last: ChangedCursor | None) -> JSON:
        if last is None:
            raise InvalidInput(
                f"the cursor of feed {feed.name!r} was never changed: there is nothing to undo"
            )
        if last.deleted and not force:
            raise Conflict(
                f"feed {feed.name!r}: the last change deleted {last.deleted} rows, and undo does not bring "
                "them back: they would be missing. Let the feed land them again, or say --force"
            )
        return last.before

    return Wish("undo", choose)


# -- which rows ----------------------------------------------------------------------------------------


def _landed_rows(store: Store, feed: Feed) -> LandedRows:
    options, target = _options(feed.spec), target_of_feed(feed.spec)
    says_whose = not target.is_mapped or any(source.origin is Origin.FEED for source in target.columns)
    neighbours = {} if says_whose else _neighbours(store, feed, target)
    pointer = getattr(options, "cursor", None)
    return LandedRows(
        target, pointer if isinstance(pointer, str) else None, options.cursor_in_record, neighbours
    )


def _neighbours(store: Store, feed: Feed, target: Target) -> dict[str, Target]:
    """The other feeds that may land in the same table, by name; whatever schema they name."""
    table, sink = target.table.rpartition(".")[2], parse_sink(feed.spec.sink).name
    found: dict[str, Target] = {}
    after = ""
    while page := store.feeds.declared(after=after):
        after = page[-1].name
        for other in page:
            named = other.spec.sink
            there = str(named.get("table", "")).rpartition(".")[2] == table
            if other.id != feed.id and there and named.get("name", "default") == sink:
                found[other.name] = target_of_feed(other.spec)
    return found


def _options(spec: FeedSpec) -> ConnectorOptions:
    return parse_options(spec.connector, spec.source)
