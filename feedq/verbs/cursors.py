"""The cursor of a feed: where it stands in its source, and having it go on from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from feedq.core.authorship import require_own
from feedq.core.model import ChangedCursor, Feed
from feedq.core.roles import AccessRole
from feedq.errors import InvalidInput
from feedq.sinks.base import Sink, parse_sink
from feedq.sinks.checkpoints import owner_of
from feedq.verbs import adoption, feed_cursor
from feedq.verbs.feed_cursor import Wish
from feedq.verbs.registry import At, Expected, Moment, NameArgument, verb


class CursorVerb(StrEnum):
    """How a cursor is changed."""

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
    """The checkpoint that a feed goes on from."""

    name: str
    owner: str
    """Whose it was."""
    dry_run: bool


@verb("GET /feeds/{name}/cursor")
def show_cursor(at: At, *, name: NameArgument) -> CursorDocument:
    """Where a feed stands."""
    feed = at.feed(name)
    with sink_of(at, feed) as sink:
        found = feed_cursor.checkpoint_of(sink, feed)
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
    to: Moment | None = None,
    expected: Expected = None,
    dry_run: bool = False,
) -> CursorChange:
    """Have a feed go on from elsewhere in its source.

    ``set`` goes on after ``cursor``, ``reset`` begins where the feed began at first, ``rewind`` goes back by so
    many ``records`` or ``to`` a time. The feed may be running; it starts anew from there.
    """
    feed = at.own_feed(name, expected)
    wish = _wish(feed, change, cursor=cursor, records=records, to=to)
    with sink_of(at, feed) as sink:
        made = feed_cursor.change(at.store, sink, feed, wish, dry_run=dry_run)
    return CursorChange(name, made, dry_run)


def _wish(feed: Feed, change: CursorVerb, *, cursor: Any, records: int | None, to: datetime | None) -> Wish:
    match change:
        case CursorVerb.SET:
            return feed_cursor.set_to(feed, cursor)
        case CursorVerb.RESET:
            return feed_cursor.reset(feed)
        case CursorVerb.REWIND:
            if (records is None) == (to is None):
                raise InvalidInput("rewind: say either records or to")
            return feed_cursor.rewind(feed, records=records, to=to)


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
    """Have a feed go on from the checkpoint that another feed of its name left in the sink.

    ``number`` says which, if there are several; ``force`` adopts even if the feed has landed records of its own.
    """
    feed = at.own_feed(name, expected)
    with sink_of(at, feed) as sink:
        old = adoption.choose(sink, feed, number=number, force=force)
        if not dry_run:
            adoption.adopt(sink, feed, old, partial(require_still_own, at, name))
    if not dry_run:
        at.store.feeds.restart(name)
    return Adopted(name, owner_of(old), dry_run)


@contextmanager
def sink_of(at: At, feed: Feed) -> Iterator[Sink]:
    """A session with the sink of a feed. Raises `SinkUnavailable`, `InvalidInput`."""
    with at.open_sink(parse_sink(feed.spec.sink).name) as sink:
        yield sink


def require_still_own(at: At, name: str) -> None:
    """Raises `Forbidden` unless the feed is still the caller's.

    Asked within the sink's transaction: the feed may have changed hands since it was looked at.
    """
    require_own(at.store.feeds.get(name).spec.tenant, f"feed {name!r}")
