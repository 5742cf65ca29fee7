"""The sweep: compares everything with everything, a page of feeds a pass, and trims what is too old.

Whoever changed a row by hand skipped our bookkeeping: what does not add up is marked dirty, and the usual
path mends it. What somebody has locked can wait for the next sweep. A page is small, so that no pass takes
long because of it and nothing stays locked; where it ended is kept in the fleet's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from feedq.control.store import history
from feedq.control.store.assigning import EFFECTIVE_WEIGHT, recount
from feedq.control.store.leases import free_leases
from feedq.control.store.taps import FORGET
from feedq.core.model import Reason

SWEEP_PAGE = 5_000
"""Feeds of one page, events that are trimmed with it, and feeds whose workers are counted anew."""
WEIGHT_STEP = 0.1
"""The part of itself by which a measured weight must have changed before it is written."""
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
_FORGET_WORKERS = """
    DELETE FROM feedq.worker w
    WHERE w.state = 'gone' AND w.heartbeat_at < clock_timestamp() - make_interval(days => :days)
      AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.worker_id = w.id)
      AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.worker_id = w.id AND r.state = 'running')
"""


class PassSweep:
    """The part of a reconcile pass that sweeps. Its state is kept in the fleet's row."""

    now: datetime
    _c: Connection
    _retention_days: int
    _sweep_at: datetime | None
    """When the latest sweep began."""
    _swept_to: int | None
    """The feed that the next pass goes on from; None when the sweep is done."""
    _page: Mapping[str, int] | None = None
    """The feeds that this pass has swept."""

    def sweep_is_due(self, *, interval_s: float) -> bool:
        """Return whether a sweep is under way, or the last one began this long ago."""
        if self._swept_to is not None or self._sweep_at is None:
            return True
        return self._sweep_at <= self.now - timedelta(seconds=interval_s)

    def sweep(self) -> int:
        """Compare one page of feeds with their leases, mark what does not add up as dirty, count anew what
        workers hold, trim history. Returns repairs. It goes on with the next page in the pass that comes
        after."""
        c, after = self._c, self._swept_to or 0
        if self._swept_to is None:
            self._sweep_at = self.now
        last = "SELECT id FROM feedq.feed WHERE id > :after ORDER BY id LIMIT 1 OFFSET :page - 1"
        upto = c.execute(text(last), {"after": after, "page": SWEEP_PAGE}).scalar_one_or_none()
        self._page = page = {"after": after, "upto": _ALL if upto is None else upto}
        repaired = c.execute(text(_MISMATCHED), page).rowcount
        repaired += _free_orphans(c, page)
        recount(c, limit=SWEEP_PAGE)
        bounds = {"days": self._retention_days, "per_feed": history.EVENTS_PER_FEED, "limit": SWEEP_PAGE}
        too_many = c.execute(text(_TRIM_FEEDS), {**page, **bounds}).rowcount
        too_old = c.execute(text(_TRIM), bounds).rowcount
        if too_many == SWEEP_PAGE or (upto is None and too_old == SWEEP_PAGE):
            upto = after  # there is more to trim: this page once more
        elif upto is None:
            c.execute(text(_FORGET_WORKERS), {"days": self._retention_days})
            for statement in FORGET:
                c.execute(text(statement))
        self._swept_to = upto
        return repaired

    def _weigh(self, means: Mapping[str, float]) -> None:
        """Write what the feeds of the page weigh by now.

        At the end of a pass: it locks rows that owners report on, and must not wait for anybody after that.
        """
        self._c.execute(text(_WEIGHTS), {**(self._page or {}), **means})


def _free_orphans(c: Connection, page: dict[str, int]) -> int:
    """Leases of workers that are gone already: a row changed by hand, or restored from a backup."""
    sql = """
        SELECT DISTINCT l.worker_id FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
        WHERE l.feed_id > :after AND l.feed_id <= :upto AND w.state = 'gone'
    """
    ids = [row.worker_id for row in c.execute(text(sql), page)]
    if not ids:
        return 0
    return free_leases(c, ids, reason=Reason.WORKER_GONE)
