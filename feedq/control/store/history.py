"""History: one event written, how much of all is kept, and all of it read, a page at a time.

A feed whose source is down is placed, claimed and released a thousand times a day. Of a trouble that comes back
within an hour, with nothing in between but new tries, the trigger ``feedq.fold_event`` keeps the latest event: it
takes over the count of the one before it, and since when that was so. The events of the tries are folded in the
same way. Whatever else happens ends that, and the next trouble begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from feedq.control.store.database import Aggregate, Connection, in_transaction, storable_json
from feedq.control.store.protocol import call
from feedq.core.authorship import signed
from feedq.core.model import Event, Feed
from feedq.telemetry.event_names import EventKind

RETENTION_DAYS = 14
EVENTS_PER_FEED = 200
"""The latest events of a feed that are kept: a feed in trouble for weeks must not fill the table."""


def record(
    c: Connection,
    kind: EventKind,
    feed_id: int | None = None,
    *,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write an event."""
    call(c, "record", bool, kind=kind.value, feed=feed_id, told=told_of(detail or {}))


def told_of(detail: Mapping[str, Any]) -> str:
    """What history keeps of a change, with the author of this context."""
    return storable_json(signed(dict(detail)))


PAGE_MAX = 1_000
"""Events of one page."""
_COLUMNS = ", ".join(f"e.{column.name}" for column in fields(Event))
_WIDTH = len(fields(Event))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events: those to which all of it applies."""

    kinds: tuple[EventKind, ...] = ()
    feed: Feed | None = None
    tenant: str | None = None
    """Events of feeds of this tenant, and no others."""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ListedEvent:
    """An event with its place in history, and the names of its feed and worker as far as they are known."""

    id: int
    event: Event
    feed: str | None
    worker: str | None


class EventListing(Aggregate):
    """Lists history. Thread-safe."""

    @in_transaction
    def before(
        self, c: Connection, which: EventFilter, *, place: int | None = None, limit: int = PAGE_MAX
    ) -> list[ListedEvent]:
        """Events that came before the one with the id ``place``, or the newest; newest first."""
        sql = f"""
            SELECT {_COLUMNS}, e.id AS event_id, f.name AS feed_name, w.name AS worker_name
            FROM feedq.event e
            LEFT JOIN feedq.feed f ON f.id = e.feed_id
            LEFT JOIN feedq.worker w ON w.id = e.worker_id
            WHERE (%(place)s IS NULL OR e.id < %(place)s)
                AND (%(kinds)s IS NULL OR e.kind = ANY(%(kinds)s))
                AND (%(feed_id)s IS NULL OR e.feed_id = %(feed_id)s)
                AND (%(tenant)s IS NULL OR f.tenant = %(tenant)s)
                AND (%(since)s IS NULL OR e.at >= %(since)s)
            ORDER BY e.id DESC LIMIT %(limit)s
        """
        parameters = {
            "place": place,
            "kinds": [kind.value for kind in which.kinds] or None,
            "feed_id": None if which.feed is None else which.feed.id,
            "tenant": which.tenant,
            "since": which.since,
            "limit": min(max(limit, 0), PAGE_MAX),
        }
        return [
            ListedEvent(row.event_id, Event(*row[:_WIDTH]), row.feed_name, row.worker_name)
            for row in c.execute(sql, parameters)
        ]
