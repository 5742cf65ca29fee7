"""One reconcile pass: set-based statements inside one transaction, one pass at a time in the fleet.

With nothing to do, a pass reads a handful of partial indexes that are empty, and no row of any feed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from uuid import UUID

import orjson
from sqlalchemy import Connection, text

from feedq.lease import Edit, Move, Quiet, as_of, states_before
from feedq.model import Assignment, Feed, Lease, LeaseState, Reason, Worker
from feedq.placement import EligibleWorker, Held, Transfer, WaitingFeed
from feedq.store.base import ReconcilePass, SuspectWorker
from feedq.store.channels import HELD_LOCKS, PASS_LOCK, WAKE_SQL, NotifyReason, ring_workers
from feedq.store.clockstep import shorten_delays
from feedq.store.database import Database
from feedq.store.dirty import absorb_new, dirty
from feedq.store.feed_rows import WORKER_COLUMNS, worker_from
from feedq.store.held import candidates, fold, leaving
from feedq.store.history import HistoryKept
from feedq.store.leases import STILL_FAILED
from feedq.store.measured import EFFECTIVE_WEIGHT, Means, means
from feedq.store.moves import movable, moves_under_way, reap, transfer
from feedq.store.quarantine_records import part, quarantined
from feedq.store.sweeping import count_idle, sweep_page, weigh
from feedq.store.waiting import waiting
from feedq.store.workers import OVERDUE, SERVICE_SINCE, free_leases
from feedq.telemetry import EventKind

OVERDUE_PER_PASS = 10_000
"""Bounds a pass after an outage of the broker; the rest is for the next."""

# Leases by nothing but their keys; what state they are in is asked after. Told that few can match, as there were
# few when statistics were taken, the planner would go through all of them for each.
_GIVEN = """
    given AS (
        SELECT t.*, l.state
        FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:reasons AS text[])) AS t (feed_id, reason)
        JOIN feedq.lease l USING (feed_id) ORDER BY feed_id FOR UPDATE OF l
    )
