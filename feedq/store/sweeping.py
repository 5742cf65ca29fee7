"""The sweep: compares everything with everything, a page of feeds a pass, and trims what is too old.

Whoever changed a row by hand skipped our bookkeeping: what does not add up is marked dirty, and the usual
path mends it. What somebody has locked can wait for the next sweep. A page is small, so that no pass takes
long because of it and nothing stays locked; where it ended is kept in the fleet's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from feedq.model import LeaseState, Reason
from feedq.store.held import recount
from feedq.store.history import HistoryKept
from feedq.store.measured import EFFECTIVE_WEIGHT, Means
from feedq.store.workers import free_leases

SWEEP_PAGE = 5_000
"""Feeds of one page, events that are trimmed with it, and feeds whose workers are counted anew."""
WEIGHT_STEP = 0.1
"""By how much of itself a measured weight must have changed before it is written."""
_ALL = 2**63 - 1

_MISMATCHED = """
    WITH missing AS (
        SELECT f.id FROM feedq.feed f
        WHERE f.id > :after AND f.id <= :upto
          AND NOT f.dirty AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.feed_id = f.id)
    ), mismatched AS (
        SELECT f.id FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
        WHERE f.id > :after AND f.id <= :upto AND NOT f.dirty AND (
            (l.state IN ('running', 'assigned')
                AND (f.removed_at IS NOT NULL OR f.target_state <> 'running'))
            OR (l.state = 'running' AND l.generation < f.generation)
            OR (l.state = 'idle' AND f.removed_at IS NOT NULL)
            OR (l.state = 'idle' AND l.reason = 'paused' AND f.target_state = 'running')
            OR (l.state = 'idle' AND (l.reason IS NULL OR l.reason = 'failed' AND l.retry_at IS NULL)))
        ORDER BY f.id FOR UPDATE OF l, f SKIP LOCKED
    )
    UPDATE feedq.feed SET dirty = true
    WHERE id IN (SELECT id FROM missing UNION ALL SELECT id FROM mismatched)
"""
# A stop request by hand, or by a release of feedq that knew no end of it.
_ENDLESS_STOPS = """
    WITH endless AS (
        SELECT feed_id FROM feedq.lease
        WHERE state = 'stopping' AND stop_by IS NULL AND feed_id > :after AND feed_id <= :upto
        ORDER BY feed_id FOR UPDATE SKIP LOCKED
    )
    UPDATE feedq.lease l SET stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
    FROM endless WHERE l.feed_id = endless.feed_id
"""
_WEIGHTS = f"""
    WITH weighed AS MATERIALIZED (
        SELECT l.feed_id, l.weight AS before, {EFFECTIVE_WEIGHT} AS weight
        FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
        WHERE l.feed_id > :after AND l.feed_id <= :upto AND l.worker_id IS NOT NULL AND NOT f.dirty
    ), changed AS (
        SELECT l.feed_id, weighed.weight FROM weighed JOIN feedq.lease l USING (feed_id)
        WHERE abs(weighed.weight - before) > CASE WHEN :measured = 0 THEN 1e-9 ELSE {WEIGHT_STEP} * before END
        ORDER BY l.feed_id FOR UPDATE OF l SKIP LOCKED
    )
    UPDATE feedq.lease l SET weight = changed.weight FROM changed WHERE l.feed_id = changed.feed_id
"""
# The oldest by id: they are not looked for by time, which would read all that are young enough to stay.
_TRIM = """
    DELETE FROM feedq.event
    WHERE id IN (SELECT id FROM feedq.event ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
      AND at < clock_timestamp() - make_interval(days => :days)
"""
_TRIM_FEEDS = """
    DELETE FROM feedq.event WHERE id IN (
        SELECT e.id FROM (
            SELECT f.id AS feed_id, (
                SELECT id FROM feedq.event WHERE feed_id = f.id ORDER BY id DESC OFFSET :per_feed LIMIT 1
            ) AS last
            FROM feedq.feed f WHERE f.id > :after AND f.id <= :upto
        ) many JOIN feedq.event e ON e.feed_id = many.feed_id AND e.id <= many.last
        LIMIT :limit FOR UPDATE OF e SKIP LOCKED
    )
"""
_IDLE_COUNTS = """
    SELECT reason, count(*) AS feeds FROM feedq.lease
    WHERE state = 'idle' AND reason IN ('no_capacity', 'no_match', 'backoff', 'paused', 'failed')
    GROUP BY reason
"""


@dataclass(frozen=True, slots=True)
class SweptPage:
    """What one page of the sweep came to."""

    repaired: int
    swept_to: int | None
    """Where the next pass goes on; None when the sweep is done."""
    page: Mapping[str, int]
    """The feeds that it was about."""


def count_idle(c: Connection) -> dict[str, int]:
    return {row.reason: row.feeds for row in c.execute(text(_IDLE_COUNTS))}


def sweep_page(c: Connection, *, after: int, keep: HistoryKept, stop_within_s: float) -> SweptPage:
    last = "SELECT id FROM feedq.feed WHERE id > :after ORDER BY id LIMIT 1 OFFSET :page - 1"
    upto = c.execute(text(last), {"after": after, "page": SWEEP_PAGE}).scalar_one_or_none()
    page = {"after": after, "upto": _ALL if upto is None else upto}
    repaired = c.execute(text(_MISMATCHED), page).rowcount
    repaired += c.execute(text(_ENDLESS_STOPS), {**page, "stop_within_s": stop_within_s}).rowcount
    repaired += _free_orphans(c, page)
    recount(c, limit=SWEEP_PAGE)
    bounds = {"days": keep.days, "per_feed": keep.per_feed, "limit": SWEEP_PAGE}
    too_many = c.execute(text(_TRIM_FEEDS), {**page, **bounds}).rowcount
    too_old = c.execute(text(_TRIM), bounds).rowcount
    if too_many == SWEEP_PAGE or (upto is None and too_old == SWEEP_PAGE):
        upto = after  # there is more to trim: this page once more
    elif upto is None:
        _forget_workers(c, keep.days)
    return SweptPage(repaired, upto, page)


def weigh(c: Connection, page: Mapping[str, int], *, means: Means) -> None:
    """Write what the feeds of a page weigh by now. At the end of a pass: it locks rows that owners report on, and
    must not wait for anybody after that."""
    c.execute(text(_WEIGHTS), {**page, **means.parameters()})


def _free_orphans(c: Connection, page: dict[str, int]) -> int:
    """Leases of workers that are gone already: a row changed by hand, or restored from a backup."""
    sql = """
        SELECT DISTINCT l.worker_id FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
        WHERE l.feed_id > :after AND l.feed_id <= :upto AND w.state = 'gone'
    """
    ids = [row.worker_id for row in c.execute(text(sql), page)]
    if not ids:
        return 0
    return free_leases(c, ids, states=tuple(LeaseState)[1:], reason=Reason.WORKER_GONE.value)


def _forget_workers(c: Connection, retention_days: int) -> None:
    sql = """
        DELETE FROM feedq.worker w
        WHERE w.state = 'gone' AND w.heartbeat_at < clock_timestamp() - make_interval(days => :days)
          AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.worker_id = w.id)
          AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.worker_id = w.id AND r.state = 'running')
    """
    c.execute(text(sql), {"days": retention_days})
