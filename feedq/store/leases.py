"""The owner's side of the lease: claim, release, report. Grouped: one statement for many feeds.

Every statement names feed, epoch and worker, and has no effect on a row that no longer matches. Rows are
locked in the order of feed ids, here and in the passes, so that two statements cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, text

from feedq.lease import AVOIDED_MAX, FAILOVER_WITHIN, RATE_TIME_S, Move, states_before
from feedq.model import JSON, Claim, FeedKey, Progress, Reason, Release, Rewind, StopRequest, WorkerState
from feedq.store.base import Followed
from feedq.store.channels import WAKE_SQL
from feedq.store.database import Database
from feedq.store.dirty import look_again
from feedq.store.feed_rows import FEED_COLUMNS, feed_from
from feedq.store.quarantine_records import blame
from feedq.telemetry import EventKind

ERROR_CHARS_MAX = 2_000
"""Longer messages are cut: a source's error page must not fill the table."""
CURSOR_CHARS_MAX = 500


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
"""What cannot run as declared is looked at again: until more is known it has failed, and history need not say so
again."""

# What feedq.lease.is_after_loss says.
_AFTER_LOSS = f"""coalesce(
    locked.lost_at >= clock_timestamp() - make_interval(secs => {FAILOVER_WITHIN.total_seconds()})
    AND (locked.running_since IS NULL OR locked.lost_at > locked.running_since)
    AND (SELECT lost.heartbeat_at > w.started_at FROM feedq.worker lost WHERE lost.id = locked.lost_worker), false)
"""

_CLAIM = f"""
    WITH given AS (
        SELECT * FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:epochs AS bigint[])) AS t (feed_id, epoch)
    ), locked AS ({_locked("l.worker_id, l.state, l.running_since, l.lost_at, l.lost_worker")}), held AS (
        -- FOR SHARE on the feed: an edit that commits while we wait for the lease must be read, not missed.
        SELECT {FEED_COLUMNS}, w.name AS worker_name, w.started_at AS worker_started_at,
            {_AFTER_LOSS} AS after_loss
        FROM locked JOIN feedq.worker w ON w.id = locked.worker_id
        CROSS JOIN LATERAL (SELECT * FROM feedq.feed WHERE id = locked.feed_id FOR SHARE) f
        WHERE locked.worker_id = :worker_id AND locked.state = 'assigned' AND w.state = 'active'
    ), claimed AS (
        UPDATE feedq.lease l SET state = 'running', {STILL_FAILED}, generation = held.feed_generation,
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
        SELECT * FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:epochs AS bigint[]), CAST(:reasons AS text[]),
            CAST(:delays AS float8[]), CAST(:attempts AS int[]), CAST(:errors AS text[]))
            AS t (feed_id, epoch, reason, delay_s, attempts, error)
    ), locked AS (
        {_locked("l.worker_id, l.state, l.promised_to, l.reason AS before, l.last_error")}
    ), held AS (
        -- Whether it is kept for a successor is what feedq.lease.is_kept_for_successor says.
        SELECT locked.feed_id, locked.error, locked.attempts, w.name AS worker,
            coalesce(locked.reason = 'failed' AND before = 'failed' AND error = last_error, false) AS is_known,
            CASE WHEN kept THEN 'held' ELSE locked.reason END AS reason,
            CASE WHEN kept THEN :hold_s ELSE locked.delay_s END AS delay_s
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
            last_error_at = CASE WHEN held.error IS NULL THEN l.last_error_at ELSE clock_timestamp() END
        FROM held WHERE l.feed_id = held.feed_id
        RETURNING l.feed_id, l.epoch, l.generation, held.reason, held.error, held.is_known
    ), dirty AS ({look_again("released")}), history AS (
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


_REPORT = f"""
    WITH given AS (
        SELECT * FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:epochs AS bigint[]),
            CAST(:records AS bigint[]), CAST(:bytes AS bigint[]), CAST(:dead AS bigint[]),
            CAST(:ages AS float8[]), CAST(:cursors AS jsonb[]), CAST(:connected AS boolean[]),
            CAST(:stalled AS boolean[]), CAST(:attempts AS int[]), CAST(:errors AS text[]),
            CAST(:failures AS int[]), CAST(:dead_errors AS text[]), CAST(:sink_errors AS text[]),
            CAST(:rewinds AS jsonb[]))
            AS t (feed_id, epoch, records, bytes, dead, age_s, cursor, connected, stalled, attempts, error,
                  failures, dead_error, sink_error, rewind)
    ), locked AS (
        {_locked("l.worker_id, l.state, l.reason, l.reported_at, l.running_since, l.moved_at")}
    ), held AS (
        SELECT locked.*, extract(epoch FROM clock_timestamp() - greatest(reported_at, running_since))::float8
            AS elapsed_s,
            -- The owner that lets go of it still reports, and is connected.
            moved_at IS NOT NULL AND state = 'running' AND connected AS has_arrived,
            state = 'running' AND reason = 'failed' AND (records > 0 OR attempts > 0) AS can_run
        FROM locked WHERE worker_id = :worker_id AND state = ANY(:states)
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT :mended, feed_id, worker_id, epoch FROM held WHERE can_run AND records > 0
    ), rewinds AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT :rewound, feed_id, worker_id, epoch, rewind FROM held WHERE rewind IS NOT NULL
    )
    UPDATE feedq.lease l SET
        records_total = l.records_total + held.records,
        bytes_total = l.bytes_total + held.bytes,
        dead_letters_total = l.dead_letters_total + held.dead,
        last_record_at = coalesce(clock_timestamp() - make_interval(secs => held.age_s), l.last_record_at),
        rows_per_s = {_smoothed("rows_per_s", "records")},
        bytes_per_s = {_smoothed("bytes_per_s", "bytes")},
        dead_per_s = {_smoothed("dead_per_s", "dead")},
        dead_letter_error = coalesce(held.dead_error, l.dead_letter_error),
        dead_letter_at = CASE WHEN held.dead > 0 THEN clock_timestamp() ELSE l.dead_letter_at END,
        sink_error = held.sink_error, failures = held.failures,
        -- On one on which it failed before: then it was not the worker that could not reach its source.
        avoid = CASE WHEN held.records > 0 AND l.avoid <> '{{}}' AND jsonb_exists(l.avoid,
                         (SELECT name FROM feedq.worker WHERE id = :worker_id)) THEN '{{}}' ELSE l.avoid END,
        reason = CASE WHEN NOT held.can_run THEN l.reason END,
        reported_at = clock_timestamp(),
        moved_at = CASE WHEN NOT held.has_arrived THEN l.moved_at END,
        cursor = held.cursor, connected = held.connected, stalled = held.stalled, attempts = held.attempts,
        last_error = coalesce(held.error, l.last_error),
        last_error_at = CASE WHEN held.error IS NULL THEN l.last_error_at ELSE clock_timestamp() END
    FROM held WHERE l.feed_id = held.feed_id RETURNING l.feed_id, l.epoch, held.has_arrived
