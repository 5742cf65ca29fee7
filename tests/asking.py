"""What tests ask of a store that feedq itself asks in another way."""

from __future__ import annotations

from uuid import UUID

from feedq.control.store.history import EventFilter
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import renew
from feedq.core.model import Event, Heartbeat, Load


def send_heartbeat(store: PostgresStore, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
    """As a worker's session does, on a session of the store's pool."""
    with store._database.statement() as c:
        return renew(c, worker_id, load, ttl_s=ttl_s)


def events_of(store: PostgresStore, name: str, *, limit: int = 50) -> list[Event]:
    """The history of a feed, the newest first."""
    which = EventFilter(feed=store.feeds.get(name))
    return [found.event for found in store.history.before(which, limit=limit)]
