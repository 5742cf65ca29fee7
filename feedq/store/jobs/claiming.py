"""Claiming: a waiting run becomes a worker's, under a new fence, before any of its code runs.

A short statement looks whether anything is due; if not, that is all. The next says in which queues, and the last
finds candidates, locks the first of them that nobody else has locked, and takes them. Two workers that claim at
the same moment:

- want the same run: the second skips its locked row, or finds on reading it again that it waits no more.
- want two runs of a schedule of which one may run at a time. They want the same one, the oldest, unless one of
  them has not seen yet what the other has. So a claim also holds the schedule's advisory lock until it commits,
  tried and never waited for; and who gets that lock a moment after it was let go, with an older view of the rows,
  meets the unique index `run_one_at_a_time`. Nothing of its claim is kept then, and it claims again.
- want runs of a queue with limits. The statement before the last locks its row, and the last, which begins when
  that is done, counts what others have committed.

So a claim waits for nothing but rows of limited queues that have room, and it has locked no run by then: see
`feedq.store.jobs.runs` for the order of locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import Connection, text

from feedq.errors import InvalidInput
from feedq.schedule.model import ClaimedRun, Finish, Hint, Job, RunKind, RunState
from feedq.schedule.spread import segment_of
from feedq.store.channels import RUN_LOCK_CLASS
from feedq.store.jobs.base import Granted, Offer
from feedq.store.jobs.candidates import BY_ID, CANDIDATES, DUE, NEVER_S, NOW, DueScan, look
from feedq.store.jobs.run_rows import job_from

AGAIN_S = 0.05
"""When there are runs to start, and others were about to take them."""
MISSED_PER_CLAIM = 1_000
"""Runs past their start deadline that one claim ends."""
DEFAULT_TIMEOUT_S = Job("").timeout_s or inf
"""Of a stored job that does not say, as it differs from no default."""

# A start deadline is nobody's in particular: whoever claims ends what has missed it, of other segments as well.
MISS_DEADLINES = f"""
    UPDATE feedq.run r SET state = 'missed_deadline', ended_at = clock_timestamp(),
        reason = 'not started before its start deadline'
    FROM (
        SELECT id FROM feedq.run WHERE state = 'waiting' AND start_by <= {NOW}
        ORDER BY start_by LIMIT {MISSED_PER_CLAIM} FOR UPDATE SKIP LOCKED
    ) late
    WHERE r.id = late.id RETURNING r.id
"""
_TIMEOUT_S = f"""
    CASE WHEN NOT jsonb_exists(r.job, 'timeout_s') THEN {DEFAULT_TIMEOUT_S}
         WHEN jsonb_typeof(r.job -> 'timeout_s') = 'number'
         THEN least(greatest((r.job ->> 'timeout_s')::float8, 0), {NEVER_S}) END
"""

CLAIM = f"""
    WITH {CANDIDATES}, picked AS MATERIALIZED (
        SELECT r.at, c.queue FROM (SELECT * FROM candidate ORDER BY rank_at, id) c CROSS JOIN LATERAL (
            -- By nothing but its key: told that none waits, the planner would go through all that do. And what it
            -- was when it was found does not count: as it is, now that nobody else can change it.
            SELECT *, ctid AS at FROM feedq.run WHERE {BY_ID.format("c.id")} FOR UPDATE SKIP LOCKED
        ) r
        WHERE r.state = 'waiting' AND {DUE} AND (NOT c.exclusive
            OR pg_try_advisory_xact_lock({RUN_LOCK_CLASS}, (c.schedule_id % 2147483647)::int))
        LIMIT :limit
    ), taken AS (
        UPDATE feedq.run r SET state = 'running', worker_id = :worker_id, reason = NULL,
            fence = nextval('feedq.run_fence'), started_at = clock_timestamp(),
            deadline_at = clock_timestamp() + make_interval(secs => {_TIMEOUT_S})
        FROM picked WHERE r.ctid = picked.at  -- locked, so that it stays where it is
        RETURNING r.id, r.schedule_id, r.fence, r.attempt, r.key, r.kind, r.tick_at, r.due_at, r.rank_at,
            r.job::text AS job,
            extract(epoch FROM r.deadline_at - clock_timestamp())::float8 AS remaining_s,
            extract(epoch FROM clock_timestamp() - r.due_at)::float8 AS waited_s
    ), spent AS (
        UPDATE feedq.job_queue q SET tokens = greatest(l.tokens - starts.n, 0), tokens_at = {NOW}
        FROM limited l JOIN (SELECT queue, count(*) AS n FROM picked GROUP BY queue) starts
            ON starts.queue = l.name
        WHERE q.name = l.name AND l.rate_per_s IS NOT NULL
    )
    SELECT (SELECT count(*) FROM candidate) AS candidates, taken.*, s.name AS schedule
    FROM (VALUES (1)) AS one LEFT JOIN taken ON true LEFT JOIN feedq.schedule s ON s.id = taken.schedule_id
    ORDER BY taken.rank_at, taken.id