"""


BIGINT_MAX = 2**63 - 1


class PostgresLeases:
    """`feedq.store.base.Leases` on PostgreSQL."""

    def __init__(self, database: Database, *, restart_hold_s: float = 0.0) -> None:
        self._database = database
        self._restart_hold_s = restart_hold_s

    def claim(self, worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        parameters = {
            "worker_id": worker_id,
            "kind": EventKind.LEASE_CLAIMED.value,
            # Keys come from messages, which anybody may have forged: a number too large for its column
            # would fail the statement, and with it the claims of all the others.
            **_key_columns([key for key in keys if all(0 < n <= BIGINT_MAX for n in key)]),
        }
        with self._database.statement() as c:
            rows = c.execute(text(_CLAIM), parameters).all()
        return [_claim_from(row) for row in rows]

    def claimed(self, worker_id: UUID, key: FeedKey) -> Claim | None:
        sql = f"""
            SELECT {FEED_COLUMNS}, l.epoch, l.attempts, l.failures, l.quarantined, l.blamed,
                false AS is_new_here, l.reason IS NOT NULL AS has_failed, false AS after_loss
            FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
            WHERE l.feed_id = :feed_id AND l.epoch = :epoch AND l.worker_id = :worker_id AND l.state = 'running'
        """
        parameters = {"worker_id": worker_id, "feed_id": key[0], "epoch": key[1]}
        with self._database.statement() as c:
            row = c.execute(text(sql), parameters).one_or_none()
        return None if row is None else _claim_from(row)

    def release(self, worker_id: UUID, releases: Sequence[Release]) -> list[FeedKey]:
        parameters = {
            "worker_id": worker_id,
            "kind": EventKind.LEASE_RELEASED.value,
            "states": [s.value for s in states_before(Move.RELEASE)],
            **_key_columns([r.key for r in releases]),
            "reasons": [r.reason.value for r in releases],
            "delays": [r.retry_in_s for r in releases],
            "attempts": [r.attempts for r in releases],
            "errors": [_cut(r.error) for r in releases],
            "hold_s": self._restart_hold_s,
        }
        with self._database.transaction() as c:
            matched = c.execute(text(_RELEASE), parameters).all()
            keys = [(row.feed_id, row.epoch) for row in matched]
            for r in releases:
                if r.blame is not None and r.key in keys:
                    blame(c, r.feed_id, worker_id, r.blame, said=f"{r.blame.cause}: {r.blame.said}")
            # Nobody waits for what was only looked at again.
            if not all(row.is_known for row in matched):
                c.execute(text(WAKE_SQL))
        return keys

    def report(self, worker_id: UUID, progress: Sequence[Progress]) -> list[FeedKey]:
        parameters = {
            "worker_id": worker_id,
            "mended": EventKind.FEED_MENDED.value,
            "rewound": EventKind.SINK_REWOUND.value,
            "states": [s.value for s in states_before(Move.RELEASE)],
            **_key_columns([p.key for p in progress]),
            "records": [p.records for p in progress],
            "bytes": [p.bytes for p in progress],
            "dead": [p.dead_letters for p in progress],
            "ages": [p.last_record_ago_s for p in progress],
            "cursors": [_shown(p.cursor) for p in progress],
            "connected": [p.connected for p in progress],
            "stalled": [p.stalled for p in progress],
            "attempts": [p.attempts for p in progress],
            "errors": [_cut(p.error) for p in progress],
            "failures": [p.failures for p in progress],
            "dead_errors": [_cut(p.dead_letter_error) for p in progress],
            "sink_errors": [_cut(p.sink_error) for p in progress],
            "rewinds": [None if p.rewind is None else _detail(p.rewind) for p in progress],
        }
        with self._database.transaction() as c:
            matched = c.execute(text(_REPORT), parameters).all()
            if any(row.has_arrived for row in matched):
                c.execute(text(WAKE_SQL))  # others may move now
        return [(row.feed_id, row.epoch) for row in matched]

    def assigned(self, worker_id: UUID, *, limit: int) -> list[FeedKey]:
        sql = """
            SELECT feed_id, epoch FROM feedq.lease
            WHERE worker_id = :worker_id AND state = 'assigned' ORDER BY feed_id LIMIT :limit
        """
        with self._database.statement() as c:
            return _keys(c, sql, {"worker_id": worker_id, "limit": limit})

    def stop_requests(self, worker_id: UUID) -> list[StopRequest]:
        sql = """
            SELECT feed_id, epoch, reason FROM feedq.lease
            WHERE worker_id = :worker_id AND state = 'stopping' ORDER BY feed_id
        """
        with self._database.statement() as c:
            rows = c.execute(text(sql), {"worker_id": worker_id}).all()
        return [StopRequest(row.feed_id, row.epoch, Reason(row.reason or "released")) for row in rows]

    def running_of(self, tenants: Collection[str]) -> dict[str, int]:
        sql = """
            SELECT f.tenant, count(*) AS n FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
            WHERE f.tenant = ANY(:tenants) AND l.state = 'running' GROUP BY f.tenant
        """
        with self._database.statement() as c:
            rows = c.execute(text(sql), {"tenants": list(tenants)}).all()
        return dict.fromkeys(tenants, 0) | {row.tenant: row.n for row in rows}

    def held(self, worker_id: UUID) -> list[FeedKey]:
        sql = """
            SELECT feed_id, epoch FROM feedq.lease
            WHERE worker_id = :worker_id AND state IN ('running', 'stopping') ORDER BY feed_id
        """
        with self._database.statement() as c:
            return _keys(c, sql, {"worker_id": worker_id})

    def follow(self, key: FeedKey) -> Followed | None:
        sql = """
            SELECT l.worker_id, w.state AS worker_state, l.state, l.reason,
                   extract(epoch FROM w.expires_at - greatest(clock_timestamp(), w.heartbeat_at))::float8
                       AS remaining_s
            FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
            WHERE l.feed_id = :feed_id AND l.epoch = :epoch AND w.state <> 'gone'
        """
        with self._database.statement() as c:
            row = c.execute(text(sql), {"feed_id": key[0], "epoch": key[1]}).one_or_none()
        if row is None:
            return None
        stopping = Reason(row.reason or "released") if row.state == "stopping" else None
        return Followed(row.worker_id, WorkerState(row.worker_state), stopping, row.remaining_s)

    def raise_epoch(self, worker_id: UUID, key: FeedKey, *, above: int) -> FeedKey | None:
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
        with self._database.statement() as c:
            raised = _keys(c, sql, parameters)
        return raised[0] if raised else None


def _claim_from(row: Any) -> Claim:
    return Claim(
        feed_from(row),
        row.epoch,
        row.attempts,
        row.failures,
        row.quarantined,
        row.blamed,
        row.is_new_here,
        row.has_failed,
        row.after_loss,
    )


def _key_columns(keys: Sequence[FeedKey]) -> dict[str, list[int]]:
    return {"feed_ids": [feed_id for feed_id, _ in keys], "epochs": [epoch for _, epoch in keys]}


def _keys(c: Connection, sql: str, parameters: dict[str, Any]) -> list[FeedKey]:
    return [(row.feed_id, row.epoch) for row in c.execute(text(sql), parameters)]


def _cut(error: str | None) -> str | None:
    # NUL cannot be stored in a text column, and a source may well send one in its error message.
    return None if error is None else error.replace("\x00", "�")[:ERROR_CHARS_MAX]


def _detail(rewind: Rewind) -> str:
    shown = {"from": _shown(rewind.left_at), "to": _shown(rewind.found_at)}
    # A long cursor as a text that is cut: history is to be read, and kept for weeks.
    cursors = {k: orjson.loads(v) if len(v) <= CURSOR_CHARS_MAX else _cut(v) for k, v in shown.items()}
    return orjson.dumps({"sink": rewind.sink, **cursors}).decode()


def _shown(cursor: JSON) -> str:
    """The cursor as JSON that a jsonb column can hold: here it is for show, the sink keeps the exact one."""
    try:
        encoded = orjson.dumps(cursor).decode()
    except TypeError:
        encoded = orjson.dumps(repr(cursor)).decode()  # beyond 64 bits, or half a surrogate pair
    return encoded.replace("\\u0000", "\\ufffd")
