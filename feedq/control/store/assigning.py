"""Assignments: which feeds a pass places, what each weighs, and the statement that gives them to workers.

A million feeds may be without a place for long. So the ones about which something is new come first, and those
that were found to have no place take turns: each pass goes on where the one before it ended.

A feed weighs what is declared, blended with what was measured of it: one that lands as many rows and bytes a
second as the mean of the fleet measures 1; half of the measure is rows, half bytes. Leases hold the smoothed
rates, workers' heartbeats the fleet's sums.

What workers hold is counted, so that a pass reads a row a worker and none of their feeds. Triggers on `lease`
write what a statement changed to ``held_change``; each pass folds that into ``worker_held``, and the sweep counts
anew. A change and the line that tells of it commit together, so the two tables always add up to the truth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cached_property
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.control.store.channels import NotifyReason, notify_workers
from feedq.control.store.database import GivenRows
from feedq.control.store.feed_rows import avoided_from, selector_from
from feedq.control.store.leases import BIGINT_MAX
from feedq.core.lease import RATE_TIME_S, Move, states_before
from feedq.core.model import Assignment, Reason
from feedq.core.placement.base import NO_EXPERIENCE, EligibleWorker, Experience, WaitingFeed, lags
from feedq.settings import DEFAULT_SINK
from feedq.telemetry.event_names import EventKind

WEIGHT_MIN = 0.01
"""A silent feed weighs this much: none at all would let any number of them go to one worker."""

# A feed that lands nothing reports nothing: beyond one time constant its rates are taken to fade.
_SILENT_S = "extract(epoch FROM clock_timestamp() - l.reported_at)::float8"
_FADE = f"exp(-least(greatest({_SILENT_S} / {RATE_TIME_S} - 1, 0), 20))"
# As a feed weighs now, of `feed f` and `lease l`. Rounded, so that two who compute it agree.
EFFECTIVE_WEIGHT = f"""
    CASE WHEN :measured = 0 OR l.reported_at IS NULL OR (:mean_rows = 0 AND :mean_bytes = 0) THEN f.weight
    ELSE greatest({WEIGHT_MIN}, round(CAST((1 - :measured) * f.weight + :measured * {_FADE} * (
        coalesce(l.rows_per_s / nullif(:mean_rows, 0), l.bytes_per_s / :mean_bytes)
        + coalesce(l.bytes_per_s / nullif(:mean_bytes, 0), l.rows_per_s / :mean_rows)) / 2
        AS numeric), 2)::float8) END
"""


def means(c: Connection, *, measured: float) -> dict[str, float]:
    """The parameters of `EFFECTIVE_WEIGHT`: what the mean feed of the fleet lands, and how much that counts."""
    if not measured:
        return {"measured": 0.0, "mean_rows": 0.0, "mean_bytes": 0.0}
    sql = """
        SELECT CAST(:measured AS float8) AS measured,
               coalesce(sum(w.rows_per_s) / greatest(sum(h.feeds), 1), 0) AS mean_rows,
               coalesce(sum(w.bytes_per_s) / greatest(sum(h.feeds), 1), 0) AS mean_bytes
        FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id WHERE w.state <> 'gone'
    """
    return dict(c.execute(text(sql), {"measured": measured}).mappings().one())


# As `feedq.core.placement` knows it: in lower case, as settings look it up.
SINK = f"lower(coalesce(f.sink ->> 'name', '{DEFAULT_SINK}'))"
# Whom a feed gets its records from, as far as its declaration tells: where one fails others may.
REMOTE = """
    coalesce(lower(substring(f.source ->> 'url' FROM '//([^/?#]*)')), f.source ->> 'command', f.name)
"""
# Each branch is a small index of its own. What is due is asked for with the time at which the statement
# began: with a clock that moves on, the index could not be used.
_MAY_START = "l.state = 'idle'"
_IDLE = """
    SELECT l.feed_id FROM feedq.lease l CROSS JOIN LATERAL (
        SELECT FROM feedq.feed WHERE id = l.feed_id AND removed_at IS NULL AND target_state = 'running'
        OFFSET 0  -- one look-up a lease: merged with all feeds by id, those that have a place would be read too
    ) f