"""
_DUE = f"WITH {CANDIDATES} SELECT * FROM candidate ORDER BY rank_at, id LIMIT :limit"


@dataclass(frozen=True, slots=True)
class ClaimedRuns:
    """What a claim took."""

    granted: Granted
    unreadable: Sequence[Finish] = ()
    """How those end whose job this release cannot read. Later: the row of their schedule comes before theirs."""


def claim(c: Connection, offer: Offer, *, ageing_s: float) -> ClaimedRuns:
    """Take at most ``offer.limit`` runs. An `IntegrityError` says that another worker was about to take one of the
    same schedule: nothing is taken then."""
    seen = look(c, offer, ageing_s=ageing_s, locking=True)
    if seen.any_missed:
        c.execute(text(MISS_DEADLINES))
    if seen.is_idle:
        return ClaimedRuns(Granted((), seen.next_in_s))
    rows = c.execute(text(CLAIM), {**seen.parameters, "limit": offer.limit}).all()
    return taken_from(rows, seen, limit=offer.limit)


def taken_from(rows: Sequence[Any], seen: DueScan, *, limit: int) -> ClaimedRuns:
    """From the rows of `CLAIM`."""
    taken = [row for row in rows if row.id is not None]
    if len(taken) == limit:
        next_in_s: float | None = 0.0
    elif rows[0].candidates > len(taken) or (taken and seen.parameters["open"]):
        # Others hold them for a moment; or a bucket is emptier than it was when we looked.
        next_in_s = AGAIN_S if seen.next_in_s is None else min(seen.next_in_s, AGAIN_S)
    else:
        next_in_s = seen.next_in_s
    runs, unreadable = _read(taken)
    return ClaimedRuns(Granted(runs, next_in_s), unreadable)


def due(c: Connection, offer: Offer, *, ageing_s: float) -> list[Hint]:
    """What `claim` would take if it came alone."""
    seen = look(c, offer, ageing_s=ageing_s, locking=False)
    if seen.is_idle:
        return []
    rows = c.execute(text(_DUE), {**seen.parameters, "limit": offer.limit})
    return [Hint(row.id, row.attempt, _segment(row)) for row in rows]


def _segment(row: Any) -> int:
    """Of a run that has none, the one that it would have."""
    return segment_of(row.schedule_id, row.key) if row.segment is None else int(row.segment)


def claimed_run(row: Any) -> ClaimedRun:
    """Raises `InvalidInput` when this release cannot read the job."""
    return ClaimedRun(
        id=row.id,
        fence=row.fence,
        attempt=row.attempt,
        schedule=row.schedule,
        key=row.key,
        kind=RunKind(row.kind),
        tick_at=row.tick_at,
        due_at=row.due_at,
        job=job_from(row.job),
        remaining_s=row.remaining_s,
        waited_s=row.waited_s,
    )


def _read(rows: Sequence[Any]) -> tuple[list[ClaimedRun], list[Finish]]:
    """Those whose job can be read. The others are over: they would hold their schedule's place for ever."""
    runs: list[ClaimedRun] = []
    unreadable: list[Finish] = []
    for row in rows:
        try:
            runs.append(claimed_run(row))
        except (InvalidInput, ValueError) as error:
            reason = f"its stored job cannot be read: {error}"
            unreadable.append(Finish(row.id, row.fence, RunState.FAILED, reason))
    return runs, unreadable
