"""Worker sessions: register, heartbeat, cordon, drain, leave."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from feedq.control.store.channels import wake_reconcile
from feedq.control.store.database import Aggregate, PreparedStatement, in_transaction
from feedq.control.store.feed_rows import LOAD_FIELDS, WORKER_COLUMNS, worker_from
from feedq.control.store.history import record
from feedq.control.store.leases import blame, free_leases
from feedq.control.store.taps import TAPPED
from feedq.core.model import (
    Heartbeat,
    LeaseState,
    Load,
    Loss,
    NewWorker,
    Reason,
    Worker,
    WorkerState,
    WorkerTarget,
    WorkerView,
)
from feedq.core.values import storable
from feedq.telemetry.event_names import EventKind

TARGET_EVENTS = {
    WorkerTarget.SERVING: EventKind.WORKER_UNCORDONED,
    WorkerTarget.CORDONED: EventKind.WORKER_CORDONED,
    WorkerTarget.DRAINED: EventKind.WORKER_DRAINING,
}
"""What history calls it when a person wants this of a worker."""
STACK_CALLS_MAX = 30
"""The most calls of the process that was lost that its event keeps."""
ALIVE_STAMP_S = 1.0
"""The fleet row is stamped at most this often: a thousand heartbeats must not queue for one row. With a
short ttl more often, or every stamp would look like the end of a silence."""

# Who hears from the database says so in `fleet.alive_at`. A gap of more than half a ttl means that nobody
# could renew, and starts the grace period anew (see feedq.lease.OutageGrace): a heartbeat interval may have
# passed before the gap, and the rest of the ttl must still be ahead when the first one is back.
OVERDUE = "(w.expires_at < clock_timestamp() OR greatest(w.started_at, w.heartbeat_at) > clock_timestamp())"
"""The condition for workers that a pass has to check: they have not renewed in time, or the clock
was put back."""

# Another server than before, or a restarted one, has another start. How long ago that was is not asked: its clock
# may have been put right since. When it was last heard from in the future, the clock was put back: what had been
# served by then counts all the same.
HAS_RESTARTED = "server_started_at IS DISTINCT FROM pg_postmaster_start_time()"
SERVICE_SINCE = f"""
    CASE WHEN {HAS_RESTARTED} OR clock_timestamp() - alive_at > make_interval(secs => :ttl_s / 2.0)
         THEN clock_timestamp()
         ELSE alive_since - greatest(alive_at - clock_timestamp(), interval '0') END
"""
STAMP_ALIVE = f"""
    UPDATE feedq.fleet SET
        alive_since = {SERVICE_SINCE}, alive_at = clock_timestamp(),
        server_started_at = pg_postmaster_start_time()
    WHERE {HAS_RESTARTED} OR alive_at > clock_timestamp()
        OR alive_at < clock_timestamp() - make_interval(secs => least({ALIVE_STAMP_S}, :ttl_s / 8.0))
"""

# One statement a worker and interval, however many feeds it runs. The lease keeper sends it on a session of its
# own, which plans it once and for all. So what waits for the worker is asked in
# an order that only `lease_summons` has: it is the way in, even if there was no lease yet when that was planned.
_WAITING = """
    SELECT l.state FROM feedq.lease l
    WHERE l.worker_id = :worker_id AND l.state IN ('assigned', 'stopping')
"""
# Of the sinks that this worker cannot write to, which is none nearly always: what the others know of them.
_SINKS_ELSEWHERE = """
    SELECT array_agg(known.sink ORDER BY known.sink) FROM (
        SELECT down.sink, bool_or(down.sink = ANY(o.sinks_up)) AS up,
            bool_or(NOT down.sink = ANY(o.sinks_down)) AS untried
        FROM unnest(CAST(:sinks_down AS text[])) AS down (sink), feedq.worker o
        WHERE o.id <> :worker_id AND o.state = 'active' AND o.target_state = 'serving' AND o.capacity > 0
            AND o.expires_at > clock_timestamp()
        GROUP BY down.sink
    ) known WHERE {which}
"""
HEARTBEAT = f"""
    WITH alive AS ({STAMP_ALIVE})
    UPDATE feedq.worker w SET
        heartbeat_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => :ttl_s),
        suspected_at = NULL,
        feeds = :feeds, cpu = :cpu, rss = :rss, loop_lag_s = :loop_lag_s,
        rows_per_s = :rows_per_s, bytes_per_s = :bytes_per_s,
        sinks_up = :sinks_up, sinks_down = :sinks_down
    FROM feedq.fleet f
    WHERE w.id = :worker_id AND w.state <> 'gone'
    RETURNING w.state,
        coalesce(({_WAITING} ORDER BY l.state DESC LIMIT 1) = 'stopping', false),
        coalesce(({_WAITING} ORDER BY l.state LIMIT 1) = 'assigned', false),
        extract(epoch FROM clock_timestamp() - f.pass_at)::float8,
        f.active_workers,
        ({_SINKS_ELSEWHERE.format(which="known.up")}),
        ({_SINKS_ELSEWHERE.format(which="NOT known.up AND known.untried")}),
        {TAPPED}
