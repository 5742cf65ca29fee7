"""History is kept for so many days, and then deleted a page at a time.

Any node may do it, several at once: they share the rows. What has not ended is never deleted, however old.
"""

from __future__ import annotations

from sqlalchemy import Connection, text


def trim(c: Connection, *, older_than_days: int, limit: int) -> int:
    """Delete at most ``limit`` runs that ended so long ago, the oldest first, and of removed schedules as many
    that have no run left. Returns how many runs."""
    # Only a time that stays the same for a statement can be looked for in an index. And ARRAY, so that what was
    # found is looked up by its ids, and no table is read as a whole to be joined with it.
    runs = """
        DELETE FROM feedq.run WHERE id = ANY(ARRAY(
            SELECT id FROM feedq.run
            WHERE ended_at IS NOT NULL AND ended_at < statement_timestamp() - make_interval(days => :days)
            ORDER BY ended_at LIMIT :limit FOR UPDATE SKIP LOCKED
        ))
    """
    # Nothing makes runs of a removed schedule any more, so one without any stays so.
    schedules = """
        DELETE FROM feedq.schedule WHERE id = ANY(ARRAY(
            SELECT id FROM feedq.schedule s
            WHERE removed_at IS NOT NULL AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.schedule_id = s.id)
            ORDER BY removed_at LIMIT :limit FOR UPDATE SKIP LOCKED
        ))
    """
    deleted = c.execute(text(runs), {"days": older_than_days, "limit": limit}).rowcount
    c.execute(text(schedules), {"limit": limit})
    return deleted
