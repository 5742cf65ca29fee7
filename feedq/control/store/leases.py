"""Leases: what owners do with theirs (claim, release, report), and what frees them when an owner is gone.

Each statement is for many feeds. Those of owners name feed, epoch and worker, and have no effect on a row that no
longer matches. Rows are locked in the order of feed ids, here and in the passes, so that two statements cannot
deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.control.store.channels import NotifyReason, notify_workers, wake_reconcile
from feedq.control.store.database import (
    Aggregate,
    Database,
    GivenRows,
    in_statement,
    in_transaction,
    storable_json,
)
from feedq.control.store.feed_rows import FEED_COLUMNS, LEASE_COLUMNS, feed_from, lease_from
from feedq.control.store.history import record
from feedq.control.store.taps import HAS_LISTENER
from feedq.core.lease import (
    AVOIDED_MAX,
    BLAME_RECENT,
    FAILOVER_WITHIN,
    RATE_TIME_S,
    SOON,
    VERDICT_S,
    Move,
    on_loss,
    states_before,
)
from feedq.core.model import (
    JSON,
    Claim,
    FeedKey,
    LeaseState,
    Loss,
    Progress,
    Reason,
    Release,
    Rewind,
    StopRequest,
    WorkerState,
)
from feedq.core.placement.base import Transfer
from feedq.core.values import SAID_CHARS_MAX, storable
from feedq.telemetry.event_names import EventKind

CURSOR_CHARS_MAX = 500
NOTICED_BYTES_MAX = 16_384
"""What was noticed of a feed takes no more in its row; after that nothing more is told."""
BIGINT_MAX = 2**63 - 1
OWNED = (LeaseState.ASSIGNED, LeaseState.RUNNING, LeaseState.STOPPING)
"""States of a lease that somebody has."""


def mark_dirty(freed: str) -> str:
    """A statement that marks what was edited, paused or removed while it ran: it is to be considered again now
    that it is idle. ``freed`` names rows of (feed_id, generation).

    Whether it is marked already is not asked: a pass may just be taking that mark away.
    """
    return f"""
        UPDATE feedq.feed f SET dirty = true
        FROM {freed} CROSS JOIN LATERAL (
            SELECT x.id FROM feedq.feed x
            WHERE x.id = {freed}.feed_id
              AND (x.removed_at IS NOT NULL OR x.target_state <> 'running'
                   OR x.generation > {freed}.generation)
            OFFSET 0  -- one look-up a feed, even if statistics are from when every feed was dirty
        ) touched
        WHERE f.id = touched.id
    """


def _locked(columns: str) -> str:
    """The leases that ``given`` names, locked in its order, and as they are once nobody else writes them.

    By nothing but their keys, a look-up each; whose they are and in which state is asked after. Told that few can
    match, as there were few when statistics were taken, the planner would go through all of those for each.
    """
    return f"""
        SELECT given.*, {columns} FROM (SELECT * FROM given ORDER BY feed_id) given CROSS JOIN LATERAL (
            SELECT * FROM feedq.lease WHERE feed_id = given.feed_id AND epoch = given.epoch FOR UPDATE
        ) l
    """


# A worker session that began after the feed failed on the one before it has not had its try.
_NEW_HERE = f"""(
    coalesce((l.avoid ->> held.worker_name)::float8 < extract(epoch FROM held.worker_started_at), true)
    AND (SELECT count(*) FROM jsonb_object_keys(l.avoid)) < {AVOIDED_MAX}
)"""
STILL_FAILED = "reason = CASE WHEN l.reason = 'failed' THEN 'failed' END"
"""What cannot run as declared is checked again: until more is known it has failed, and history need not say so
again."""

# Whether the lease was taken a moment ago from an owner that this worker has lived beside. When a whole fleet was
# killed and starts anew, no source has had the connections of its feeds for a while.
_AFTER_LOSS = f"""coalesce(
    locked.lost_at >= clock_timestamp() - make_interval(secs => {FAILOVER_WITHIN.total_seconds()})
    AND (locked.running_since IS NULL OR locked.lost_at > locked.running_since)
    AND (SELECT lost.heartbeat_at > w.started_at FROM feedq.worker lost WHERE lost.id = locked.lost_worker), false)
