"""Claims runs: a waiting run becomes a worker's, under a new fence, before any of its code runs.

**Which runs.** A run may be started when the worker knows its task and has the labels that its job asks for, it is
due, its start deadline has not passed, and its queue has room. If the runs of its schedule go one at a time, no
claim sees any but the one whose turn it is: the others are `buffered` (`feedq.control.store.jobs.turns`). Earlier
ranks come first. A rank is the time at which the run fell due, moved ahead by its priority: so waiting makes up
for priority.

The planner cannot know how many wait: a hundred thousand at the full hour, and none a minute later. So nothing is
left to what it assumes. Of each *lane* that is open the first runs by rank are read, by an index in that order
(`run_lane`). A lane is a queue, a task and a selector: one whose queue is full, or whose runs the worker cannot
do, costs one step of the scan, however many wait in it.

**How many.** As many as the worker has free slots, but not so many that it would have more than its share of all
that run or are due, in proportion to the job slots (`share_of`): the rest is for workers with more room, which
have been told of it as well. Runs that nobody has taken for `LEFT_S` are anybody's, because whoever was meant to
take them is frozen, or cannot do them. When there is more to do than slots, the share is every slot, so a backlog
is worked off by whoever has room.

To plan all this takes the server longer than to execute it. So `first_due_in_s` comes first, and is all that is
asked where nothing is due; `scan_due` says which lanes there are; and `CLAIM` finds candidates,
locks the first of them that nobody else has locked, and takes them.

**Two workers** that claim at the same moment:

- want the same run: the second skips its locked row, or finds on reading it again that it waits no more.
- want runs of a queue with limits. The statement before the last locks its row, and the last, which begins when
  that is done, counts what others have committed.

So a claim waits for nothing but rows of limited queues that have room, and it has locked no run by then: see
`feedq.control.store.jobs.runs` for the order of locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from sqlalchemy import Connection, text

from feedq.control.store.jobs.rows import job_from
from feedq.core.schedule.model import (
    AGEING_S,
    ClaimedRun,
    Finish,
    Granted,
    Offer,
    RunKind,
    RunState,
)
from feedq.core.schedule.spec import PRIORITY_MAX, ScheduleSpec
from feedq.errors import InvalidInput

AGAIN_S = 0.05
"""When there are runs to start, and others were about to take them."""
MISSED_PER_CLAIM = 1_000
"""Runs past their start deadline that one claim ends."""
DEFAULT_TIMEOUT_S = ScheduleSpec.model_fields["timeout"].default or inf
"""The time-out of a stored job that does not say, as it differs from no default."""
CROWD = 32
"""The number of candidates beyond those that are wanted that are read as well: the first may be locked by
workers that claim as well."""
LEFT_S = 1.0
"""A run that has been due for this long is started by any worker with a free slot, whatever its share: those that
were to take it are frozen, busy with something else, or cannot do it."""
NEVER_S = 1e9
"""Thirty years, for durations beyond it, which no interval holds."""

NOW = "statement_timestamp()"
"""The database's clock. Not clock_timestamp() in conditions: what may change from row to row is looked up in no
index."""

# -- statements --------------------------------------------------------------------------------------

DUE = f"r.due_at <= {NOW} AND (r.start_by IS NULL OR r.start_by > {NOW})"
_TASK = "coalesce(r.job ->> 'task', '')"
_SELECTOR = "coalesce(r.job #> '{selector,required}', '{}'::jsonb)"
"""The labels of a selector, as the index `run_lane` has them."""
_ME = """
    SELECT w.id, w.labels, t.tasks FROM feedq.worker w LEFT JOIN feedq.task_set t ON t.id = w.task_set_id
    WHERE w.id = :worker_id AND w.state = 'active' AND w.target_state = 'serving'
