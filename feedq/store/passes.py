"""One reconcile pass: set-based statements inside one transaction, one pass at a time in the fleet.

With nothing to do, a pass reads a handful of partial indexes that are empty, and no row of any feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.lease import Edit, Move, Quiet, states_before
from feedq.model import Assignment, Feed, Lease, LeaseState, Reason
from feedq.placement import Candidate, Waiting
from feedq.store.base import ReconcilePass, Suspect
from feedq.store.channels import PASS_LOCK, WAKE_SQL, WORKER_LOCK_CLASS
from feedq.store.database import Database
from feedq.store.rows import (
    FEED_COLUMNS,
    LEASE_COLUMNS,
    WORKER_COLUMNS,
    feed_from,
    lease_from,
    worker_from,
)
from feedq.store.workers import free_leases, ring_workers
from feedq.telemetry import EventKind

SWEEP_PAGE = 10_000
"""Repairs of one sweep; what is left waits for the next."""

HAS_SESSION = f"""
    EXISTS (
        SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2
          AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND k.classid = {WORKER_LOCK_CLASS} AND k.objid = CAST(CAST(w.lock_key AS bigint) AS oid)
    )
"""


class PostgresFleet:
    """`feedq.store.base.Fleet` on PostgreSQL."""

    def __init__(self, database: Database, *, retention_days: int) -> None:
        self._database = database
        self._retention_days = retention_days

    @contextmanager
    def reconcile_pass(self) -> Iterator[ReconcilePass | None]:
        with self._database.transaction() as c:
            # For the transaction: a pass whose process is killed releases it with its backend.
            free = c.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": PASS_LOCK}).scalar_one()
            if not free:
                yield None
                return
            now = c.execute(text("SELECT clock_timestamp()")).scalar_one()
            this_pass = PostgresPass(c, now, retention_days=self._retention_days)
            yield this_pass
            # The fleet's row comes last, here as in a heartbeat: the other way round the two would deadlock.
            stamp = """
                UPDATE feedq.fleet SET pass_at = clock_timestamp(), pass_seq = pass_seq + 1,
                    sweep_at = CASE WHEN :swept THEN clock_timestamp() ELSE sweep_at END
            """
            c.execute(text(stamp), {"swept": this_pass.swept})

    def wake(self) -> None:
        with self._database.transaction() as c:
            c.execute(text(WAKE_SQL))


class PostgresPass:
    """`feedq.store.base.ReconcilePass` on PostgreSQL."""

    def __init__(self, connection: Connection, now: datetime, *, retention_days: int) -> None:
        self._c = connection
        self.now = now
        self.swept = False
        self._retention_days = retention_days

    def quiet(self, *, ttl_s: float) -> Quiet:
        # A pass may be the first to come back after an outage, before any heartbeat could renew.
        sql = """
            SELECT pg_postmaster_start_time() AS started,
                CASE WHEN clock_timestamp() - alive_at > make_interval(secs => :ttl_s / 2.0)
                     THEN clock_timestamp() ELSE alive_since END AS alive_since
            FROM feedq.fleet
        """
        row = self._c.execute(text(sql), {"ttl_s": ttl_s}).one()
        return Quiet(database_started_at=row.started, fleet_alive_since=row.alive_since)

    def suspects(self) -> list[Suspect]:
        # Locked before it is judged: a heartbeat that came first is seen here, a later one waits and then
        # finds the worker gone.
        sql = f"""
            SELECT {WORKER_COLUMNS}, {HAS_SESSION} AS has_session FROM feedq.worker w
            WHERE w.state <> 'gone' AND (w.expires_at < clock_timestamp() OR w.suspected_at IS NOT NULL)
            ORDER BY w.id FOR UPDATE
        """
        return [Suspect(worker_from(row), row.has_session) for row in self._c.execute(text(sql))]

    def bury(self, worker_ids: Sequence[UUID]) -> int:
        sql = """
            WITH buried AS (
                UPDATE feedq.worker SET state = 'gone' WHERE id = ANY(:ids) AND state <> 'gone'
                RETURNING id
            )
            INSERT INTO feedq.event (kind, worker_id) SELECT :kind, id FROM buried
        """
        ids = list(worker_ids)
        self._c.execute(text(sql), {"ids": ids, "kind": EventKind.WORKER_GONE.value})
        return free_leases(self._c, ids, states=tuple(LeaseState)[1:], reason=Reason.WORKER_GONE.value)

    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        missing = """
            INSERT INTO feedq.lease (feed_id)
            SELECT f.id FROM feedq.feed f WHERE f.dirty AND NOT EXISTS (
                SELECT FROM feedq.lease l WHERE l.feed_id = f.id)
            ORDER BY f.id LIMIT :limit ON CONFLICT DO NOTHING
        """
        sql = f"""
            SELECT {FEED_COLUMNS}, {LEASE_COLUMNS} FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
            WHERE f.dirty ORDER BY f.id LIMIT :limit FOR UPDATE OF l, f  -- the lease first, as everywhere
        """
        self._c.execute(text(missing), {"limit": limit})
        rows = self._c.execute(text(sql), {"limit": limit}).all()
        return [(feed_from(row), lease_from(row, row.id)) for row in rows]

    def apply_edits(self, edits: Sequence[tuple[int, Edit]]) -> None:
        clean = "UPDATE feedq.feed SET dirty = false WHERE id = ANY(:ids)"
        self._c.execute(text(clean), {"ids": [i for i, _ in edits]})
        self._rename_idle([(i, e.reason) for i, e in edits if e.move is None and e.reason and not e.purge])
        self._withdraw([(i, e.reason) for i, e in edits if e.move is Move.WITHDRAW])
        self._ask_to_stop([(i, e.reason) for i, e in edits if e.move is Move.ASK_TO_STOP])
        purged = [i for i, e in edits if e.purge]
        self._c.execute(text("DELETE FROM feedq.feed WHERE id = ANY(:ids)"), {"ids": purged})

    def overdue(self, *, timeout_s: float) -> list[UUID]:
        sql = """
            WITH late AS (
                SELECT feed_id, worker_id FROM feedq.lease
                WHERE state = 'assigned'
                  AND assigned_at <= clock_timestamp() - make_interval(secs => :timeout_s)
                ORDER BY feed_id FOR UPDATE SKIP LOCKED  -- it is being claimed this very moment
            ), freed AS (
                UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = 'released'
                FROM late WHERE l.feed_id = late.feed_id RETURNING l.feed_id, late.worker_id, l.epoch
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
                SELECT :kind, feed_id, worker_id, epoch FROM freed
            )
            SELECT worker_id FROM freed
        """
        kind = EventKind.LEASE_OVERDUE.value
        return [row.worker_id for row in self._c.execute(text(sql), {"timeout_s": timeout_s, "kind": kind})]

    def waiting(self, *, limit: int) -> list[Waiting]:
        sql = """
            SELECT l.feed_id, f.weight, l.reason
            FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
            WHERE l.state = 'idle' AND l.reason NOT IN ('paused', 'failed', 'removed')
              AND f.removed_at IS NULL AND f.target_state = 'running'
              AND (l.retry_at IS NULL OR l.retry_at <= clock_timestamp())
              -- Removed and declared anew: the one that is ending must be off the source first.
              AND NOT EXISTS (
                  SELECT FROM feedq.lease ending JOIN feedq.feed removed ON removed.id = ending.feed_id
                  WHERE ending.state = 'stopping' AND removed.removed_at IS NOT NULL
                    AND removed.name = f.name)
            ORDER BY l.feed_id LIMIT :limit
        """
        rows = self._c.execute(text(sql), {"limit": limit}).all()
        return [Waiting(row.feed_id, row.weight, Reason(row.reason)) for row in rows]

    def candidates(self) -> list[Candidate]:
        sql = """
            SELECT w.id, w.queue, w.capacity, w.started_at, w.labels, count(l.feed_id) AS feeds,
                   coalesce(sum(f.weight), 0)::float8 AS load
            FROM feedq.worker w
            LEFT JOIN feedq.lease l ON l.worker_id = w.id
            LEFT JOIN feedq.feed f ON f.id = l.feed_id
            WHERE w.state = 'active' AND w.expires_at > clock_timestamp() AND w.suspected_at IS NULL
            GROUP BY w.id ORDER BY w.id
        """
        return [
            Candidate(row.id, row.queue, row.capacity, row.feeds, row.load, row.started_at, row.labels)
            for row in self._c.execute(text(sql))
        ]

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        sql = """
            WITH given AS (
                SELECT * FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:worker_ids AS uuid[]))
                    AS t (feed_id, worker_id)
            ), free AS (
                SELECT given.*, w.queue FROM given
                JOIN feedq.lease l USING (feed_id)
                JOIN feedq.worker w ON w.id = given.worker_id
                WHERE l.state = ANY(:states) AND w.state = 'active'
                ORDER BY given.feed_id FOR UPDATE OF l FOR SHARE OF w
            ), assigned AS (
                UPDATE feedq.lease l SET state = 'assigned', epoch = l.epoch + 1, worker_id = free.worker_id,
                    assigned_at = clock_timestamp(), retry_at = NULL, reason = NULL
                FROM free WHERE l.feed_id = free.feed_id
                RETURNING l.feed_id, l.epoch, l.worker_id, free.queue
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
                SELECT :kind, feed_id, worker_id, epoch FROM assigned
            )
            SELECT * FROM assigned ORDER BY feed_id
        """
        parameters = {
            "feed_ids": [feed_id for feed_id, _ in pairs],
            "worker_ids": [str(worker_id) for _, worker_id in pairs],
            "states": [s.value for s in states_before(Move.ASSIGN)],
            "kind": EventKind.LEASE_ASSIGNED.value,
        }
        rows = self._c.execute(text(sql), parameters).all()
        return [Assignment(row.feed_id, row.epoch, row.worker_id, row.queue) for row in rows]

    def explain(self, unplaced: Sequence[tuple[int, Reason]]) -> None:
        self._rename_idle([(feed_id, reason) for feed_id, reason in unplaced])

    def sweep_is_due(self, *, interval_s: float) -> bool:
        sql = """
            SELECT sweep_at IS NULL OR sweep_at <= clock_timestamp() - make_interval(secs => :s)
            FROM feedq.fleet
        """
        return bool(self._c.execute(text(sql), {"s": interval_s}).scalar_one())

    def sweep(self) -> int:
        # Whoever changed a row by hand skipped our bookkeeping: find what does not add up, mark it dirty,
        # and let the usual path mend it. What somebody has locked can wait for the next sweep.
        mismatched = """
            WITH missing AS (
                SELECT f.id FROM feedq.feed f
                WHERE NOT f.dirty AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.feed_id = f.id)
                ORDER BY f.id LIMIT :page
            ), mismatched AS (
                SELECT f.id FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
                WHERE NOT f.dirty AND (
                    (l.state IN ('running', 'assigned')
                        AND (f.removed_at IS NOT NULL OR f.target_state <> 'running'))
                    OR (l.state = 'running' AND l.generation < f.generation)
                    OR (l.state = 'idle' AND f.removed_at IS NOT NULL)
                    OR (l.state = 'idle' AND l.reason = 'paused' AND f.target_state = 'running')
                    OR (l.state = 'idle' AND l.reason IS NULL))
                ORDER BY f.id LIMIT :page FOR UPDATE OF l, f SKIP LOCKED
            )
            UPDATE feedq.feed SET dirty = true
            WHERE id IN (SELECT id FROM missing UNION ALL SELECT id FROM mismatched)
        """
        trim = """
            DELETE FROM feedq.event WHERE id IN (
                SELECT id FROM feedq.event WHERE at < clock_timestamp() - make_interval(days => :days)
                ORDER BY id LIMIT :page)
        """
        repaired = self._c.execute(text(mismatched), {"page": SWEEP_PAGE}).rowcount
        orphans = self._free_orphans()
        self._c.execute(text(trim), {"days": self._retention_days, "page": SWEEP_PAGE})
        self._forget_workers()
        self.swept = True
        return repaired + orphans

    def _free_orphans(self) -> int:
        """Leases of workers that are gone already: a row changed by hand, or restored from a backup."""
        sql = """
            SELECT DISTINCT l.worker_id FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
            WHERE w.state = 'gone'
        """
        ids = [row.worker_id for row in self._c.execute(text(sql))]
        if not ids:
            return 0
        return free_leases(self._c, ids, states=tuple(LeaseState)[1:], reason=Reason.WORKER_GONE.value)

    def _forget_workers(self) -> None:
        sql = """
            DELETE FROM feedq.worker w
            WHERE w.state = 'gone' AND w.heartbeat_at < clock_timestamp() - make_interval(days => :days)
              AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.worker_id = w.id)
        """
        self._c.execute(text(sql), {"days": self._retention_days})

    def _rename_idle(self, reasons: Sequence[tuple[int, Reason | None]]) -> None:
        if not reasons:
            return
        sql = """
            UPDATE feedq.lease l SET reason = given.reason, retry_at = NULL,
                attempts = CASE WHEN given.reason = 'new' THEN 0 ELSE l.attempts END
            FROM (SELECT * FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:reasons AS text[]))
                    AS t (feed_id, reason) ORDER BY feed_id) given
            WHERE l.feed_id = given.feed_id AND l.state = 'idle'
        """
        self._c.execute(text(sql), _reason_columns(reasons))

    def _withdraw(self, reasons: Sequence[tuple[int, Reason | None]]) -> None:
        if not reasons:
            return
        sql = """
            UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = given.reason
            FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:reasons AS text[])) AS given (feed_id, reason)
            WHERE l.feed_id = given.feed_id AND l.state = ANY(:states)
        """
        states = [s.value for s in states_before(Move.WITHDRAW)]
        self._c.execute(text(sql), {**_reason_columns(reasons), "states": states})
        # A removed feed that nobody claimed is idle now and can go with the next pass.
        again = "UPDATE feedq.feed SET dirty = true WHERE id = ANY(:ids) AND removed_at IS NOT NULL"
        self._c.execute(text(again), {"ids": [i for i, _ in reasons]})

    def _ask_to_stop(self, reasons: Sequence[tuple[int, Reason | None]]) -> None:
        if not reasons:
            return
        sql = """
            WITH asked AS (
                UPDATE feedq.lease l SET state = 'stopping', reason = given.reason
                FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:reasons AS text[])) AS given (feed_id, reason)
                WHERE l.feed_id = given.feed_id AND l.state = ANY(:states)
                RETURNING l.feed_id, l.epoch, l.worker_id, l.reason
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
                SELECT :kind, feed_id, worker_id, epoch, jsonb_build_object('reason', reason) FROM asked
            )
            SELECT DISTINCT worker_id FROM asked
        """
        parameters = {
            **_reason_columns(reasons),
            "states": [s.value for s in states_before(Move.ASK_TO_STOP)],
            "kind": EventKind.STOP_REQUESTED.value,
        }
        workers = [row.worker_id for row in self._c.execute(text(sql), parameters)]
        ring_workers(self._c, workers)


def _reason_columns(reasons: Sequence[tuple[int, Reason | None]]) -> dict[str, list[object]]:
    return {
        "feed_ids": [feed_id for feed_id, _ in reasons],
        "reasons": [None if reason is None else reason.value for _, reason in reasons],
    }