"""

_KEYS = GivenRows("feed_id bigint, epoch bigint")
_MOVED = GivenRows("feed_id bigint, source uuid, target uuid")
_RELEASED = GivenRows(
    "feed_id bigint, epoch bigint, reason text, retry_in_s float8, attempts int, error text, records bigint"
)
_PROGRESS = GivenRows(
    "feed_id bigint, epoch bigint, records bigint, bytes bigint, dead_letters bigint, last_record_ago_s float8, "
    "cursor jsonb, connected boolean, stalled boolean, attempts int, error text, failures int, "
    "dead_letter_error text, sink_error text, rewind jsonb, noticed jsonb, has_event_times boolean, "
    "event_at float8, event_fault text"
)
"""The fields of `Release` and of `Progress` that the statements are given."""

_CLAIM = f"""
    WITH given AS (
        SELECT * FROM {_KEYS}
    ), locked AS ({_locked("l.worker_id, l.state, l.running_since, l.lost_at, l.lost_worker")}), held AS (
        -- FOR SHARE on the feed: an edit that commits while we wait for the lease must be read, not missed.
        SELECT {FEED_COLUMNS}, w.name AS worker_name, w.started_at AS worker_started_at,
            {_AFTER_LOSS} AS after_loss
        FROM locked JOIN feedq.worker w ON w.id = locked.worker_id
        CROSS JOIN LATERAL (SELECT * FROM feedq.feed WHERE id = locked.feed_id FOR SHARE) f
        WHERE locked.worker_id = :worker_id AND locked.state = 'assigned' AND w.state = 'active'
    ), claimed AS (
        UPDATE feedq.lease l SET state = 'running', {STILL_FAILED}, generation = held.feed_generation,
            noticed = CASE WHEN l.generation = held.feed_generation THEN l.noticed END,
            running_since = clock_timestamp(), connected = false, stalled = false
        FROM held WHERE l.feed_id = held.id
        RETURNING l.feed_id, l.epoch, l.attempts, l.failures, l.quarantined, l.blamed,
            l.reason IS NOT NULL AS has_failed, l.avoid = '{{}}' OR {_NEW_HERE} AS is_new_here
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT :kind, feed_id, :worker_id, epoch FROM claimed WHERE NOT has_failed
    )
    SELECT held.*, claimed.epoch, claimed.attempts, claimed.failures, claimed.quarantined,
        claimed.blamed, claimed.has_failed, claimed.is_new_here
    FROM held JOIN claimed ON claimed.feed_id = held.id
"""

_AVOIDED = f"""(
    SELECT jsonb_object_agg(key, value) FROM (
        SELECT key, value FROM jsonb_each(
            l.avoid || jsonb_build_object(held.worker, extract(epoch FROM clock_timestamp())))
        ORDER BY value DESC LIMIT {AVOIDED_MAX}
    ) latest
)"""
_RELEASE = f"""
    WITH given AS (
        SELECT * FROM {_RELEASED}
    ), locked AS (
        {_locked("l.worker_id, l.state, l.promised_to, l.reason AS before, l.last_error")}
    ), held AS (
        -- Kept for the process that is about to take the owner's place is only what an announced end releases: not
        -- after a crash, nor what a person asked for meanwhile, nor what is on its way to another worker already.
        SELECT locked.feed_id, locked.error, locked.attempts, locked.records, w.name AS worker,
            coalesce(locked.reason = 'failed' AND before = 'failed' AND error = last_error, false) AS is_known,
            CASE WHEN kept THEN 'held' ELSE locked.reason END AS reason,
            CASE WHEN kept THEN :hold_s ELSE locked.retry_in_s END AS delay_s
        FROM locked JOIN feedq.worker w ON w.id = locked.worker_id
        CROSS JOIN LATERAL (
            SELECT :hold_s > 0 AND w.state = 'draining' AND locked.reason IN ('drained', 'released')
                AND locked.promised_to IS NULL AS kept
        ) k
        WHERE locked.worker_id = :worker_id AND locked.state = ANY(:states)
    ), released AS (
        -- What was promised to another worker stays so.
        UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = held.reason,
            connected = false, stalled = false, attempts = held.attempts, stop_by = NULL,
            promised_to = CASE WHEN held.reason <> 'failed' THEN l.promised_to END,
            moved_at = CASE WHEN held.reason <> 'failed' AND l.promised_to IS NOT NULL THEN l.moved_at END,
            held_for = CASE WHEN held.reason = 'held' THEN held.worker END,
            avoid = CASE WHEN held.reason IN ('backoff', 'failed') THEN {_AVOIDED}
                         WHEN held.reason = 'edited' THEN '{{}}' ELSE l.avoid END,
            retry_at = CASE WHEN held.delay_s > 0 OR held.reason = 'failed'
                            THEN clock_timestamp() + make_interval(secs => held.delay_s) END,
            last_error = coalesce(held.error, l.last_error),
            last_error_at = CASE WHEN held.error IS NULL THEN l.last_error_at ELSE clock_timestamp() END,
            records_total = coalesce(held.records, l.records_total)
        FROM held WHERE l.feed_id = held.feed_id
        RETURNING l.feed_id, l.epoch, l.generation, held.reason, held.error, held.is_known
    ), dirty AS ({mark_dirty("released")}), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT :kind, feed_id, :worker_id, epoch,
               jsonb_strip_nulls(jsonb_build_object('reason', reason, 'error', error))
        FROM released WHERE NOT is_known
    )
    SELECT feed_id, epoch, is_known FROM released