"""
_NEWS = f"""
    SELECT feed_id FROM (
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL
           AND l.reason NOT IN ('paused', 'failed', 'removed', 'no_capacity', 'no_match', 'finished')
         ORDER BY l.feed_id LIMIT :limit)
        UNION ALL
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NOT NULL AND l.retry_at <= statement_timestamp()
           AND l.reason NOT IN ('paused', 'removed')
         ORDER BY l.retry_at LIMIT :limit)
    ) news ORDER BY feed_id LIMIT :limit
"""
_UNPLACED = f"""
    SELECT feed_id FROM (
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL AND l.reason = 'no_capacity'
           AND l.feed_id > :after AND l.feed_id <= :upto ORDER BY l.feed_id LIMIT :limit)
        UNION ALL
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL AND l.reason = 'no_match'
           AND l.feed_id > :after AND l.feed_id <= :upto ORDER BY l.feed_id LIMIT :limit)
    ) unplaced ORDER BY feed_id LIMIT :limit
"""
_DETAILS = f"""
    SELECT l.feed_id, l.reason, l.promised_to, f.tenant, nullif(f.selector, '{{}}') AS selector,
        nullif(l.avoid, '{{}}') AS avoid, {SINK} AS sink, {REMOTE} AS remote, {EFFECTIVE_WEIGHT} AS weight
    FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
    WHERE l.feed_id = ANY(:ids)
      -- Removed and declared anew: the one that is ending must be off the source first.
      AND NOT EXISTS (
          SELECT FROM feedq.lease ending JOIN feedq.feed removed ON removed.id = ending.feed_id
          WHERE ending.state = 'stopping' AND removed.removed_at IS NOT NULL AND removed.name = f.name)
    ORDER BY l.feed_id
"""
# Leases by nothing but their keys; what state they are in is asked after. Told that few can match, as there were
# few when statistics were taken, the planner would go through all of them for each.
_REASONS = GivenRows("feed_id bigint, reason text")
_PAIRS = GivenRows("feed_id bigint, worker_id uuid")
GIVEN = f"""
    given AS (
        SELECT given.*, l.state FROM {_REASONS}
        JOIN feedq.lease l USING (feed_id) ORDER BY feed_id FOR UPDATE OF l
    )