"""
_TYPES = {
    "worker_id": "uuid",
    "ttl_s": "float8",
    "feeds": "integer",
    "cpu": "float8",
    "rss": "bigint",
    "loop_lag_s": "float8",
    "rows_per_s": "float8",
    "bytes_per_s": "float8",
    "sinks_up": "text[]",
    "sinks_down": "text[]",
}
PREPARED_HEARTBEAT = PreparedStatement.of("feedq_heartbeat", HEARTBEAT, _TYPES)


def heartbeat_parameters(worker_id: UUID, load: Load, ttl_s: float) -> dict[str, Any]:
    values = {name: getattr(load, name) for name in LOAD_FIELDS}
    values["sinks_up"], values["sinks_down"] = list(load.sinks_up), list(load.sinks_down)
    return {"worker_id": str(worker_id), "ttl_s": ttl_s, **values}


def heartbeat_from(row: Iterable[Any] | None) -> Heartbeat | None:
    if row is None:
        return None
    state, stops, claims, pass_age_s, active_workers, up, untried, tapped = row
    known = (tuple(up or ()), tuple(untried or ()), tuple(tapped))
    return Heartbeat(WorkerState(state), stops, claims, pass_age_s, active_workers, *known)


class Workers(Aggregate):
    """Worker sessions."""

    @in_transaction
    def register(self, c: Connection, new: NewWorker, *, ttl_s: float) -> Worker:
        sql = f"""
            INSERT INTO feedq.worker AS w
                (id, name, queue, capacity, labels, host, pid, version, job_slots, task_set_id, expires_at)
            VALUES (:id, :name, :queue, :capacity, CAST(:labels AS jsonb), :host, :pid, :version, :job_slots,
                    :task_set_id, clock_timestamp() + make_interval(secs => :ttl_s))
            RETURNING {WORKER_COLUMNS}
        """
        parameters = {field.name: getattr(new, field.name) for field in fields(new) if field.name != "tasks"}
        parameters["labels"] = msgspec.json.encode(dict(new.labels)).decode()
        parameters["task_set_id"] = None if new.tasks is None else _task_set(c, new.tasks)
        parameters["ttl_s"] = ttl_s
        worker = worker_from(c.execute(text(sql), parameters).one())
        c.execute(text(STAMP_ALIVE), {"ttl_s": ttl_s})
        _record(c, EventKind.WORKER_JOINED, new.id)
        return worker

    @in_transaction
    def heartbeat(self, c: Connection, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
        """Renew every lease of the worker, in one statement. None: it was declared gone."""
        return heartbeat_from(
            c.execute(text(HEARTBEAT), heartbeat_parameters(worker_id, load, ttl_s)).one_or_none()
        )

    def drain(self, worker_id: UUID) -> bool:
        """The process is ending: it takes no more feeds, and releases those it has by itself. What it has
        not claimed yet is free at once. False when it is gone."""
        sql = "UPDATE feedq.worker SET state = 'draining' WHERE id = :id AND state <> 'gone' RETURNING id"
        with self._database.transaction() as c:
            if c.execute(text(sql), {"id": worker_id}).one_or_none() is None:
                return False
            _record(c, EventKind.WORKER_DRAINING, worker_id)
        self._free_unclaimed(worker_id, reason=Reason.DRAINED)
        return True

    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
        """Set what a person wants of a worker. Unless it is to serve, what it has not claimed yet is free at
        once; what it runs is handed over by passes. Wakes reconcile. False when it is gone."""
        sql = """
            UPDATE feedq.worker w SET target_state = :target
            FROM (SELECT id, target_state FROM feedq.worker WHERE id = :id FOR UPDATE) was
            WHERE w.id = was.id AND w.state <> 'gone' RETURNING was.target_state
        """
        with self._database.transaction() as c:
            before = c.execute(text(sql), {"id": worker_id, "target": target.value}).scalar_one_or_none()
            if before is None:
                return False
            if before != target:
                _record(c, TARGET_EVENTS[target], worker_id)
        if target is not WorkerTarget.SERVING:
            drained = target is WorkerTarget.DRAINED
            self._free_unclaimed(worker_id, reason=Reason.DRAINED if drained else Reason.RELEASED)
        return True

    @in_transaction
    def _free_unclaimed(self, c: Connection, worker_id: UUID, *, reason: Reason) -> None:
        """Free what the worker has not claimed: nobody streams it yet, so it may go elsewhere at once; a claim
        that races waits for the row and finds it idle.

        A transaction of its own: to hold the worker's row while waiting for leases is what a pass does the
        other way round. Killed before it, a dispatch time-out does the rest.
        """
        free_leases(c, [worker_id], states=(LeaseState.ASSIGNED,), reason=reason)
        wake_reconcile(c)

    @in_transaction
    def leave(self, c: Connection, worker_id: UUID) -> None:
        """Say goodbye: free what is left and end the session."""
        sql = "UPDATE feedq.worker SET state = 'gone' WHERE id = :id AND state <> 'gone' RETURNING id"
        if c.execute(text(sql), {"id": worker_id}).one_or_none() is None:
            return
        free_leases(c, [worker_id], reason=Reason.RELEASED)
        _record(c, EventKind.WORKER_LEFT, worker_id)

    @in_transaction
    def views(self, c: Connection, *, gone: bool = False) -> list[WorkerView]:
        """All workers by name; ``gone`` includes ended sessions."""
        sql = f"""
            SELECT {WORKER_COLUMNS},
                extract(epoch FROM clock_timestamp() - w.heartbeat_at)::float8 AS heartbeat_age_s,
                (coalesce(h.feeds, 0) + coalesce(c.feeds, 0))::int AS leases,
                coalesce(p.feeds, 0)::int AS promised,
                coalesce(h.weight, 0) + coalesce(c.weight, 0) AS load
            FROM feedq.worker w
            LEFT JOIN feedq.worker_held h ON h.worker_id = w.id
            LEFT JOIN (
                SELECT worker_id, sum(feeds) AS feeds, sum(weight) AS weight
                FROM feedq.held_change GROUP BY worker_id
            ) c ON c.worker_id = w.id
            LEFT JOIN (
                SELECT promised_to, count(*) AS feeds FROM feedq.lease
                WHERE promised_to IS NOT NULL AND state IN ('idle', 'stopping') GROUP BY promised_to
            ) p ON p.promised_to = w.id
            WHERE :gone OR w.state <> 'gone' ORDER BY w.name, w.started_at
        """
        return [
            WorkerView(worker_from(row), row.leases, row.heartbeat_age_s, row.promised, row.load)
            for row in c.execute(text(sql), {"gone": gone})
        ]

    @in_transaction
    def report_loss(self, c: Connection, worker_id: UUID, loss: Loss) -> bool:
        """Write down how the process of a worker session was lost, and hold it against the feed that is to blame
        (`lease.on_loss`). Once a session: False when it is known already. Wakes reconcile."""
        told = "UPDATE feedq.worker SET loss = :said WHERE id = :id AND loss IS NULL RETURNING name"
        said = storable(f"{loss.cause}: {loss.said}")
        name = c.execute(text(told), {"id": worker_id, "said": said}).scalar_one_or_none()
        if name is None:
            return False
        detail = {"cause": loss.cause, "why": said, "stack": list(loss.stack[:STACK_CALLS_MAX])}
        record(c, EventKind.WORKER_LOST, worker_id=worker_id, detail=detail)
        if loss.feed_id is not None:
            blame(c, loss.feed_id, worker_id, loss, said=f"worker {name} was lost: {said}")
        return True

    @in_transaction
    def gone_among(self, c: Connection, worker_ids: Collection[UUID]) -> set[UUID]:
        """Return which of these workers are declared gone, or unknown by now."""
        sql = "SELECT id FROM feedq.worker WHERE id = ANY(:ids) AND state <> 'gone'"
        alive = {row.id for row in c.execute(text(sql), {"ids": list(worker_ids)})}
        return set(worker_ids) - alive


def _task_set(c: Connection, tasks: Collection[str]) -> int:
    """The row of these tasks, which workers that know the same share; one that nobody uses any more goes."""
    ordered = sorted(set(tasks))
    # Whoever registers with a row has just stamped it: none goes that is about to be referred to.
    stale = """
        DELETE FROM feedq.task_set t WHERE used_at < clock_timestamp() - interval '1 day'
            AND NOT EXISTS (SELECT FROM feedq.worker w WHERE w.task_set_id = t.id)
    """
    c.execute(text(stale))
    sql = """
        INSERT INTO feedq.task_set (digest, tasks) VALUES (:digest, CAST(:tasks AS text[]))
        ON CONFLICT (digest) DO UPDATE SET used_at = clock_timestamp() RETURNING id
    """
    digest = hashlib.sha256(msgspec.json.encode(ordered)).hexdigest()
    found: int = c.execute(text(sql), {"digest": digest, "tasks": ordered}).scalar_one()
    return found


def _record(c: Connection, kind: EventKind, worker_id: UUID) -> None:
    record(c, kind, worker_id=worker_id)
    wake_reconcile(c)
