"""Feeds that somebody touched: how they are marked, and how a pass finds them.

The planner cannot know how many are dirty: of a million feeds all are, and a minute later none is. So the
statements here are written so that whatever it assumes, they look up single feeds by their keys.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from feedq.lease import CLEARED_BY_EDIT
from feedq.model import Feed, Lease
from feedq.store.feed_rows import FEED_COLUMNS, LEASE_COLUMNS, feed_from, lease_from

_FIRST = "ARRAY(SELECT id FROM feedq.feed WHERE dirty ORDER BY id LIMIT :limit)"
_MISSING = f"""
    INSERT INTO feedq.lease (feed_id)
    SELECT f.id FROM feedq.feed f
    WHERE f.id = ANY({_FIRST}) AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.feed_id = f.id)
    ORDER BY f.id ON CONFLICT DO NOTHING
"""
# No lock on the lease: only a pass makes anything else of an idle one, and passes are one at a time.
_NEW = f"""
    UPDATE feedq.feed f SET dirty = false
    WHERE f.id = ANY({_FIRST}) AND f.dirty AND f.removed_at IS NULL AND f.target_state = 'running'
      AND (SELECT l.state = 'idle' AND l.reason <> ALL(:cleared) FROM feedq.lease l WHERE l.feed_id = f.id)
"""
_DIRTY = f"""
    SELECT {FEED_COLUMNS}, {LEASE_COLUMNS} FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
    WHERE f.id = ANY({_FIRST}) AND f.dirty
    ORDER BY f.id FOR UPDATE OF l, f  -- the lease first, as everywhere
"""


def look_again(freed: str) -> str:
    """A statement that marks what was edited, paused or removed while it ran: it is to be looked at again now that
    it is idle. ``freed`` names rows of (feed_id, generation).

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


def absorb_new(c: Connection, *, limit: int) -> int:
    c.execute(text(_MISSING), {"limit": limit})
    cleared = [reason.value for reason in CLEARED_BY_EDIT if reason is not None]
    return c.execute(text(_NEW), {"limit": limit, "cleared": cleared}).rowcount


def dirty(c: Connection, *, limit: int) -> list[tuple[Feed, Lease]]:
    c.execute(text(_MISSING), {"limit": limit})
    rows = c.execute(text(_DIRTY), {"limit": limit}).all()
    return [(feed_from(row), lease_from(row, row.id)) for row in rows]