"""


class PassAssignments:
    """The part of a reconcile pass that gives feeds their places."""

    _c: Connection
    _measured_load: float
    _waiting_after: int

    @cached_property
    def _means(self) -> dict[str, float]:
        return means(self._c, measured=self._measured_load)

    def waiting(self, *, limit: int) -> list[WaitingFeed]:
        """Feeds to place now. When there are more than ``limit`` the next pass begins where this one ends, so
        that feeds without a place keep no others from theirs."""
        c, after = self._c, self._waiting_after
        self._promise_to_successors()
        ids = _ids(c, _NEWS, limit=limit)
        left = limit - len(ids)
        if left > 0:
            unplaced = _ids(c, _UNPLACED, limit=left, after=after, upto=BIGINT_MAX)
            if after and len(unplaced) < left:
                unplaced += _ids(c, _UNPLACED, limit=left - len(unplaced), after=0, upto=after)
            ids += unplaced
            self._waiting_after = unplaced[-1] if len(unplaced) == left else 0
        if not ids:
            return []
        known = experiences(c, proven=True)
        rows = c.execute(text(_DETAILS), {"ids": ids, **self._means})
        return [
            WaitingFeed(
                row.feed_id,
                row.weight,
                Reason(row.reason),
                row.tenant,
                selector_from(row.selector),
                row.promised_to,
                known.get(row.remote, NO_EXPERIENCE).avoided(avoided_from(row.avoid)),
                row.sink,
            )
            for row in rows
        ]

    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        """Workers that may be given feeds; with their feeds of these tenants, counted from the leases."""
        c = self._c
        fold(c)
        # One statement sees one moment: a release between the fold and this is a line in held_change here, and a
        # promise that is idle. Without that line the feed would count for its old worker and for its new one.
        sql = f"""
            SELECT w.id, w.name, w.queue, w.capacity, w.started_at, w.labels, w.sinks_down, w.loop_lag_s,
                extract(epoch FROM clock_timestamp() - w.heartbeat_at)::float8 AS silent_s,
                extract(epoch FROM w.expires_at - w.heartbeat_at)::float8 AS ttl_s,
                greatest(coalesce(h.feeds, 0) + coalesce(n.feeds, 0) + coalesce(s.feeds, 0), 0) AS feeds,
                greatest(coalesce(h.weight, 0) + coalesce(n.weight, 0) + coalesce(s.weight, 0), 0)::float8 AS load
            FROM feedq.worker w
            LEFT JOIN feedq.worker_held h ON h.worker_id = w.id
            LEFT JOIN ({_UNFOLDED}) n ON n.worker_id = w.id
            LEFT JOIN ({_SHIFTED}) s ON s.worker_id = w.id
            -- One without places for feeds (`-Q jobs`) is no part of the fleet that they are spread over.
            WHERE {SERVING} AND w.capacity > 0 ORDER BY w.id
        """
        rows = c.execute(text(sql)).all()
        by_worker = held_by_tenant(c, tenants) if tenants and rows else {}
        return [
            EligibleWorker(
                row.id,
                row.name,
                row.queue,
                row.capacity,
                row.feeds,
                row.load,
                row.started_at,
                row.labels,
                by_worker.get(row.id, {}),
                frozenset(map(str.lower, row.sinks_down)),
                lags(loop_lag_s=row.loop_lag_s, silent_s=row.silent_s, ttl_s=row.ttl_s),
            )
            for row in rows
        ]

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        sql = f"""
            WITH given AS (
                SELECT * FROM {_PAIRS}
            ), locked AS (
                -- By nothing but keys, as in GIVEN.
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
                    assigned_at = clock_timestamp(), retry_at = NULL, weight = free.weight,
                    reason = CASE WHEN l.reason = 'failed' THEN 'failed' END,
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
            **_PAIRS.of((feed_id, str(worker_id)) for feed_id, worker_id in pairs),
            "states": [s.value for s in states_before(Move.ASSIGN)],
            "kind": EventKind.LEASE_ASSIGNED.value,
            **self._means,
        }
        rows = self._c.execute(text(sql), parameters).all()
        # The messages follow; a worker that hears this first need not wait for them.
        notify_workers(self._c, list({row.worker_id for row in rows}), NotifyReason.FEEDS)
        return [Assignment(row.feed_id, row.epoch, row.worker_id, row.queue) for row in rows]

    def explain(self, reasons: Sequence[tuple[int, Reason]]) -> None:
        """Write why feeds are idle, where that changed."""
        if not reasons:
            return
        sql = f"""
            WITH {GIVEN}
            UPDATE feedq.lease l SET reason = given.reason, retry_at = NULL, held_for = NULL,
                promised_to = CASE WHEN given.reason IN ('new', 'settling') THEN l.promised_to END,
                moved_at = CASE WHEN given.reason IN ('new', 'settling') THEN l.moved_at END,
                attempts = CASE WHEN given.reason = 'new' THEN 0 ELSE l.attempts END,
                avoid = CASE WHEN given.reason = 'new' THEN '{{}}' ELSE l.avoid END
            FROM given WHERE l.feed_id = given.feed_id AND given.state = 'idle'
        """
        self._c.execute(text(sql), reason_columns(reasons))

    def _promise_to_successors(self) -> None:
        """Promise feeds that are held for the successor of a worker to it as soon as it is there, as far as it has
        room."""
        c = self._c
        is_any_held = text("SELECT EXISTS (SELECT FROM feedq.lease WHERE held_for IS NOT NULL)")
        if not c.execute(is_any_held).scalar_one():
            return
        sql = f"""
            WITH successor AS (
                SELECT DISTINCT ON (name) id, name FROM feedq.worker w WHERE {SERVING}
                ORDER BY name, started_at DESC
            )
            SELECT l.feed_id, successor.id AS worker_id
            FROM feedq.lease l JOIN successor ON successor.name = l.held_for
            WHERE l.held_for IS NOT NULL AND l.state = 'idle' ORDER BY l.feed_id FOR UPDATE OF l SKIP LOCKED
        """
        awaited = c.execute(text(sql)).all()
        if not awaited:
            return
        room = {worker.worker_id: worker.capacity - worker.feeds for worker in self.candidates()}
        promises: list[tuple[int, str | None]] = []
        for row in awaited:
            room[row.worker_id] = room.get(row.worker_id, 0) - 1
            # What a worker has no room for may go anywhere.
            promises.append((row.feed_id, str(row.worker_id) if room[row.worker_id] >= 0 else None))
        end_hold = f"""
            UPDATE feedq.lease l SET held_for = NULL, retry_at = NULL, promised_to = given.worker_id
            FROM {_PAIRS}
            WHERE l.feed_id = given.feed_id
        """
        c.execute(text(end_hold), _PAIRS.of(promises))