"""
KNOWS = "(me.tasks IS NULL OR {task} = '' OR {task} = ANY(me.tasks))"
CAN = f"{KNOWS} AND me.labels @> {{selector}}"
"""Whether this worker knows a task, and can do a run. A worker of a release that does not say what it knows may
try all; and a job without the name of a task is some worker's to end, as one that cannot be read."""
_I_CAN = f"EXISTS (SELECT FROM me WHERE {CAN.format(task=_TASK, selector=_SELECTOR)})"
BY_ID = "id BETWEEN {0} AND {0} ORDER BY id LIMIT 1"
"""The condition for one run by its key. For ``id = …`` a plan that was made when there were no runs could take
any index that has the id in it, such as that of the runs of a schedule, and go through all of it later."""
_COLUMNS = "r.id, r.queue, r.rank_at"
_LIMITED = f"""
    SELECT q.name, q.rate_per_s, t.tokens,
        least(:looked_at,
            CASE WHEN q.rate_per_s IS NOT NULL THEN floor(t.tokens + 1e-9) END,
            q.concurrency - (
                SELECT count(*) FROM (
                    SELECT FROM feedq.run r WHERE r.queue = q.name AND r.state = 'running' LIMIT q.concurrency
                ) running
            ))::int AS room
    FROM feedq.job_queue q CROSS JOIN LATERAL (
        SELECT least(q.burst, q.tokens + coalesce(q.rate_per_s, 0)
            * greatest(extract(epoch FROM {NOW} - q.tokens_at), 0))::float8 AS tokens
    ) t
"""
FIRST = """
    SELECT extract(epoch FROM due_at - clock_timestamp())::float8 AS due_in_s FROM feedq.run
    WHERE state = 'waiting' ORDER BY due_at LIMIT 1
"""
_NEXT_DUE = f"SELECT due_at FROM feedq.run WHERE state = 'waiting' AND due_at > {NOW} ORDER BY due_at LIMIT 1"
# Counted no further than makes a difference: with more to do than the fleet has slots, everybody's share is all of
# its own. A worker that is alone counts nothing.
_LOAD = f"""
    (SELECT count(*) FROM (
        SELECT FROM feedq.run WHERE state = 'waiting' AND due_at <= {NOW} ORDER BY due_at LIMIT :counted
    ) due)::int AS due,
    (SELECT count(*) FROM (
        SELECT FROM feedq.run WHERE state = 'waiting' AND due_at <= {NOW} - make_interval(secs => {LEFT_S})
        ORDER BY due_at LIMIT least(:counted, :free)
    ) due)::int AS left_over,
    (SELECT count(*) FROM (
        SELECT FROM feedq.run WHERE state = 'running' ORDER BY worker_id LIMIT :counted
    ) running)::int AS running
"""
# Of a queue with limits the row is locked before what runs in it is counted for good; if it is full, nobody need
# wait for it.
DUE_SCAN = f"""
    WITH RECURSIVE me AS MATERIALIZED ({_ME}), waiting_lane (queue, task, selector) AS (
        -- From one lane to the next, by the index.
        (SELECT r.queue, {_TASK}, {_SELECTOR} FROM feedq.run r WHERE r.state = 'waiting'
         ORDER BY r.queue, {_TASK}, {_SELECTOR} LIMIT 1)
        UNION ALL
        SELECT coming.* FROM waiting_lane l CROSS JOIN LATERAL (
            SELECT r.queue, {_TASK}, {_SELECTOR} FROM feedq.run r
            WHERE r.state = 'waiting'
                AND (r.queue, {_TASK}, {_SELECTOR}) > (l.queue, l.task, l.selector)
            ORDER BY r.queue, {_TASK}, {_SELECTOR} LIMIT 1
        ) coming
    ), lane AS MATERIALIZED (
        SELECT l.* FROM waiting_lane l CROSS JOIN me WHERE {CAN.format(task="l.task", selector="l.selector")}
    ), limited AS MATERIALIZED ({_LIMITED}), open AS MATERIALIZED (
        SELECT q.name FROM feedq.job_queue q
        WHERE q.name = ANY(ARRAY(SELECT l.name FROM limited l WHERE l.room > 0))
            AND EXISTS (SELECT FROM lane l WHERE l.queue = q.name)
        ORDER BY q.name {{lock}}
    ), may AS (
        SELECT l.* FROM lane l
        WHERE NOT EXISTS (SELECT FROM limited q WHERE q.name = l.queue AND q.room <= 0)
    )
    SELECT ARRAY(SELECT name FROM open) AS open,
        (SELECT array_agg(queue) FROM may) AS queues, (SELECT array_agg(task) FROM may) AS tasks,
        (SELECT array_agg(selector::text) FROM may) AS selectors,
        coalesce((SELECT start_by FROM feedq.run WHERE state IN ('buffered', 'waiting') AND start_by IS NOT NULL
            ORDER BY start_by LIMIT 1) <= {NOW}, false) AS any_missed,
        extract(epoch FROM ({_NEXT_DUE}) - clock_timestamp())::float8 AS next_due_in_s,
        (SELECT min((1 - l.tokens) / l.rate_per_s) FROM limited l
         WHERE l.tokens < 1 AND EXISTS (SELECT FROM lane w WHERE w.queue = l.name))::float8
            AS next_start_in_s,
        {_LOAD}
"""

