"""Blame and quarantine in the control database: who was lost to which feed, and what follows from it.

What follows is decided in `feedq.lease`; here it is looked up and written down, under the lock of the lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import orjson
from sqlalchemy import Connection, text

from feedq import lease as policy
from feedq.model import Lease, Loss, Reason
from feedq.store.channels import WAKE_SQL, NotifyReason, ring_workers
from feedq.store.feed_rows import LEASE_COLUMNS, lease_from
from feedq.telemetry import EventKind

WORDS_MAX = 2_000
STACK_CALLS_MAX = 30


def report_loss(c: Connection, worker_id: UUID, loss: Loss) -> bool:
    """Write down how a worker was lost, once. False when it is known already, or the worker is not."""
    told = "UPDATE feedq.worker SET loss = :said WHERE id = :id AND loss IS NULL RETURNING name"
    said = f"{loss.cause}: {loss.said}"[:WORDS_MAX]
    name = c.execute(text(told), {"id": worker_id, "said": said}).scalar_one_or_none()
    if name is None:
        return False
    detail = {"cause": loss.cause, "why": said, "stack": list(loss.stack[:STACK_CALLS_MAX])}
    _record(c, EventKind.WORKER_LOST, None, worker_id, detail)
    if loss.feed_id is not None:
        blame(c, loss.feed_id, worker_id, loss, said=f"worker {name} was lost: {said}")
    return True


def blame(c: Connection, feed_id: int, worker_id: UUID, loss: Loss, *, said: str) -> None:
    """Hold a loss against a feed, as `feedq.lease.on_loss` says."""
    rows = c.execute(
        text(f"""
            SELECT {LEASE_COLUMNS}, clock_timestamp() AS now FROM feedq.lease l
            WHERE l.feed_id = :feed_id FOR UPDATE
        """),
        {"feed_id": feed_id},
    ).all()
    for row in rows:  # there is one, unless the feed was removed
        lease = lease_from(row, feed_id)
        verdict = policy.on_loss(lease, is_certain=loss.is_certain, now=row.now)
        c.execute(
            text("""
                UPDATE feedq.lease SET blamed = :blamed, blamed_at = clock_timestamp(), blame = :said,
                    quarantined = :quarantined
                WHERE feed_id = :feed_id
            """),
            {
                "feed_id": feed_id,
                "blamed": verdict.blamed,
                "said": said[:WORDS_MAX],
                "quarantined": verdict.quarantined,
            },
        )
        if verdict.quarantined and not lease.quarantined:
            _record(c, EventKind.FEED_QUARANTINED, feed_id, worker_id, {"why": said})
        c.execute(text(WAKE_SQL))


def quarantined(c: Connection) -> list[Lease]:
    """Leases of feeds in quarantine that run, locked, but for those that change hands this very moment."""
    sql = f"""
        SELECT l.feed_id, {LEASE_COLUMNS} FROM feedq.lease l
        WHERE l.quarantined AND l.state = 'running' ORDER BY l.feed_id FOR UPDATE SKIP LOCKED
    """
    return [lease_from(row, row.feed_id) for row in c.execute(text(sql))]


def part(c: Connection, leases: Sequence[Lease], *, stop_within_s: float) -> None:
    """Ask the owners of running feeds to stop: those in quarantine to go on apart, the others among all again."""
    sql = """
        UPDATE feedq.lease l SET state = 'stopping', reason = given.reason, quarantined = given.quarantined,
            stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
        FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:reasons AS text[]), CAST(:quarantined AS boolean[]))
            AS given (feed_id, reason, quarantined)
        WHERE l.feed_id = given.feed_id AND l.state = 'running'
    """
    reasons = [Reason.QUARANTINED if lease.quarantined else Reason.RELEASED for lease in leases]
    c.execute(
        text(sql),
        {
            "feed_ids": [lease.feed_id for lease in leases],
            "reasons": [reason.value for reason in reasons],
            "quarantined": [lease.quarantined for lease in leases],
            "stop_within_s": stop_within_s,
        },
    )
    for lease, reason in zip(leases, reasons, strict=True):
        kind = EventKind.STOP_REQUESTED if lease.quarantined else EventKind.FEED_PARDONED
        _record(c, kind, lease.feed_id, lease.worker_id, {"reason": reason.value})
    ring_workers(c, [lease.worker_id for lease in leases if lease.worker_id is not None], NotifyReason.FEEDS)


def _record(
    c: Connection, kind: EventKind, feed_id: int | None, worker_id: UUID | None, detail: Mapping[str, object]
) -> None:
    sql = """
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        VALUES (:kind, :feed_id, :worker_id, (SELECT epoch FROM feedq.lease WHERE feed_id = :feed_id),
                CAST(:detail AS jsonb))
    """
    parameters = {
        "kind": kind.value,
        "feed_id": feed_id,
        "worker_id": worker_id,
        "detail": orjson.dumps(detail).decode(),
    }
    c.execute(text(sql), parameters)
