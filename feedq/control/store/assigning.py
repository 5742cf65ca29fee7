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

import msgspec

from feedq.control.store.database import Connection
from feedq.control.store.feed_rows import avoided_from, selector_from
from feedq.control.store.leases import BIGINT_MAX
from feedq.control.store.protocol import call, document
from feedq.core.model import Assignment, Reason
from feedq.core.placement.base import NO_EXPERIENCE, EligibleWorker, Experience, WaitingFeed, lags
from feedq.settings import DEFAULT_SINK

EFFECTIVE_WEIGHT = "feedq_1.effective_weight(f, l, %(measured)s, %(mean_rows)s, %(mean_bytes)s)"
"""As a feed weighs now, of `feed f` and `lease l`."""


def means(c: Connection, *, measured: float) -> dict[str, float]:
    """The parameters of `EFFECTIVE_WEIGHT`: what the mean feed of the fleet lands, and how much that counts."""
    if not measured:
        return {"measured": 0.0, "mean_rows": 0.0, "mean_bytes": 0.0}
    sql = """
        SELECT CAST(%(measured)s AS float8) AS measured,
               coalesce(sum(w.rows_per_s) / greatest(sum(h.feeds), 1), 0) AS mean_rows,
               coalesce(sum(w.bytes_per_s) / greatest(sum(h.feeds), 1), 0) AS mean_bytes
        FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id WHERE w.state <> 'gone'
    """
    means: dict[str, float] = c.execute(sql, {"measured": measured}).one()._asdict()
    return means


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
         ORDER BY l.feed_id LIMIT %(limit)s)
        UNION ALL
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NOT NULL AND l.retry_at <= feedq.now()
           AND l.reason NOT IN ('paused', 'removed')
         ORDER BY l.retry_at LIMIT %(limit)s)
    ) news ORDER BY feed_id LIMIT %(limit)s
"""
_UNPLACED = f"""
    SELECT feed_id FROM (
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL AND l.reason = 'no_capacity'
           AND l.feed_id > %(after)s AND l.feed_id <= %(upto)s ORDER BY l.feed_id LIMIT %(limit)s)
        UNION ALL
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL AND l.reason = 'no_match'
           AND l.feed_id > %(after)s AND l.feed_id <= %(upto)s ORDER BY l.feed_id LIMIT %(limit)s)
    ) unplaced ORDER BY feed_id LIMIT %(limit)s
"""
_DETAILS = f"""
    SELECT l.feed_id, l.reason, l.promised_to, f.tenant, nullif(f.selector, '{{}}') AS selector,
        nullif(l.avoid, '{{}}') AS avoid, {SINK} AS sink, {REMOTE} AS remote, {EFFECTIVE_WEIGHT} AS weight
    FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
    WHERE l.feed_id = ANY(%(ids)s)
      -- Removed and declared anew: the one that is ending must be off the source first.
      AND NOT EXISTS (
          SELECT FROM feedq.lease ending JOIN feedq.feed removed ON removed.id = ending.feed_id
          WHERE ending.state = 'stopping' AND removed.removed_at IS NOT NULL AND removed.name = f.name)
    ORDER BY l.feed_id
"""


class Because(msgspec.Struct, frozen=True):
    """Why a feed is idle."""

    feed_id: int
    reason: Reason


class Promise(msgspec.Struct, frozen=True):
    """The worker that a feed is to go to, if to any."""

    feed_id: int
    worker_id: UUID | None


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
        rows = c.execute(_DETAILS, {"ids": ids, **self._means})
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
        call(c, "fold_held", int)
        # One statement sees one moment: a release between the fold and this is a line in held_change here, and a
        # promise that is idle. Without that line the feed would count for its old worker and for its new one.
        sql = f"""
            SELECT w.id, w.name, w.queue, w.capacity, w.started_at, w.labels, w.sinks_down, w.loop_lag_s,
                extract(epoch FROM feedq.clock() - w.heartbeat_at)::float8 AS silent_s,
                extract(epoch FROM w.expires_at - w.heartbeat_at)::float8 AS ttl_s,
                greatest(coalesce(h.feeds, 0) + coalesce(n.feeds, 0) + coalesce(s.feeds, 0), 0) AS feeds,
                greatest(coalesce(h.weight, 0) + coalesce(n.weight, 0) + coalesce(s.weight, 0), 0)::float8 AS load
            FROM feedq.worker w
            LEFT JOIN feedq.worker_held h ON h.worker_id = w.id
            LEFT JOIN ({_UNFOLDED}) n ON n.worker_id = w.id
            LEFT JOIN ({_SHIFTED}) s ON s.worker_id = w.id
            -- One without places for feeds (`-Q jobs`) is no part of the fleet that they are spread over.
            WHERE feedq_1.is_serving(w) AND w.capacity > 0 ORDER BY w.id
        """
        rows = c.execute(sql)
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
        places = [{"feed_id": feed_id, "worker_id": worker_id} for feed_id, worker_id in pairs]
        return call(self._c, "assign", list[Assignment], places=document(places), **self._means)

    def explain(self, reasons: Sequence[tuple[int, Reason]]) -> None:
        """Write why feeds are idle, where that changed."""
        if not reasons:
            return
        call(self._c, "explain", int, reasons=document([Because(*one) for one in reasons]))

    def _promise_to_successors(self) -> None:
        """Promise feeds that are held for the successor of a worker to it as soon as it is there, as far as it has
        room."""
        awaited = call(self._c, "awaited_by_successors", list[Promise])
        if not awaited:
            return
        room = {worker.worker_id: worker.capacity - worker.feeds for worker in self.candidates()}
        promises = []
        for one in awaited:
            assert one.worker_id is not None
            room[one.worker_id] = room.get(one.worker_id, 0) - 1
            # What a worker has no room for may go anywhere.
            promises.append(one if room[one.worker_id] >= 0 else Promise(one.feed_id, None))
        call(self._c, "end_hold", int, promises=document(promises))


def _ids(c: Connection, sql: str, **parameters: int) -> list[int]:
    return [row.feed_id for row in c.execute(sql, parameters)]


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
        WHERE w.name = ANY(%(names)s) AND w.state <> 'gone' AND l.state = 'running' AND l.connected
            AND l.last_record_at > l.running_since
        GROUP BY 1, 2
    """
    names = {name for workers in failed.values() for name in workers}
    landed = _by_remote(c, sql, names=list(names))
    return {remote: Experience(workers, landed.get(remote, {})) for remote, workers in failed.items()}


def _by_remote(c: Connection, sql: str, **parameters: list[str]) -> dict[str, dict[str, datetime]]:
    found: dict[str, dict[str, datetime]] = {}
    for row in c.execute(sql, parameters):
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


def held_by_tenant(c: Connection, tenants: Collection[str]) -> dict[UUID, dict[str, int]]:
    """How many feeds of these tenants each worker has, promised ones included."""
    sql = """
        SELECT CASE WHEN l.state IN ('idle', 'stopping') THEN coalesce(l.promised_to, l.worker_id)
                    ELSE l.worker_id END AS worker_id, f.tenant, count(*) AS feeds
        FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
        WHERE f.tenant <> '' AND f.tenant = ANY(%(tenants)s)
          AND (l.worker_id IS NOT NULL OR l.promised_to IS NOT NULL)
        GROUP BY 1, 2
    """
    counts: dict[UUID, dict[str, int]] = {}
    for row in c.execute(sql, {"tenants": list(tenants)}):
        counts.setdefault(row.worker_id, {})[row.tenant] = row.feeds
    return counts
