"""Worker sessions: register, heartbeat, cordon, drain, leave."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, text

from feedq.lease import BLAME_RECENT, SOON, VERDICT_S
from feedq.model import (
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
from feedq.store.channels import WAKE_SQL
from feedq.store.database import Database
from feedq.store.dirty import look_again
from feedq.store.feed_rows import WORKER_COLUMNS, worker_from, worker_view_from
from feedq.store.quarantine_records import report_loss
from feedq.telemetry import EventKind

TARGET_EVENTS = {
    WorkerTarget.SERVING: EventKind.WORKER_UNCORDONED,
    WorkerTarget.CORDONED: EventKind.WORKER_CORDONED,
    WorkerTarget.DRAINED: EventKind.WORKER_DRAINING,
}
"""What history calls it when a person wants this of a worker."""
ALIVE_STAMP_S = 1.0
"""The fleet row is stamped at most this often: a thousand heartbeats must not queue for one row. With a
short ttl more often, or every stamp would look like the end of a silence."""

# Who hears from the database says so in `fleet.alive_at`. A gap of more than half a ttl means that nobody
# could renew, and starts the quiet period anew (see feedq.lease.Quiet): a heartbeat interval may have
# passed before the gap, and the rest of the ttl must still be ahead when the first one is back.
OVERDUE = "(w.expires_at < clock_timestamp() OR greatest(w.started_at, w.heartbeat_at) > clock_timestamp())"
"""Of workers that a pass has to look at: they have not renewed in time, or the clock was put back."""

# Another server than before, or a restarted one, has another start. How long ago that was is not asked: its clock
# may have been put right since. See feedq.lease.service_since.
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

# One statement a worker and interval, however many feeds it runs. `%(name)s` is for the driver: the lease keeper
# sends it on a session of its own, which plans it once and for all. So what waits for the worker is asked in
# an order that only `lease_summons` has: it is the way in, even if there was no lease yet when that was planned.
_WAITING = """
    SELECT l.state FROM feedq.lease l
    WHERE l.worker_id = %(worker_id)s AND l.state IN ('assigned', 'stopping')
"""
# Of the sinks that this worker cannot write to, which is none nearly always: what the others know of them.
_SINKS_ELSEWHERE = """
    SELECT array_agg(known.sink ORDER BY known.sink) FROM (
        SELECT down.sink, bool_or(down.sink = ANY(o.sinks_up)) AS up,
            bool_or(NOT down.sink = ANY(o.sinks_down)) AS untried
        FROM unnest(CAST(%(sinks_down)s AS text[])) AS down (sink), feedq.worker o
        WHERE o.id <> %(worker_id)s AND o.state = 'active' AND o.target_state = 'serving' AND o.capacity > 0
            AND o.expires_at > clock_timestamp()
        GROUP BY down.sink
    ) known WHERE {which}
"""
HEARTBEAT = f"""
    WITH alive AS ({STAMP_ALIVE.replace(":ttl_s", "%(ttl_s)s")})
    UPDATE feedq.worker w SET
        heartbeat_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => %(ttl_s)s),
        suspected_at = NULL,
        feeds = %(feeds)s, cpu = %(cpu)s, rss = %(rss)s, loop_lag_s = %(loop_lag_s)s,
        rows_per_s = %(rows_per_s)s, bytes_per_s = %(bytes_per_s)s,
        sinks_up = %(sinks_up)s, sinks_down = %(sinks_down)s
    FROM feedq.fleet f
    WHERE w.id = %(worker_id)s AND w.state <> 'gone'
    RETURNING w.state,
        coalesce(({_WAITING} ORDER BY l.state DESC LIMIT 1) = 'stopping', false),
        coalesce(({_WAITING} ORDER BY l.state LIMIT 1) = 'assigned', false),
        extract(epoch FROM clock_timestamp() - f.pass_at)::float8,
        f.active_workers,
        ({_SINKS_ELSEWHERE.format(which="known.up")}),
        ({_SINKS_ELSEWHERE.format(which="NOT known.up AND known.untried")})