"""


def _smoothed(column: str, reported: str) -> str:
    """`feedq.lease.smoothed`, in SQL."""
    elapsed = "greatest(held.elapsed_s, 0.001)"
    return f"""
        CASE WHEN l.reported_at IS NULL THEN held.{reported} / greatest(held.elapsed_s, 1)
             -- Beyond twenty time constants there is nothing left, and exp() would underflow.
             ELSE l.{column} + (1 - exp(-least({elapsed} / {RATE_TIME_S}, 20)))
                  * (held.{reported} / {elapsed} - l.{column}) END
    """


_HAS_ROOM = f"coalesce(pg_column_size(held.known), 0) < {NOTICED_BYTES_MAX}"
_REPORT = f"""
    WITH given AS (
        SELECT * FROM {_PROGRESS}
    ), locked AS (
        {_locked("l.worker_id, l.state, l.reason, l.reported_at, l.running_since, l.moved_at, l.noticed AS known")}
    ), held AS (
        SELECT locked.*, extract(epoch FROM clock_timestamp() - greatest(reported_at, running_since))::float8
            AS elapsed_s,
            -- The owner that releases it still reports, and is connected.
            moved_at IS NOT NULL AND state = 'running' AND connected AS has_arrived,
            state = 'running' AND reason = 'failed' AND (records > 0 OR attempts > 0) AS can_run
        FROM locked WHERE worker_id = :worker_id AND state = ANY(:states)
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT :mended, feed_id, worker_id, epoch FROM held WHERE can_run AND records > 0
    ), rewinds AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT :rewound, feed_id, worker_id, epoch, rewind FROM held WHERE rewind IS NOT NULL
    ), notices AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT :notice, feed_id, worker_id, epoch, news.detail FROM held CROSS JOIN LATERAL (
            SELECT jsonb_object_agg(key, value) AS detail FROM jsonb_each(held.noticed)
            WHERE known -> key IS DISTINCT FROM value
        ) news
        WHERE news.detail IS NOT NULL AND {_HAS_ROOM}
    )
    UPDATE feedq.lease l SET
        records_total = l.records_total + held.records,
        bytes_total = l.bytes_total + held.bytes,
        dead_letters_total = l.dead_letters_total + held.dead_letters,
        -- Below zero while letters were replayed that no report has counted yet: this one has.
        dead_letters = greatest(l.dead_letters + held.dead_letters, 0),
        -- Never earlier: a report that was held up dates it too late, and the next one must not take that back.
        last_record_at = greatest(
            clock_timestamp() - make_interval(secs => held.last_record_ago_s), l.last_record_at),
        rows_per_s = {_smoothed("rows_per_s", "records")},
        bytes_per_s = {_smoothed("bytes_per_s", "bytes")},
        dead_per_s = {_smoothed("dead_per_s", "dead_letters")},
        dead_letter_error = coalesce(held.dead_letter_error, l.dead_letter_error),
        dead_letter_at = CASE WHEN held.dead_letters > 0 THEN clock_timestamp() ELSE l.dead_letter_at END,
        sink_error = held.sink_error, failures = held.failures,
        -- On one on which it failed before: then it was not the worker that could not reach its source.
        avoid = CASE WHEN held.records > 0 AND l.avoid <> '{{}}' AND jsonb_exists(l.avoid,
                         (SELECT name FROM feedq.worker WHERE id = :worker_id)) THEN '{{}}' ELSE l.avoid END,
        reason = CASE WHEN NOT held.can_run THEN l.reason END,
        reported_at = clock_timestamp(),
        moved_at = CASE WHEN NOT held.has_arrived THEN l.moved_at END,
        cursor = held.cursor, connected = held.connected, stalled = held.stalled, attempts = held.attempts,
        event_at = CASE WHEN held.has_event_times THEN
            greatest(least(to_timestamp(held.event_at), clock_timestamp()), l.event_at) END,
        event_fault = CASE WHEN held.records > 0 OR NOT held.has_event_times THEN held.event_fault
            ELSE l.event_fault END,
        noticed = CASE WHEN held.noticed IS NULL OR NOT {_HAS_ROOM} THEN l.noticed
            ELSE coalesce(l.noticed, '{{}}') || held.noticed END,
        last_error = coalesce(held.error, l.last_error),
        last_error_at = CASE WHEN held.error IS NULL THEN l.last_error_at ELSE clock_timestamp() END
    FROM held WHERE l.feed_id = held.feed_id RETURNING l.feed_id, l.epoch, held.has_arrived