def reason_columns(reasons: Sequence[tuple[int, Reason | None]]) -> dict[str, list[object]]:
    return _REASONS.of((feed_id, reason and reason.value) for feed_id, reason in reasons)


def _ids(c: Connection, sql: str, **parameters: int) -> list[int]:
    return [row.feed_id for row in c.execute(text(sql), parameters)]


def experiences(c: Connection, *, proven: bool) -> dict[str, Experience]:
    """Finds on which workers feeds failed, by remote, and whether others have begun to land records there since.

    With ``proven`` only failures of feeds that have landed records elsewhere since: then it is the worker, and not
    the source.

    Most of the time no feed has failed anywhere, and an empty index is all that is read.
    """
    condition = (
        "l.state = 'running' AND l.connected AND l.last_record_at > to_timestamp(failed.value::float8)"
    )
    sql = f"""
        SELECT {REMOTE} AS remote, failed.key AS worker, to_timestamp(max(failed.value::float8)) AS at
        FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
        CROSS JOIN LATERAL jsonb_each_text(l.avoid) failed
        WHERE l.avoid <> '{{}}' AND ({condition if proven else "true"}) GROUP BY 1, 2
    """
    failed = _by_remote(c, sql)
    if not failed:
        return {}
    sql = f"""
        SELECT {REMOTE} AS remote, w.name AS worker, max(l.running_since) AS at
        FROM feedq.worker w JOIN feedq.lease l ON l.worker_id = w.id JOIN feedq.feed f ON f.id = l.feed_id
        WHERE w.name = ANY(:names) AND w.state <> 'gone' AND l.state = 'running' AND l.connected
            AND l.last_record_at > l.running_since
        GROUP BY 1, 2
    """
    names = {name for workers in failed.values() for name in workers}
    landed = _by_remote(c, sql, names=list(names))
    return {remote: Experience(workers, landed.get(remote, {})) for remote, workers in failed.items()}


def _by_remote(c: Connection, sql: str, **parameters: list[str]) -> dict[str, dict[str, datetime]]:
    found: dict[str, dict[str, datetime]] = {}
    for row in c.execute(text(sql), parameters):
        found.setdefault(row.remote, {})[row.worker] = row.at
    return found


