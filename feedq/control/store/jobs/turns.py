"""Promotes runs that have waited for their turn (`feedq.control/sql/runs.sql` has the rule, in `promote`)."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from feedq.control.store.database import Database
from feedq.control.store.protocol import call
from feedq.errors import Unavailable

_FOLLOWED = """
    SELECT DISTINCT r.schedule_id FROM feedq.run r WHERE r.id = ANY(%(ids)s)
        AND EXISTS (SELECT FROM feedq.run b WHERE b.schedule_id = r.schedule_id AND b.state = 'buffered' OFFSET 0)
"""


def promote_later(database: Database, schedule_ids: Collection[int]) -> None:
    """Promote in a transaction of its own, after an end that has been committed. Should the database be away by
    now, what waits is found as stranded."""
    if schedule_ids:
        with suppress(Unavailable), database.statement() as c:
            call(c, "promote", int, schedules=sorted(schedule_ids))


def promote_behind(database: Database, run_ids: Collection[int]) -> None:
    """Do the same for the schedules of these runs, as far as others of them are buffered."""
    if not run_ids:
        return
    with suppress(Unavailable):
        with database.statement() as c:
            found = [row.schedule_id for row in c.execute(_FOLLOWED, {"ids": list(run_ids)})]
        promote_later(database, found)