"""


@dataclass(frozen=True, slots=True)
class Followed:
    """A lease as seen by a process that streams the feed on behalf of another process's worker session."""

    worker_id: UUID
    worker_state: WorkerState
    stopping: Reason | None
    """Set when the owner was asked to stop."""
    remaining_s: float
    """The seconds until the worker's last heartbeat expires, on the database's clock."""
    tapped: bool = False
    """Whether somebody listens to its records."""


class Leases(Aggregate):
    """The owner's side of the lease. Each statement matches feed, epoch and worker, or does nothing."""

    def __init__(self, database: Database, *, restart_hold_s: float = 0.0) -> None:
        super().__init__(database)
        self._restart_hold_s = restart_hold_s

    @in_statement
    def claim(self, c: Connection, worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        """assigned → running. Keys that do not match are left out: their messages are stale."""
        # Keys come from messages, which anybody may have forged: a number too large for its column would fail the
        # statement, and with it the claims of all the others.
        possible = [key for key in keys if all(0 < n <= BIGINT_MAX for n in key)]
        parameters = {
            "worker_id": worker_id,
            "kind": EventKind.LEASE_CLAIMED.value,
            **_KEYS.of(possible),
        }
        rows = c.execute(text(_CLAIM), parameters).all()
        return [_claim_from(row) for row in rows]

    @in_statement
    def claimed(self, c: Connection, worker_id: UUID, key: FeedKey) -> Claim | None:
        """A claim that was granted to this worker before and still holds; None when it does not."""
        sql = f"""
            SELECT {FEED_COLUMNS}, l.epoch, l.attempts, l.failures, l.quarantined, l.blamed,
                false AS is_new_here, l.reason IS NOT NULL AS has_failed, false AS after_loss
            FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
            WHERE l.feed_id = :feed_id AND l.epoch = :epoch AND l.worker_id = :worker_id AND l.state = 'running'
        """
        parameters = {"worker_id": worker_id, "feed_id": key[0], "epoch": key[1]}
        row = c.execute(text(sql), parameters).one_or_none()
        return None if row is None else _claim_from(row)

    @in_transaction
    def release(self, c: Connection, worker_id: UUID, releases: Sequence[Release]) -> list[FeedKey]:
        """running or stopping → idle; wakes reconcile. Returns what matched."""
        parameters = {
            "worker_id": worker_id,
            "kind": EventKind.LEASE_RELEASED.value,
            "states": [s.value for s in states_before(Move.RELEASE)],
            **_columns(releases, _RELEASED.columns),
            "reason": [r.reason.value for r in releases],
            "error": [_said(r.error) for r in releases],
            "hold_s": self._restart_hold_s,
        }
        matched = c.execute(text(_RELEASE), parameters).all()
        keys = [(row.feed_id, row.epoch) for row in matched]
        for r in releases:
            if r.blame is not None and r.key in keys:
                blame(c, r.feed_id, worker_id, r.blame, said=f"{r.blame.cause}: {r.blame.said}")
        # Nobody waits for what was only checked again.
        if not all(row.is_known for row in matched):
            wake_reconcile(c)
        return keys

    @in_transaction
    def report(self, c: Connection, worker_id: UUID, progress: Sequence[Progress]) -> list[FeedKey]:
        """Add up progress. Returns what matched; the rest has been lost and must be stopped."""
        parameters = {
            "worker_id": worker_id,
            "mended": EventKind.FEED_MENDED.value,
            "rewound": EventKind.SINK_REWOUND.value,
            "notice": EventKind.FEED_NOTICED.value,
            "states": [s.value for s in states_before(Move.RELEASE)],
            **_columns(progress, _PROGRESS.columns),
            "cursor": [storable_json(p.cursor) for p in progress],
            "error": [_said(p.error) for p in progress],
            "dead_letter_error": [_said(p.dead_letter_error) for p in progress],
            "sink_error": [_said(p.sink_error) for p in progress],
            "event_fault": [_said(p.event_fault) for p in progress],
            "rewind": [None if p.rewind is None else _detail(p.rewind) for p in progress],
            "noticed": [None if p.noticed is None else _encoded(p.noticed) for p in progress],
        }
        matched = c.execute(text(_REPORT), parameters).all()
        if any(row.has_arrived for row in matched):
            wake_reconcile(c)  # others may move now
        return [(row.feed_id, row.epoch) for row in matched]

    @in_statement
    def assigned(self, c: Connection, worker_id: UUID, *, limit: int) -> list[FeedKey]:
        """Return the assignments that wait for this worker to claim them, whether or not a message says so."""
        sql = """
            SELECT feed_id, epoch FROM feedq.lease
            WHERE worker_id = :worker_id AND state = 'assigned' ORDER BY feed_id LIMIT :limit
        """
        return _keys(c, sql, {"worker_id": worker_id, "limit": limit})

    @in_statement
    def stop_requests(self, c: Connection, worker_id: UUID) -> list[StopRequest]:
        sql = """
            SELECT feed_id, epoch, reason FROM feedq.lease
            WHERE worker_id = :worker_id AND state = 'stopping' ORDER BY feed_id
        """
        rows = c.execute(text(sql), {"worker_id": worker_id}).all()
        return [StopRequest(row.feed_id, row.epoch, Reason(row.reason or "released")) for row in rows]

    @in_statement
    def running_of(self, c: Connection, tenants: Collection[str]) -> dict[str, int]:
        """Return how many feeds of each of these tenants run, on all workers; none is left out."""
        sql = """
            SELECT f.tenant, count(*) AS n FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
            WHERE f.tenant = ANY(:tenants) AND l.state = 'running' GROUP BY f.tenant
        """
        rows = c.execute(text(sql), {"tenants": list(tenants)}).all()
        return dict.fromkeys(tenants, 0) | {row.tenant: row.n for row in rows}

    @in_statement
    def held(self, c: Connection, worker_id: UUID) -> list[FeedKey]:
        """Return what the database thinks this worker runs (running or stopping)."""
        sql = """
            SELECT feed_id, epoch FROM feedq.lease
            WHERE worker_id = :worker_id AND state IN ('running', 'stopping') ORDER BY feed_id
        """
        return _keys(c, sql, {"worker_id": worker_id})

    @in_statement
    def follow(self, c: Connection, key: FeedKey) -> Followed | None:
        """Look up who holds the lease under ``key``, and for how long. None: nobody does, under this epoch."""
        sql = f"""
            SELECT l.worker_id, w.state AS worker_state, l.state, l.reason,
                   extract(epoch FROM w.expires_at - greatest(clock_timestamp(), w.heartbeat_at))::float8
                       AS remaining_s,
                   EXISTS (SELECT FROM feedq.tap t WHERE t.feed_id = l.feed_id AND {HAS_LISTENER}) AS tapped
            FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
            WHERE l.feed_id = :feed_id AND l.epoch = :epoch AND w.state <> 'gone'
        """
        row = c.execute(text(sql), {"feed_id": key[0], "epoch": key[1]}).one_or_none()
        if row is None:
            return None
        stopping = Reason(row.reason or "released") if row.state == "stopping" else None
        state = WorkerState(row.worker_state)
        return Followed(row.worker_id, state, stopping, row.remaining_s, row.tapped)

    @in_statement
    def raise_epoch(self, c: Connection, worker_id: UUID, key: FeedKey, *, above: int) -> FeedKey | None:
        """Lift a running lease above the epoch its sink has seen (the control database is a restored one).

        Returns the new key, or None when the lease is no longer held under ``key``.
        """
        sql = """
            WITH raised AS (
                UPDATE feedq.lease SET epoch = greatest(epoch, CAST(:above AS bigint)) + 1
                WHERE feed_id = :feed_id AND epoch = :epoch AND worker_id = :worker_id AND state = 'running'
                RETURNING feed_id, epoch
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
                SELECT :kind, feed_id, :worker_id, epoch, jsonb_build_object('from', CAST(:epoch AS bigint))
                FROM raised
            )
            SELECT feed_id, epoch FROM raised
        """
        parameters = {
            "worker_id": worker_id,
            "feed_id": key[0],
            "epoch": key[1],
            "above": above,
            "kind": EventKind.LEASE_RAISED.value,
        }
        raised = _keys(c, sql, parameters)
        return raised[0] if raised else None


def free_leases(
    c: Connection, worker_ids: list[UUID], *, reason: Reason, states: tuple[LeaseState, ...] = OWNED
) -> int:
    """Make idle what these workers hold in these states; the next owner gets another epoch."""
    sql = f"""
        WITH held AS (
            SELECT feed_id, worker_id FROM feedq.lease
            WHERE worker_id = ANY(:ids) AND state = ANY(:states) ORDER BY feed_id FOR UPDATE
        ), freed AS (
            UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = :reason, connected = false,
                stalled = false, promised_to = NULL, moved_at = NULL, stop_by = NULL, held_for = NULL,
                -- It waits for the verdict when it was in hand at another worker's loss not long ago, or was lost
                -- with a worker a moment ago, nobody knows yet how: so what ends each worker within a second is
                -- not faster than the verdict.
                retry_at = CASE WHEN :lost AND NOT l.quarantined AND (
                        l.blamed_at >= clock_timestamp() - make_interval(secs => {BLAME_RECENT.total_seconds()})
                        OR (l.lost_at >= clock_timestamp() - make_interval(secs => {SOON.total_seconds()})
                            AND EXISTS (SELECT FROM feedq.worker w WHERE w.id = l.lost_worker AND w.loss IS NULL))
                    ) THEN clock_timestamp() + make_interval(secs => {VERDICT_S}) END,
                lost_worker = CASE WHEN :lost THEN held.worker_id ELSE l.lost_worker END,
                lost_at = CASE WHEN :lost THEN clock_timestamp() ELSE l.lost_at END
            FROM held WHERE l.feed_id = held.feed_id
            RETURNING l.feed_id, held.worker_id, l.epoch, l.generation
        ), dirty AS ({mark_dirty("freed")})
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT :kind, feed_id, worker_id, epoch, jsonb_build_object('reason', CAST(:reason AS text))
        FROM freed
    """
    parameters = {
        "ids": worker_ids,
        "states": [s.value for s in states],
        "reason": reason.value,
        "lost": reason is Reason.WORKER_GONE,
        "kind": EventKind.LEASE_FREED.value,
    }
    return c.execute(text(sql), parameters).rowcount


def transfer(c: Connection, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
    """Ask owners to let go of feeds, each of which has a place already. Returns how many were asked.

    One statement turns ``running`` into ``stopping``, says where the feed goes (``promised_to``) and until when
    its owner is waited for (``stop_by``). Killed before it, nothing has happened. Killed after it, the owner lets
    go or is reaped, and any later pass assigns the feed: to the worker it was promised to, if that still takes
    feeds, else anywhere. Nothing has to be remembered outside the row.
    """
    sql = f"""
        WITH given AS (
            SELECT * FROM {_MOVED}
        ), locked AS (
            -- By nothing but keys, as above. What somebody has locked can move with another pass:
            -- this one may hold what they wait for.
            SELECT given.*, l.worker_id, l.state FROM (SELECT * FROM given ORDER BY feed_id) given
            CROSS JOIN LATERAL (
                SELECT * FROM feedq.lease WHERE feed_id = given.feed_id FOR UPDATE SKIP LOCKED
            ) l
        ), held AS (
            SELECT locked.*, s.target_state, w.name AS target_name FROM locked
            JOIN feedq.worker s ON s.id = locked.source
            JOIN feedq.worker w ON w.id = locked.target
            WHERE locked.worker_id = locked.source AND locked.state = ANY(:states) AND s.state <> 'gone'
        ), asked AS (
            UPDATE feedq.lease l SET state = 'stopping', promised_to = held.target,
                moved_at = clock_timestamp(),
                reason = CASE WHEN held.target_state = 'drained' THEN 'drained' ELSE 'moved' END,
                stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
            FROM held WHERE l.feed_id = held.feed_id
            RETURNING l.feed_id, l.epoch, l.worker_id, l.reason, held.target_name
        ), history AS (
            INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
            SELECT :kind, feed_id, worker_id, epoch, jsonb_build_object('reason', reason, 'to', target_name)
            FROM asked
        )
        SELECT worker_id FROM asked
    """
    parameters = {
        **_MOVED.of((t.feed_id, str(t.source), str(t.target)) for t in transfers),
        "states": [s.value for s in states_before(Move.ASK_TO_STOP)],
        "stop_within_s": stop_within_s,
        "kind": EventKind.STOP_REQUESTED.value,
    }
    owners = [row.worker_id for row in c.execute(text(sql), parameters)]
    notify_workers(c, list(set(owners)), NotifyReason.FEEDS)
    return len(owners)


def blame(c: Connection, feed_id: int, worker_id: UUID, loss: Loss, *, said: str) -> None:
    """Hold a loss against a feed, as `feedq.lease.on_loss` says."""
    locked = f"""
        SELECT {LEASE_COLUMNS}, clock_timestamp() AS now FROM feedq.lease l
        WHERE l.feed_id = :feed_id FOR UPDATE
    """
    row = c.execute(text(locked), {"feed_id": feed_id}).one_or_none()
    if row is None:  # the feed was removed
        return
    lease = lease_from(row, feed_id)
    verdict = on_loss(lease, is_certain=loss.is_certain, now=row.now)
    blamed = """
        UPDATE feedq.lease SET blamed = :blamed, blamed_at = clock_timestamp(), blame = :said,
            quarantined = :quarantined
        WHERE feed_id = :feed_id
    """
    parameters = {
        "feed_id": feed_id,
        "blamed": verdict.blamed,
        "said": storable(said),
        "quarantined": verdict.quarantined,
    }
    c.execute(text(blamed), parameters)
    if verdict.quarantined and not lease.quarantined:
        record(c, EventKind.FEED_QUARANTINED, feed_id, worker_id, lease.epoch, detail={"why": said})
    wake_reconcile(c)


_claimed_values = attrgetter(*(field.name for field in fields(Claim) if field.name != "feed"))


def _claim_from(row: Any) -> Claim:
    return Claim(feed_from(row), *_claimed_values(row))


def _columns(given: Sequence[Release] | Sequence[Progress], names: Collection[str]) -> dict[str, list[Any]]:
    return {name: [getattr(one, name) for one in given] for name in names}


def _keys(c: Connection, sql: str, parameters: dict[str, Any]) -> list[FeedKey]:
    return [(row.feed_id, row.epoch) for row in c.execute(text(sql), parameters)]


def _said(error: str | None) -> str | None:
    return None if error is None else storable(error)


def _encoded(noticed: Mapping[str, str]) -> str:
    return storable_json({key: said[:SAID_CHARS_MAX] for key, said in noticed.items()})


def _detail(rewind: Rewind) -> str:
    cursors = {"from": brief_cursor(rewind.left_at), "to": brief_cursor(rewind.found_at)}
    return storable_json({"sink": rewind.sink, **cursors})


def brief_cursor(cursor: JSON) -> JSON:
    """The cursor for history, which is to be read, and kept for weeks: a long one as a text that is cut."""
    shown = storable_json(cursor)
    brief: JSON = json.loads(shown) if len(shown) <= CURSOR_CHARS_MAX else storable(shown)
    return brief