CANDIDATES = f"""
    me AS MATERIALIZED ({_ME}), limited AS MATERIALIZED ({_LIMITED}), found AS (
        SELECT r.* FROM unnest(CAST(:queues AS text[]), CAST(:tasks AS text[]), CAST(:selectors AS jsonb[]))
            AS l (queue, task, selector) CROSS JOIN LATERAL (
            SELECT {_COLUMNS} FROM feedq.run r
            WHERE r.queue = l.queue AND {_TASK} = l.task AND {_SELECTOR} = l.selector
                AND r.state = 'waiting' AND r.rank_at <= {NOW} + make_interval(secs => :ahead_max_s)
                AND {DUE}
            ORDER BY r.rank_at LIMIT :looked_at
        ) r
    ), ranked AS (
        SELECT found.*, row_number() OVER (PARTITION BY found.queue ORDER BY found.rank_at, found.id) AS place,
            CASE WHEN l.name IS NULL THEN :looked_at WHEN l.name = ANY(CAST(:open AS text[])) THEN l.room
                 ELSE 0 END AS room
        FROM found LEFT JOIN limited l ON l.name = found.queue
        WHERE EXISTS (SELECT FROM me)
    ), candidate AS MATERIALIZED (
        SELECT * FROM ranked WHERE place <= room ORDER BY rank_at, id LIMIT :looked_at
    )
"""
"""Goes behind ``WITH``."""
# Whoever claims ends what has missed its start deadline.
MISS_DEADLINES = f"""
    UPDATE feedq.run r SET state = 'missed_deadline', ended_at = clock_timestamp(),
        reason = 'not started before its start deadline'
    FROM (
        SELECT id FROM feedq.run WHERE state IN ('buffered', 'waiting') AND start_by <= {NOW}
        ORDER BY start_by LIMIT {MISSED_PER_CLAIM} FOR UPDATE SKIP LOCKED
    ) late
    WHERE r.id = late.id RETURNING r.id
"""
_TIMEOUT_S = f"""
    CASE WHEN NOT jsonb_exists(r.job, 'timeout') THEN {DEFAULT_TIMEOUT_S}
         WHEN jsonb_typeof(r.job -> 'timeout') = 'number'
         THEN least(greatest((r.job ->> 'timeout')::float8, 0), {NEVER_S}) END
"""