"""
_HEARTBEAT_TYPES = {
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
PREPARE_HEARTBEAT = f"PREPARE feedq_heartbeat ({', '.join(_HEARTBEAT_TYPES.values())}) AS " + HEARTBEAT % {
    name: f"${n}" for n, name in enumerate(_HEARTBEAT_TYPES, start=1)
}
PREPARED_HEARTBEAT = f"EXECUTE feedq_heartbeat ({', '.join(f'%({name})s' for name in _HEARTBEAT_TYPES)})"


def heartbeat_parameters(worker_id: UUID, load: Load, ttl_s: float) -> dict[str, Any]:
    return {
        "worker_id": str(worker_id),
        "ttl_s": ttl_s,
        "feeds": load.feeds,
        "cpu": load.cpu,
        "rss": load.rss,
        "loop_lag_s": load.loop_lag_s,
        "rows_per_s": load.rows_per_s,
        "bytes_per_s": load.bytes_per_s,
        "sinks_up": list(load.sinks_up),
        "sinks_down": list(load.sinks_down),
    }


def heartbeat_from(row: tuple[Any, ...] | None) -> Heartbeat | None:
    if row is None:
        return None
    state, stops, claims, pass_age_s, active_workers, up, untried = row
    return Heartbeat(
        WorkerState(state), stops, claims, pass_age_s, active_workers, tuple(up or ()), tuple(untried or ())
    )


class PostgresWorkers:
    """`feedq.store.base.Workers` on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, new: NewWorker, *, ttl_s: float) -> Worker:
        sql = f"""
            INSERT INTO feedq.worker AS w
                (id, name, queue, capacity, labels, host, pid, version, job_slots, task_set_id, expires_at)
            VALUES (:id, :name, :queue, :capacity, CAST(:labels AS jsonb), :host, :pid, :version, :job_slots,
                    :task_set_id, clock_timestamp() + make_interval(secs => :ttl_s))
            RETURNING {WORKER_COLUMNS}
        """
        parameters = {
            "id": new.id,
            "name": new.name,
            "queue": new.queue,
            "capacity": new.capacity,
            "labels": orjson.dumps(dict(new.labels)).decode(),
            "host": new.host,
            "pid": new.pid,
            "version": new.version,
            "job_slots": new.job_slots,
            "ttl_s": ttl_s,
        }
        with self._database.transaction() as c:
            parameters["task_set_id"] = None if new.tasks is None else _task_set(c, new.tasks)
            worker = worker_from(c.execute(text(sql), parameters).one())
            c.execute(text(STAMP_ALIVE), {"ttl_s": ttl_s})
            _record(c, EventKind.WORKER_JOINED, new.id)
        return worker

    def heartbeat(self, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
        with self._database.transaction() as c:
            row = c.exec_driver_sql(HEARTBEAT, heartbeat_parameters(worker_id, load, ttl_s)).one_or_none()
        return heartbeat_from(None if row is None else tuple(row))

    def drain(self, worker_id: UUID) -> bool:
        sql = "UPDATE feedq.worker SET state = 'draining' WHERE id = :id AND state <> 'gone' RETURNING id"
        with self._database.transaction() as c:
            if c.execute(text(sql), {"id": worker_id}).one_or_none() is None:
                return False
            _record(c, EventKind.WORKER_DRAINING, worker_id)
        self._free_the_unclaimed(worker_id, reason=Reason.DRAINED)
        return True

    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
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
            self._free_the_unclaimed(worker_id, reason=Reason.DRAINED if drained else Reason.RELEASED)
        return True

    def _free_the_unclaimed(self, worker_id: UUID, *, reason: Reason) -> None:
        """Nobody streams it yet, so it may go elsewhere at once; a claim that races waits for the row and
        finds it idle.

        A transaction of its own: to hold the worker's row while waiting for leases is what a pass does the
        other way round. Killed before it, a dispatch time-out does the rest.
        """
        with self._database.transaction() as c:
            free_leases(c, [worker_id], states=(LeaseState.ASSIGNED,), reason=reason.value)
            c.execute(text(WAKE_SQL))

    def leave(self, worker_id: UUID) -> None:
        sql = "UPDATE feedq.worker SET state = 'gone' WHERE id = :id AND state <> 'gone' RETURNING id"
        with self._database.transaction() as c:
            if c.execute(text(sql), {"id": worker_id}).one_or_none() is None:
                return
            free_leases(c, [worker_id], states=tuple(LeaseState)[1:], reason=Reason.RELEASED.value)
            _record(c, EventKind.WORKER_LEFT, worker_id)

    def views(self, *, gone: bool = False) -> list[WorkerView]:
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
        with self._database.transaction() as c:
            return [worker_view_from(row) for row in c.execute(text(sql), {"gone": gone})]

    def report_loss(self, worker_id: UUID, loss: Loss) -> bool:
        with self._database.transaction() as c:
            return report_loss(c, worker_id, loss)

    def gone_among(self, worker_ids: Collection[UUID]) -> set[UUID]:
        sql = "SELECT id FROM feedq.worker WHERE id = ANY(:ids) AND state <> 'gone'"
        with self._database.transaction() as c:
            alive = {row.id for row in c.execute(text(sql), {"ids": list(worker_ids)})}
        return set(worker_ids) - alive


def free_leases(c: Connection, worker_ids: list[UUID], *, states: tuple[LeaseState, ...], reason: str) -> int:
    """Back to idle with what these workers hold; the next tenure has another epoch."""
    sql = f"""
        WITH held AS (
            SELECT feed_id, worker_id FROM feedq.lease
            WHERE worker_id = ANY(:ids) AND state = ANY(:states) ORDER BY feed_id FOR UPDATE
        ), freed AS (
            UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = :reason, connected = false,
                stalled = false, promised_to = NULL, moved_at = NULL, stop_by = NULL, held_for = NULL,
                -- What feedq.lease.awaits_verdict says.
                retry_at = CASE WHEN :lost AND NOT l.quarantined AND (
                        l.blamed_at >= clock_timestamp() - make_interval(secs => {BLAME_RECENT.total_seconds()})
                        OR (l.lost_at >= clock_timestamp() - make_interval(secs => {SOON.total_seconds()})
                            AND EXISTS (SELECT FROM feedq.worker w WHERE w.id = l.lost_worker AND w.loss IS NULL))
                    ) THEN clock_timestamp() + make_interval(secs => {VERDICT_S}) END,
                lost_worker = CASE WHEN :lost THEN held.worker_id ELSE l.lost_worker END,
                lost_at = CASE WHEN :lost THEN clock_timestamp() ELSE l.lost_at END
            FROM held WHERE l.feed_id = held.feed_id
            RETURNING l.feed_id, held.worker_id, l.epoch, l.generation
        ), dirty AS ({look_again("freed")})
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT :kind, feed_id, worker_id, epoch, jsonb_build_object('reason', CAST(:reason AS text))
        FROM freed
    """
    done = c.execute(
        text(sql),
        {
            "ids": worker_ids,
            "states": [s.value for s in states],
            "reason": reason,
            "lost": reason == Reason.WORKER_GONE,
            "kind": EventKind.LEASE_FREED.value,
        },
    )
    return done.rowcount


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
    digest = hashlib.sha256(orjson.dumps(ordered)).hexdigest()
    found: int = c.execute(text(sql), {"digest": digest, "tasks": ordered}).scalar_one()
    return found


def _record(c: Connection, kind: EventKind, worker_id: UUID) -> None:
    sql = "INSERT INTO feedq.event (kind, worker_id) VALUES (:kind, :worker_id)"
    c.execute(text(sql), {"kind": kind.value, "worker_id": worker_id})
    c.execute(text(WAKE_SQL))
