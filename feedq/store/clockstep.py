"""What a pass does when the database's clock was put back: no delay and no time limit lasts longer for it.

They are stored as the time at which they end. Put back by an hour, the clock would make each last an hour longer.
So a pass that begins before the one before it ended, by that clock, shortens all that lie ahead by the difference.
That is short of the step by the time between the two passes, at most. A delay that was set since the step ends too
soon, which costs one try.

Heartbeats need no such measure: see `feedq.lease.as_of`.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, text

# In the order of feed ids, as everywhere: two statements must not wait for each other.
_SHORTEN = """
    WITH ahead AS (
        SELECT feed_id FROM feedq.lease WHERE feed_id IN (
            SELECT feed_id FROM feedq.lease WHERE state = 'idle' AND retry_at > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE state = 'stopping' AND stop_by > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE state = 'assigned' AND assigned_at > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE moved_at > statement_timestamp())
        ORDER BY feed_id FOR UPDATE
    )
    UPDATE feedq.lease l SET
        retry_at = l.retry_at - :by, stop_by = l.stop_by - :by,
        assigned_at = least(l.assigned_at, statement_timestamp()),
        moved_at = least(l.moved_at, statement_timestamp())
    FROM ahead WHERE l.feed_id = ahead.feed_id
"""


def shorten_delays(c: Connection, *, by: timedelta) -> None:
    c.execute(text(_SHORTEN), {"by": by})
