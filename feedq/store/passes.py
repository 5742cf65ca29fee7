"""One reconcile pass: set-based statements inside one transaction, one pass at a time in the fleet.

With nothing to do, a pass reads a handful of partial indexes that are empty, and no row of any feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import orjson
from sqlalchemy import Connection, text

from feedq.lease import OutageGrace, as_of
from feedq.model import Lease, Reason, Worker
from feedq.store.base import ReconcilePass, SuspectWorker
from feedq.store.channels import HELD_LOCKS, PASS_LOCK, NotifyReason, notify_workers, wake_reconcile
from feedq.store.database import Database, GivenRows
from feedq.store.edits import PassEdits
from feedq.store.feed_rows import LEASE_COLUMNS, WORKER_COLUMNS, lease_from, worker_from
from feedq.store.history import HistoryKept, record
from feedq.store.leases import free_leases
from feedq.store.moves import PassMoves
from feedq.store.sweeping import PassSweep
from feedq.store.workers import OVERDUE, SERVICE_SINCE
from feedq.telemetry import EventKind

OVERDUE_PER_PASS = 10_000
"""Bounds a pass after an outage of the broker; the rest is for the next."""

# When the database's clock was put back, no delay and no time limit lasts longer for it. Each is stored as the
# time at which it ends: put back by an hour, the clock would make each last an hour longer. So a pass that
# begins before the one before it ended, by that clock, shortens all that lie ahead by the difference. That is
# short of the step by the time between the two passes, at most. A delay that was set since the step ends too
# soon, which costs one try. Heartbeats need no such measure: see `feedq.lease.as_of`.
# In the order of feed ids, as everywhere: two statements must not wait for each other.
_SHORTEN = """
    WITH ahead AS (
        SELECT feed_id FROM feedq.lease WHERE feed_id IN (
            SELECT feed_id FROM feedq.lease WHERE state = 'idle' AND retry_at > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE state = 'stopping' AND stop_by > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE state = 'assigned' AND assigned_at > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE moved_at > statement_timestamp())
        ORDER BY feed_id FOR UPDATE
    )
    UPDATE feedq.lease l SET
        retry_at = l.retry_at - :by, stop_by = l.stop_by - :by,
        assigned_at = least(l.assigned_at, statement_timestamp()),
        moved_at = least(l.moved_at, statement_timestamp())
    FROM ahead WHERE l.feed_id = ahead.feed_id