# What is promised counts for the worker that it is promised to, and no longer for the one that is releasing it.
_SHIFTED = """
    SELECT worker_id, sum(feeds)::int AS feeds, sum(weight) AS weight FROM (
        SELECT promised_to AS worker_id, 1 AS feeds, weight FROM feedq.lease
        WHERE promised_to IS NOT NULL AND state IN ('idle', 'stopping')
        UNION ALL
        SELECT worker_id, -1, -weight FROM feedq.lease
        WHERE promised_to IS NOT NULL AND state = 'stopping'
    ) promised GROUP BY worker_id
"""
_UNFOLDED = """
    SELECT worker_id, sum(feeds)::int AS feeds, sum(weight) AS weight FROM feedq.held_change GROUP BY worker_id
"""
SERVING = """
    w.state = 'active' AND w.target_state = 'serving' AND w.expires_at > clock_timestamp()
    AND w.suspected_at IS NULL
"""


def fold(c: Connection) -> None:
    """Take in what has changed since. Writes nothing when nothing has."""
    sql = """
        WITH folded AS (DELETE FROM feedq.held_change RETURNING *), changes AS (
            SELECT f.worker_id, sum(f.feeds)::int AS feeds, sum(f.weight) AS weight
            FROM folded f JOIN feedq.worker w ON w.id = f.worker_id GROUP BY f.worker_id
        )
        INSERT INTO feedq.worker_held AS h (worker_id, feeds, weight)
        SELECT worker_id, feeds, weight FROM changes
        ON CONFLICT (worker_id) DO UPDATE SET feeds = h.feeds + excluded.feeds,
            -- Sums of fractions drift; a worker without feeds has no load.
            weight = CASE WHEN h.feeds + excluded.feeds = 0 THEN 0 ELSE h.weight + excluded.weight END
    """
    c.execute(text(sql))


def held_by_tenant(c: Connection, tenants: Collection[str]) -> dict[UUID, dict[str, int]]:
    """How many feeds of these tenants each worker has, promised ones included."""
    sql = """
        SELECT CASE WHEN l.state IN ('idle', 'stopping') THEN coalesce(l.promised_to, l.worker_id)
                    ELSE l.worker_id END AS worker_id, f.tenant, count(*) AS feeds
        FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
        WHERE f.tenant <> '' AND f.tenant = ANY(:tenants)
          AND (l.worker_id IS NOT NULL OR l.promised_to IS NOT NULL)
        GROUP BY 1, 2
    """
    counts: dict[UUID, dict[str, int]] = {}
    for row in c.execute(text(sql), {"tenants": list(tenants)}):
        counts.setdefault(row.worker_id, {})[row.tenant] = row.feeds
    return counts


def recount(c: Connection, *, limit: int) -> None:
    """Count anew what some workers hold, those first that were counted longest ago: at least one, and as many
    as hold ``limit`` feeds together."""
    # One statement sees one moment: what it does not count yet keeps its line in held_change.
    sql = """
        WITH turn AS (
            SELECT id FROM (
                SELECT w.id, sum(coalesce(h.feeds, 0)) OVER before AS before
                FROM feedq.worker w LEFT JOIN feedq.worker_held h ON h.worker_id = w.id
                WHERE w.state <> 'gone'
                WINDOW before AS (ORDER BY h.counted_at NULLS FIRST, w.id
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            ) ranked WHERE coalesce(before, 0) < :limit
        ), told AS (
            DELETE FROM feedq.held_change WHERE worker_id IN (SELECT id FROM turn)
        ), held AS (
            SELECT turn.id, count(l.feed_id)::int AS feeds, coalesce(sum(l.weight), 0) AS weight
            FROM turn LEFT JOIN feedq.lease l ON l.worker_id = turn.id GROUP BY turn.id
        )
        INSERT INTO feedq.worker_held (worker_id, feeds, weight, counted_at)
        SELECT id, feeds, weight, clock_timestamp() FROM held
        ON CONFLICT (worker_id) DO UPDATE SET feeds = excluded.feeds, weight = excluded.weight,
            counted_at = excluded.counted_at
    """
    c.execute(text(sql), {"limit": limit})
