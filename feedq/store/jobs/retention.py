"""History is kept for so many days, or as a schedule says, and then deleted a page at a time.

Any node may do it, several at once: they share the rows. What has not ended is never deleted, however old.

A schedule may keep fewer runs than others or keep them longer. Those that do are gone through by their ids, some
at a time, so that a look takes as long whether there are ten of them or a hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

SCHEDULES_PER_LOOK = 100
"""Of those with a history of their own. Each costs a walk over as many index entries as it keeps runs."""

KEEPING = "jsonb_exists_any(policy, ARRAY['keep_runs', 'keep_days'])"
"""As the index `schedule_keeping` has it."""

# Only a time that stays the same for a statement can be looked for in an index. And ARRAY, so that what was found
# is looked up by its ids, and no table is read as a whole to be joined with it.
_RUNS = text(f"""
    DELETE FROM feedq.run WHERE id = ANY(ARRAY(
        SELECT id FROM feedq.run r
        WHERE ended_at IS NOT NULL AND ended_at < statement_timestamp() - make_interval(days => :days)
            AND schedule_id <> ALL(ARRAY(
            SELECT id FROM feedq.schedule WHERE {KEEPING} AND (policy ->> 'keep_days')::int > :days
        ))
        ORDER BY ended_at LIMIT :limit FOR UPDATE SKIP LOCKED
    ))
""")
# Nothing makes runs of a removed schedule any more, so one without any stays so.
_SCHEDULES = text("""
    DELETE FROM feedq.schedule WHERE id = ANY(ARRAY(
        SELECT id FROM feedq.schedule s
        WHERE removed_at IS NOT NULL AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.schedule_id = s.id)
        ORDER BY removed_at LIMIT :limit FOR UPDATE SKIP LOCKED
    ))
""")
_KEEPING = text(f"""
    SELECT id, (policy ->> 'keep_runs')::int AS runs, (policy ->> 'keep_days')::int AS days FROM feedq.schedule
    WHERE {KEEPING} AND id > :after
    ORDER BY id LIMIT :limit
""")
# Only the oldest of each are looked at, so that one which keeps much is not read as a whole each time.
_KEPT = text("""
    DELETE FROM feedq.run WHERE id = ANY(ARRAY(
        SELECT id FROM feedq.run WHERE id = ANY(ARRAY(
            SELECT r.id
            FROM unnest(CAST(:ids AS bigint[]), CAST(:runs AS int[]), CAST(:days AS int[]))
                AS given (id, runs, days)
            LEFT JOIN LATERAL (
                SELECT id FROM feedq.run WHERE schedule_id = given.id ORDER BY id DESC OFFSET given.runs LIMIT 1
            ) beyond ON given.runs IS NOT NULL
            CROSS JOIN LATERAL (
                SELECT id, ended_at FROM feedq.run WHERE schedule_id = given.id ORDER BY id LIMIT :limit
            ) r
            WHERE r.ended_at IS NOT NULL AND (r.id <= beyond.id
                OR r.ended_at < statement_timestamp() - make_interval(days => given.days))
            LIMIT :limit
        )) ORDER BY id FOR UPDATE SKIP LOCKED
    ))
""")


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a look deleted."""

    runs: int
    after: int
    """The schedule after which the next look goes on; 0: from the first."""


def trim(c: Connection, *, older_than_days: int, limit: int) -> int:
    """Delete at most ``limit`` runs that ended so long ago, the oldest first, and of removed schedules as many
    that have no run left. Returns how many runs."""
    deleted = c.execute(_RUNS, {"days": older_than_days, "limit": limit}).rowcount
    c.execute(_SCHEDULES, {"limit": limit})
    return deleted


def trim_kept(c: Connection, *, after: int, limit: int) -> Trimmed:
    """Delete at most ``limit`` runs of the next schedules that keep a history of their own, beyond what they
    keep."""
    keeping = c.execute(_KEEPING, {"after": after, "limit": SCHEDULES_PER_LOOK}).all()
    if not keeping:
        return Trimmed(0, 0)
    parameters = {
        "ids": [row.id for row in keeping],
        "runs": [row.runs for row in keeping],
        "days": [row.days for row in keeping],
        "limit": limit,
    }
    deleted = c.execute(_KEPT, parameters).rowcount
    if deleted >= limit:
        return Trimmed(deleted, after)
    return Trimmed(deleted, keeping[-1].id if len(keeping) == SCHEDULES_PER_LOOK else 0)
