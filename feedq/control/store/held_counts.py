"""Counts what workers hold, so that a pass reads a row a worker and none of their feeds.

Triggers on `lease` write what a statement changed to ``held_change``; each pass folds that into
``worker_held``, and the sweep counts anew. A change and the line that tells of it commit together, so the two
tables always add up to the truth.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.core.placement.base import EligibleWorker, lags

# What is promised counts for the worker that it is promised to, and no longer for the one that is releasing it
# of it.
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


def candidates(c: Connection, tenants: Collection[str]) -> list[EligibleWorker]:
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
