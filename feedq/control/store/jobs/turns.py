"""Takes runs of a schedule one at a time: all but one are `buffered`, and who ends that one promotes the next.

An *exclusive* run (of every schedule but `allow_all`) must not begin while another of its schedule runs. So of the
exclusive runs of a schedule at most one is `waiting` or `running`: it has the *turn*, and a unique index
(`run_one_at_a_time`) admits no second one. A claim need not look at any other run. The turn goes to the oldest
tick that is due; if none is, to the run that falls due first, which is a retry. A retry that waits for a later
time gives its turn up to a run that comes first.

`promote` gives the turn, and locks the schedules first. Whoever makes exclusive runs holds that lock already, and
promotes in the same transaction. Whoever ends a run promotes after its commit, in a transaction of its own, so
that the end of a run does not wait for the schedule.

* **Killed or frozen between the end of a run and the promotion**: nobody has the turn. Every worker looks for
  such schedules now and then (`stranded`), and promotes. The same goes for a run that was made at the moment at
  which its predecessor ended, and for changes by hand.
* **Twice**: the second finds that somebody has the turn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from sqlalchemy import Connection, text

from feedq.control.store.channels import NotifyReason
from feedq.control.store.database import Database
from feedq.control.store.jobs.rows import notify_some
from feedq.errors import Unavailable

_NOW = "statement_timestamp()"
# The planner does not know how many are buffered: what is read in the order of an index must not be sorted.
_IN_ORDER = text("SET LOCAL enable_sort = off")
_LOCK = text("SELECT id FROM feedq.schedule WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED")
_COMES_FIRST = f"""EXISTS (
        SELECT FROM feedq.run b WHERE b.schedule_id = {{has}}.schedule_id AND b.state = 'buffered'
            AND {{has}}.due_at > {_NOW} AND b.due_at < {{has}}.due_at
    )"""
"""Whether a run that is not due has the turn of one that comes first."""
_TAKE_BACK = text(f"""
    UPDATE feedq.run r SET state = 'buffered'
    WHERE r.schedule_id = ANY(:ids) AND r.state = 'waiting' AND r.exclusive AND r.due_at > {_NOW}
        AND {_COMES_FIRST.format(has="r")}
""")
# The second look-up goes through what is buffered, and is made where nothing is due: then only retries are. Who
# has the turn is looked for in an order that only the index `run_turn` has: others have all that is buffered.
_PROMOTE = text(f"""
    WITH turn AS MATERIALIZED (
        SELECT coalesce((
            SELECT id FROM feedq.run WHERE schedule_id = given.id AND state = 'buffered' AND due_at <= {_NOW}
            ORDER BY tick_at, id LIMIT 1
        ), (
            SELECT id FROM feedq.run WHERE schedule_id = given.id AND state = 'buffered' ORDER BY due_at LIMIT 1
        )) AS id
        FROM unnest(CAST(:ids AS bigint[])) AS given (id) WHERE NOT EXISTS (
            SELECT FROM feedq.run o WHERE o.schedule_id = given.id AND o.state IN ('waiting', 'running')
                AND (o.exclusive OR o.state = 'running')
            ORDER BY o.fence OFFSET 0
        )
    )
    UPDATE feedq.run r SET state = 'waiting' FROM turn WHERE r.id = turn.id AND r.state = 'buffered'
    RETURNING r.due_at <= {_NOW} AS may_start
""")
_FOLLOWED = text("""
    SELECT DISTINCT r.schedule_id FROM feedq.run r WHERE r.id = ANY(:ids)
        AND EXISTS (SELECT FROM feedq.run b WHERE b.schedule_id = r.schedule_id AND b.state = 'buffered' OFFSET 0)
""")
# From one schedule with buffered runs to the next, by the index: thousands may be buffered in one.
_STRANDED = text(f"""
    WITH RECURSIVE line (id, place) AS (
        (SELECT schedule_id, 1 FROM feedq.run WHERE state = 'buffered' AND schedule_id > :after
         ORDER BY schedule_id, tick_at LIMIT 1)
        UNION ALL
        SELECT (
            SELECT r.schedule_id FROM feedq.run r WHERE r.state = 'buffered' AND r.schedule_id > l.id
            ORDER BY r.schedule_id, r.tick_at LIMIT 1
        ), l.place + 1 FROM line l WHERE l.id IS NOT NULL AND l.place < :limit
    )
    SELECT l.id, NOT EXISTS (
        SELECT FROM feedq.run o WHERE o.schedule_id = l.id AND o.state IN ('waiting', 'running')
            AND (o.state = 'running' OR (o.exclusive AND NOT {_COMES_FIRST.format(has="o")}))
        ORDER BY o.fence OFFSET 0
    ) AS is_stranded
    FROM line l WHERE l.id IS NOT NULL ORDER BY l.id
""")


def promote(c: Connection, schedule_ids: Collection[int]) -> None:
    """Give the turn of each of these schedules to the run that is to have it, if nobody has it, and notify workers
    of those that may start. Locks the schedules, and leaves out those that others have locked: a frozen one must
    hold up nobody, and what it does not promote is `stranded`."""
    c.execute(_IN_ORDER)
    ids = {"ids": [row.id for row in c.execute(_LOCK, {"ids": list(schedule_ids)})]}
    c.execute(_TAKE_BACK, ids)
    if may_start := sum(row.may_start for row in c.execute(_PROMOTE, ids)):
        notify_some(c, may_start, NotifyReason.RUNS)


def promote_later(database: Database, schedule_ids: Collection[int]) -> None:
    """Promote in a transaction of its own, after an end that has been committed. Should the database be away by
    now, what waits is `stranded`."""
    if schedule_ids:
        with suppress(Unavailable), database.transaction() as c:
            promote(c, schedule_ids)


def promote_behind(database: Database, run_ids: Collection[int]) -> None:
    """Do the same for the schedules of these runs, as far as others of them are buffered."""
    if not run_ids:
        return
    with suppress(Unavailable):
        with database.statement() as c:
            found = [row.schedule_id for row in c.execute(_FOLLOWED, {"ids": list(run_ids)})]
        promote_later(database, found)


def stranded(c: Connection, *, after: int, limit: int) -> tuple[Sequence[int], int]:
    """Look through at most ``limit`` schedules with buffered runs, beyond that of the id ``after``. Returns those
    whose turn nobody has, and the id after which to go on."""
    c.execute(_IN_ORDER)
    rows = c.execute(_STRANDED, {"after": after, "limit": limit}).all()
    return [row.id for row in rows if row.is_stranded], rows[-1].id if len(rows) == limit else 0