"""


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
            c.execute(text(WAKE_SQL))


class PostgresPass:
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
        self._to_weigh: Mapping[str, int] | None = None
        if row.pass_at is not None and row.pass_at > row.now:
            shorten_delays(connection, by=row.pass_at - row.now)

    def stamp(self) -> None:
        """The fleet's row comes last, here as in a heartbeat: the other way round the two would deadlock."""
        if self._to_weigh is not None:
            weigh(self._c, self._to_weigh, means=self._means)
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

    @cached_property
    def _means(self) -> Means:
        return means(self._c, measured=self._measured_load)

    def quiet(self, *, ttl_s: float) -> Quiet:
        # A pass may be the first to come back after an outage, before any heartbeat could renew.
        sql = f"SELECT {SERVICE_SINCE} FROM feedq.fleet"
        return Quiet(self._c.execute(text(sql), {"ttl_s": ttl_s}).scalar_one())

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

    def absorb_new(self, *, limit: int) -> int:
        return absorb_new(self._c, limit=limit)

    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        return dirty(self._c, limit=limit)

    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        clean = "UPDATE feedq.feed SET dirty = false WHERE id = ANY(:ids)"
        self._c.execute(text(clean), {"ids": [i for i, _ in edits]})
        self._rename_idle([(i, e.reason) for i, e in edits if e.move is None and e.reason and not e.purge])
        self._withdraw([(i, e.reason) for i, e in edits if e.move is Move.WITHDRAW])
        asked = [(i, e.reason) for i, e in edits if e.move is Move.ASK_TO_STOP]
        self._ask_to_stop(asked, stop_within_s=stop_within_s)
        purged = [i for i, e in edits if e.purge]
        self._c.execute(text("DELETE FROM feedq.feed WHERE id = ANY(:ids)"), {"ids": purged})

    def overdue(self, *, timeout_s: float) -> list[UUID]:
        sql = f"""
            WITH late AS (
                SELECT feed_id, worker_id, state FROM feedq.lease
                WHERE feed_id = ANY(ARRAY(  -- by nothing but keys, as in _GIVEN
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
        return quarantined(self._c)

    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        part(self._c, leases, stop_within_s=stop_within_s)

    def reap(self) -> int:
        return reap(self._c)

    def waiting(self, *, limit: int) -> list[WaitingFeed]:
        found, self._waiting_after = waiting(
            self._c, limit=limit, after=self._waiting_after, means=self._means
        )
        return found

    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        return candidates(self._c, tenants)

    def leaving(self) -> dict[UUID, int]:
        fold(self._c)
        return leaving(self._c)

    def moves_under_way(self, *, within_s: float) -> dict[UUID, int]:
        return moves_under_way(self._c, within_s=within_s)

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        return movable(self._c, worker_ids, limit=limit, means=self._means)

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        return transfer(self._c, transfers, stop_within_s=stop_within_s)

    def note_evened_out(self, fingerprint: str) -> None:
        self.evened_out = fingerprint

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        sql = f"""
            WITH given AS (
                SELECT * FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:worker_ids AS uuid[]))
                    AS t (feed_id, worker_id)
            ), locked AS (
                -- By nothing but keys, as in _GIVEN.
                SELECT given.*, w.queue, {EFFECTIVE_WEIGHT} AS weight,
                    l.state, w.state AS worker_state, w.target_state FROM given
                JOIN feedq.lease l USING (feed_id)
                JOIN feedq.feed f ON f.id = given.feed_id
                JOIN feedq.worker w ON w.id = given.worker_id
                ORDER BY given.feed_id FOR UPDATE OF l FOR SHARE OF w
            ), free AS (
                SELECT * FROM locked
                WHERE state = ANY(:states) AND worker_state = 'active' AND target_state = 'serving'
            ), assigned AS (
                UPDATE feedq.lease l SET state = 'assigned', epoch = l.epoch + 1, worker_id = free.worker_id,
                    assigned_at = clock_timestamp(), retry_at = NULL, {STILL_FAILED}, weight = free.weight,
                    promised_to = NULL, held_for = NULL, stop_by = NULL
                FROM free WHERE l.feed_id = free.feed_id
                RETURNING l.feed_id, l.epoch, l.worker_id, free.queue, l.reason
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
                SELECT :kind, feed_id, worker_id, epoch FROM assigned WHERE reason IS NULL
            )
            SELECT * FROM assigned ORDER BY feed_id
        """
        parameters = {
            "feed_ids": [feed_id for feed_id, _ in pairs],
            "worker_ids": [str(worker_id) for _, worker_id in pairs],
            "states": [s.value for s in states_before(Move.ASSIGN)],
            "kind": EventKind.LEASE_ASSIGNED.value,
            **self._means.parameters(),
        }
        rows = self._c.execute(text(sql), parameters).all()
        # The messages follow; a worker that hears this first need not wait for them.
        ring_workers(self._c, list({row.worker_id for row in rows}), NotifyReason.FEEDS)
        return [Assignment(row.feed_id, row.epoch, row.worker_id, row.queue) for row in rows]

    def explain(self, unplaced: Sequence[tuple[int, Reason]]) -> None:
        self._rename_idle([(feed_id, reason) for feed_id, reason in unplaced])

    def sweep_is_due(self, *, interval_s: float) -> bool:
        if self._swept_to is not None or self._sweep_at is None:
            return True
        return self._sweep_at <= self.now - timedelta(seconds=interval_s)

    def sweep(self, *, stop_within_s: float) -> int:
        if self._swept_to is None:
            self._sweep_at = self.now
            self._idle_counts = count_idle(self._c)
        swept = sweep_page(
            self._c,
            after=self._swept_to or 0,
            keep=self._keep,
            stop_within_s=stop_within_s,
        )
        self._swept_to = swept.swept_to
        self._to_weigh = swept.page
        return swept.repaired

    def waiting_by_reason(self) -> dict[Reason, int]:
        held = "SELECT count(*) FROM feedq.lease WHERE held_for IS NOT NULL"
        counts = {Reason(reason): feeds for reason, feeds in self._idle_counts.items()}
        return counts | {Reason.HELD: self._c.execute(text(held)).scalar_one()}

    def _rename_idle(self, reasons: Sequence[tuple[int, Reason | None]]) -> None:
        if not reasons:
            return
        sql = f"""
            WITH {_GIVEN}
            UPDATE feedq.lease l SET reason = given.reason, retry_at = NULL, held_for = NULL,
                promised_to = CASE WHEN given.reason IN ('new', 'settling') THEN l.promised_to END,
                moved_at = CASE WHEN given.reason IN ('new', 'settling') THEN l.moved_at END,
                attempts = CASE WHEN given.reason = 'new' THEN 0 ELSE l.attempts END,
                avoid = CASE WHEN given.reason = 'new' THEN '{{}}' ELSE l.avoid END
            FROM given WHERE l.feed_id = given.feed_id AND given.state = 'idle'
        """
        self._c.execute(text(sql), _reason_columns(reasons))

    def _withdraw(self, reasons: Sequence[tuple[int, Reason | None]]) -> None:
        if not reasons:
            return
        sql = f"""
            WITH {_GIVEN}
            UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = given.reason, moved_at = NULL
            FROM given WHERE l.feed_id = given.feed_id AND given.state = ANY(:states)
        """
        states = [s.value for s in states_before(Move.WITHDRAW)]
        self._c.execute(text(sql), {**_reason_columns(reasons), "states": states})
        # A removed feed that nobody claimed is idle now and can go with the next pass.
        again = "UPDATE feedq.feed SET dirty = true WHERE id = ANY(:ids) AND removed_at IS NOT NULL"
        self._c.execute(text(again), {"ids": [i for i, _ in reasons]})

    def _ask_to_stop(self, reasons: Sequence[tuple[int, Reason | None]], *, stop_within_s: float) -> None:
        if not reasons:
            return
        sql = f"""
            WITH {_GIVEN}, asked AS (
                UPDATE feedq.lease l SET state = 'stopping', reason = given.reason,
                    stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
                FROM given WHERE l.feed_id = given.feed_id AND given.state = ANY(:states)
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
            "stop_within_s": stop_within_s,
            "kind": EventKind.STOP_REQUESTED.value,
        }
        workers = [row.worker_id for row in self._c.execute(text(sql), parameters)]
        ring_workers(self._c, workers, NotifyReason.FEEDS)


def _reason_columns(reasons: Sequence[tuple[int, Reason | None]]) -> dict[str, list[object]]:
    return {
        "feed_ids": [feed_id for feed_id, _ in reasons],
        "reasons": [None if reason is None else reason.value for _, reason in reasons],
    }