"""


_PARTED = GivenRows("feed_id bigint, reason text, quarantined boolean")


class PostgresFleet:
    """`feedq.store.base.FleetStore` on PostgreSQL."""

    def __init__(self, database: Database, *, keep: HistoryKept) -> None:
        self._database = database
        self._keep = keep

    @contextmanager
    def reconcile_pass(self, *, measured_load: float = 0.0) -> Iterator[ReconcilePass | None]:
        with self._database.transaction() as c:
            # For the transaction: a pass whose process is killed releases it with its backend.
            free = c.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": PASS_LOCK}).scalar_one()
            if not free:
                yield None
                return
            this_pass = PostgresPass(c, keep=self._keep, measured_load=measured_load)
            yield this_pass
            this_pass.stamp()

    def wake(self) -> None:
        with self._database.transaction() as c:
            wake_reconcile(c)


class PostgresPass(PassMoves, PassEdits, PassSweep):
    """`feedq.store.base.ReconcilePass` on PostgreSQL."""

    def __init__(self, connection: Connection, *, keep: HistoryKept, measured_load: float) -> None:
        self._c = connection
        self._keep = keep
        self._measured_load = measured_load
        row = connection.execute(text("SELECT *, clock_timestamp() AS now FROM feedq.fleet")).one()
        self.now: datetime = row.now
        self.evened_out: str | None = row.evened_out
        self._waiting_after: int = row.waiting_after
        self._sweep_at: datetime | None = row.sweep_at and min(row.sweep_at, row.now)
        self._swept_to: int | None = row.swept_to
        self._idle_counts: dict[str, int] = row.idle_counts
        if row.pass_at is not None and row.pass_at > row.now:
            # The clock was put back.
            connection.execute(text(_SHORTEN), {"by": row.pass_at - row.now})

    def stamp(self) -> None:
        """The fleet's row comes last, here as in a heartbeat: the other way round the two would deadlock."""
        if self._page is not None:
            self._weigh(self._means)
        sql = """
            UPDATE feedq.fleet SET pass_at = clock_timestamp(), pass_seq = pass_seq + 1,
                active_workers = (SELECT count(*) FROM feedq.worker WHERE state = 'active' AND capacity > 0),
                evened_out = :evened_out, waiting_after = :waiting_after, sweep_at = :sweep_at,
                swept_to = :swept_to, idle_counts = CAST(:idle_counts AS jsonb)
        """
        parameters = {
            "evened_out": self.evened_out,
            "waiting_after": self._waiting_after,
            "sweep_at": self._sweep_at,
            "swept_to": self._swept_to,
            "idle_counts": orjson.dumps(self._idle_counts).decode(),
        }
        self._c.execute(text(sql), parameters)

    def outage_grace(self, *, ttl_s: float) -> OutageGrace:
        # A pass may be the first to come back after an outage, before any heartbeat could renew.
        sql = f"SELECT {SERVICE_SINCE} FROM feedq.fleet"
        return OutageGrace(self._c.execute(text(sql), {"ttl_s": ttl_s}).scalar_one())

    def suspects(self) -> list[SuspectWorker]:
        # Locked before it is judged: a heartbeat that came first is seen here, a later one waits and then
        # finds the worker gone.
        sql = f"""
            SELECT {WORKER_COLUMNS}, clock_timestamp() AS now FROM feedq.worker w
            WHERE w.state <> 'gone' AND ({OVERDUE} OR w.suspected_at IS NOT NULL)
            ORDER BY w.id FOR UPDATE
        """
        rows = self._c.execute(text(sql)).all()
        if not rows:
            return []
        found = [as_of(worker_from(row), row.now) for row in rows]
        self._put_back([w for w, row in zip(found, rows, strict=True) if w != worker_from(row)])
        held = {row.lock_key for row in self._c.execute(text(HELD_LOCKS))}
        return [SuspectWorker(worker, worker.lock_key in held) for worker in found]

    def _put_back(self, workers: Sequence[Worker]) -> None:
        """Keep what `feedq.lease.as_of` made of these, which are locked."""
        columns = ("id", "started_at", "heartbeat_at", "expires_at")
        sql = (
            f"UPDATE feedq.worker SET {', '.join(f'{name} = :{name}' for name in columns[1:])} WHERE id = :id"
        )
        if workers:
            self._c.execute(text(sql), [{name: getattr(w, name) for name in columns} for w in workers])

    def expire_workers(self, worker_ids: Sequence[UUID]) -> int:
        sql = """
            WITH expired AS (
                UPDATE feedq.worker SET state = 'gone' WHERE id = ANY(:ids) AND state <> 'gone'
                RETURNING id
            )
            INSERT INTO feedq.event (kind, worker_id) SELECT :kind, id FROM expired
        """
        ids = list(worker_ids)
        self._c.execute(text(sql), {"ids": ids, "kind": EventKind.WORKER_GONE.value})
        return free_leases(self._c, ids, reason=Reason.WORKER_GONE)

    def overdue(self, *, timeout_s: float) -> list[UUID]:
        sql = f"""
            WITH late AS (
                SELECT feed_id, worker_id, state FROM feedq.lease
                WHERE feed_id = ANY(ARRAY(  -- by nothing but keys, as in `GIVEN`
                    SELECT feed_id FROM feedq.lease
                    WHERE state = 'assigned'
                      AND assigned_at <= statement_timestamp() - make_interval(secs => :timeout_s)
                    ORDER BY assigned_at LIMIT {OVERDUE_PER_PASS}))
                ORDER BY feed_id FOR UPDATE SKIP LOCKED  -- it is being claimed this very moment
            ), freed AS (
                UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = 'released', moved_at = NULL
                FROM late WHERE l.feed_id = late.feed_id AND late.state = 'assigned'
                RETURNING l.feed_id, late.worker_id, l.epoch
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
                SELECT :kind, feed_id, worker_id, epoch FROM freed
            )
            SELECT worker_id FROM freed
        """
        kind = EventKind.LEASE_OVERDUE.value
        return [row.worker_id for row in self._c.execute(text(sql), {"timeout_s": timeout_s, "kind": kind})]

    def quarantined(self) -> list[Lease]:
        # But for those that change hands this very moment.
        sql = f"""
            SELECT l.feed_id, {LEASE_COLUMNS} FROM feedq.lease l
            WHERE l.quarantined AND l.state = 'running' ORDER BY l.feed_id FOR UPDATE SKIP LOCKED
        """
        return [lease_from(row, row.feed_id) for row in self._c.execute(text(sql))]

    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        sql = f"""
            UPDATE feedq.lease l SET state = 'stopping', reason = given.reason, quarantined = given.quarantined,
                stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
            FROM {_PARTED}
            WHERE l.feed_id = given.feed_id AND l.state = 'running'
        """
        reasons = [Reason.QUARANTINED if lease.quarantined else Reason.RELEASED for lease in leases]
        parted = [
            (lease.feed_id, why.value, lease.quarantined) for lease, why in zip(leases, reasons, strict=True)
        ]
        self._c.execute(text(sql), {**_PARTED.of(parted), "stop_within_s": stop_within_s})
        for lease, reason in zip(leases, reasons, strict=True):
            kind = EventKind.STOP_REQUESTED if lease.quarantined else EventKind.FEED_PARDONED
            whose, why = (lease.feed_id, lease.worker_id, lease.epoch), {"reason": reason.value}
            record(self._c, kind, *whose, detail=why)
        owners = [lease.worker_id for lease in leases if lease.worker_id is not None]
        notify_workers(self._c, owners, NotifyReason.FEEDS)
