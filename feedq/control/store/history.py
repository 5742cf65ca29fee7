"""History: one event written, and how much of all is kept.

A feed whose source is down is placed, claimed and released a thousand times a day. Of a trouble that comes back
within an hour, with nothing in between but new tries, the trigger ``feedq.fold_event`` keeps the latest event: it
takes over the count of the one before it, and since when that was so. The events of the tries are folded in the
same way. Whatever else happens ends that, and the next trouble begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.control.store.database import storable_json
from feedq.core.authorship import signed
from feedq.telemetry.event_names import EventKind

RETENTION_DAYS = 14
EVENTS_PER_FEED = 200
"""The latest events of a feed that are kept: a feed in trouble for weeks must not fill the table."""


def record(
    c: Connection,
    kind: EventKind,
    feed_id: int | None = None,
    worker_id: UUID | None = None,
    epoch: int | None = None,
    *,
    detail: Mapping[str, Any] | None = None,
) -> None:
    sql = """
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        VALUES (:kind, :feed_id, :worker_id, :epoch, CAST(:detail AS jsonb))
    """
    encoded = storable_json(signed(dict(detail or {})))
    c.execute(
        text(sql),
        {"kind": kind.value, "feed_id": feed_id, "worker_id": worker_id, "epoch": epoch, "detail": encoded},
    )