CLAIM = f"""
    WITH {CANDIDATES}, picked AS MATERIALIZED (
        SELECT r.at, c.queue FROM (SELECT * FROM candidate ORDER BY rank_at, id) c CROSS JOIN LATERAL (
            -- By nothing but its key: told that none waits, the planner would go through all that do. And what it
            -- was when it was found does not count: as it is, now that nobody else can change it.
            SELECT *, ctid AS at FROM feedq.run WHERE {BY_ID.format("c.id")} FOR UPDATE SKIP LOCKED
        ) r
        WHERE r.state = 'waiting' AND {DUE}
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


# -- a scan ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueScan:
    """The result of `scan_due`."""

    parameters: Mapping[str, Any]
    """The parameters of `CANDIDATES`."""
    limit: int
    """The most runs that this worker may take now: its free slots, or what its share leaves of them."""
    any_missed: bool
    """Whether a start deadline has passed."""
    next_in_s: float | None

    @property
    def is_idle(self) -> bool:
        return self.limit <= 0 or not self.parameters["queues"]


def first_due_in_s(c: Connection) -> float | None:
    """Asks how long it is until the first of all waiting runs is due; None when none waits."""
    found: float | None = c.execute(text(FIRST)).scalar_one_or_none()
    return found


def scan_due(c: Connection, offer: Offer) -> DueScan:
    """Find the lanes that a claim has to go through, and when to ask again if there are none. Locks
    the rows of queues with limits that have room."""
    given = scan_parameters(offer)
    row = c.execute(text(DUE_SCAN.replace("{lock}", "FOR UPDATE")), given).one()
    return due_scan_from(row, given, offer)


def scan_parameters(offer: Offer) -> dict[str, Any]:
    """The parameters of `DUE_SCAN`."""
    return {
        "worker_id": str(offer.worker_id),
        "free": offer.limit,
        "counted": offer.fleet_slots if offer.fleet_slots > offer.slots else 0,
        "looked_at": offer.limit + CROWD,
        "ahead_max_s": PRIORITY_MAX * AGEING_S,
    }


def share_of(offer: Offer, *, due: int, left_over: int, running: int) -> int:
    """Return how many runs a worker may take: so many that it then has its share of all that run or are due,
    rounded up, and at least those that nobody has taken for `LEFT_S`."""
    if offer.fleet_slots <= offer.slots:
        return offer.limit
    share = ceil((running + due) * offer.slots / offer.fleet_slots)
    return min(offer.limit, max(share - (offer.slots - offer.limit), left_over))


def due_scan_from(row: Any, given: Mapping[str, Any], offer: Offer) -> DueScan:
    """Reads the row of `DUE_SCAN`."""
    limit = share_of(offer, due=row.due, left_over=row.left_over, running=row.running)
    waits = [max(wait, 0.0) for wait in (row.next_due_in_s, row.next_start_in_s) if wait is not None]
    if limit < min(offer.limit, row.due):
        waits.append(LEFT_S)
    names = ("open", "queues", "tasks", "selectors")
    return DueScan(
        parameters={**given, **{name: getattr(row, name) or [] for name in names}},
        limit=limit,
        any_missed=row.any_missed,
        next_in_s=min(waits, default=None),
    )


# -- a claim -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimedRuns:
    """The runs that a claim took."""

    granted: Granted
    unreadable: Sequence[Finish] = ()
    """How those end whose job this release cannot read. Later: the row of their schedule comes before theirs."""
    missed: Sequence[int] = ()
    """The runs that missed their start deadline, and were ended."""


def claim(c: Connection, offer: Offer) -> ClaimedRuns:
    """Take at most ``offer.limit`` runs."""
    seen = scan_due(c, offer)
    missed = [row.id for row in c.execute(text(MISS_DEADLINES))] if seen.any_missed else []
    if seen.is_idle:
        return ClaimedRuns(Granted((), seen.next_in_s), missed=missed)
    rows = c.execute(text(CLAIM), {**seen.parameters, "limit": seen.limit}).all()
    return replace(taken_from(rows, seen, free=offer.limit), missed=missed)


def taken_from(rows: Sequence[Any], seen: DueScan, *, free: int) -> ClaimedRuns:
    """Reads the rows of `CLAIM`, made for a worker with so many free slots."""
    taken = [row for row in rows if row.id is not None]
    if len(taken) == free:
        next_in_s: float | None = 0.0
    elif len(taken) == seen.limit:
        next_in_s = seen.next_in_s
    elif rows[0].candidates > len(taken) or (taken and seen.parameters["open"]):
        # Others hold them for a moment; or a bucket is emptier than it was at the scan.
        next_in_s = AGAIN_S if seen.next_in_s is None else min(seen.next_in_s, AGAIN_S)
    else:
        next_in_s = seen.next_in_s
    runs, unreadable = _read(taken)
    return ClaimedRuns(Granted(runs, next_in_s), unreadable)


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
    """Tells runs whose job can be read from the others. Those are over: they would hold their schedule's place for
    ever."""
    runs: list[ClaimedRun] = []
    unreadable: list[Finish] = []
    for row in rows:
        try:
            runs.append(claimed_run(row))
        except InvalidInput as error:
            reason = f"its stored job cannot be read: {error}"
            unreadable.append(Finish(row.id, row.fence, RunState.FAILED, reason))
    return runs, unreadable
