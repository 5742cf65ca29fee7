"""History of everything, a page at a time, newest first. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Connection, text

from feedq.event_names import EventKind
from feedq.model import Event
from feedq.store.database import Aggregate, in_transaction
from feedq.store.feed_rows import event_from

PAGE_MAX = 1_000
"""Events of one page."""
_COLUMNS = ", ".join(f"e.{field.name}" for field in fields(Event))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events: those to which all of it applies."""

    kinds: tuple[EventKind, ...] = ()
    feed_id: int | None = None
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
        conditions = {
            "place": "e.id < :place",
            "kinds": "e.kind = ANY(:kinds)",
            "feed_id": "e.feed_id = :feed_id",
            "tenant": "f.tenant = :tenant",
            "since": "e.at >= :since",
        }
        asked = {
            "place": place,
            "kinds": [kind.value for kind in which.kinds] or None,
            "feed_id": which.feed_id,
            "tenant": which.tenant,
            "since": which.since,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        where = " AND ".join(conditions[name] for name in given) or "true"
        sql = f"""
            SELECT {_COLUMNS}, e.id AS event_id, f.name AS feed_name, w.name AS worker_name
            FROM feedq.event e
            LEFT JOIN feedq.feed f ON f.id = e.feed_id
            LEFT JOIN feedq.worker w ON w.id = e.worker_id
            WHERE {where} ORDER BY e.id DESC LIMIT :limit
        """
        parameters = {**given, "limit": min(max(limit, 0), PAGE_MAX)}
        return [
            ListedEvent(row.event_id, event_from(row), row.feed_name, row.worker_name)
            for row in c.execute(text(sql), parameters)
        ]
