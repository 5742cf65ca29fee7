"""Rows of schedules and runs: the columns, their values, and what all who write them share.

A declaration is stored as JSON (`feedq.core.values.Entry.to_json`). A run has a copy of what it says of the job
(`feedq.core.schedule.spec.JOB_KEYS`).

Whatever makes or cancels the runs of a schedule locks the schedule's row before it counts or touches them: so two
that decide at once are one after the other, and the second sees what the first has done. Rows are locked in one
order everywhere, the schedule before its runs and runs by their ids (`feedq.control.store.jobs.runs` has the
table)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from feedq.control.store import history
from feedq.control.store.channels import NotifyReason, notify_workers
from feedq.control.store.database import Connection, GivenRows
from feedq.core.schedule.model import (
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleState,
    ScheduleView,
)
from feedq.core.schedule.spec import JOB_KEYS, ScheduleSpec
from feedq.core.schedule.ticks import Unfinished
from feedq.errors import InvalidInput, NotFound, Unreadable
from feedq.telemetry.event_names import EventKind

DECLARED = "declared as paused"
"""The reason of a pause that the declaration asks for."""
UNFIRED = "it cannot be fired: "
"""Begins the reason of a pause of a schedule about which firing could decide nothing, by its declaration."""
UNFINISHED = "state IN ('buffered', 'waiting', 'running')"
"""As the index `run_unfinished` has it."""
NOT_BEGUN = (RunState.BUFFERED, RunState.WAITING)
"""What is cancelled of a schedule without touching what runs."""
SCHEDULE_COLUMNS = (
    "s.id, s.name, s.declaration::text AS declaration, s.state, s.paused_until, s.pause_reason, s.generation, "
    "s.next_tick_at, s.next_fire_at, s.failures, s.created_at, s.updated_at"
)
"""The columns of a schedule in the order of the fields, as those of runs are: a page has a thousand rows, and
to look each column up by its name takes longer than all else that is done with it."""
SCHEDULE_WIDTH = 12
RUN_COLUMNS = (
    "r.id AS run_id, r.schedule_id, s.name AS schedule_name, r.kind, r.key, r.tick_at, r.ticks, r.due_at, "
    "r.state AS run_state, r.reason, r.attempt, r.fence, r.worker_id, w.name AS worker_name, r.started_at, "
    "r.deadline_at, r.ended_at, r.job::text AS run_job"
)
"""The columns of a run, with its schedule and its worker joined to it."""
UNREADABLE = "(cannot be read)"
"""Shown in lists as the task of what this release cannot read. Nothing is told by it: see
`feedq.core.schedule.model.Schedule.unreadable`."""
SOON = timedelta(seconds=1)
"""What is declared to fire within this is told to a worker: no worker may scan by then. All others see it in
time."""
KEPT = 4_096
"""Jobs that are kept, read once: the runs of a schedule all have the same."""
_COUNT = f"""
    SELECT given.id, u.waiting, u.running FROM unnest(CAST(%(ids)s AS bigint[])) AS given (id) CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE state <> 'running')::int AS waiting,
            count(*) FILTER (WHERE state = 'running')::int AS running
        -- In an order that only `run_unfinished` has: others have the whole history of a schedule.
        FROM (SELECT state FROM feedq.run WHERE schedule_id = given.id AND {UNFINISHED}
              ORDER BY state OFFSET 0) r
    ) u
"""
FENCES = GivenRows("id bigint, fence bigint")
"""Runs, each with the fence under which somebody believes to have it."""
_CANCELLED = GivenRows("schedule_id bigint, reason text")
_CANCEL = f"""
    WITH given AS (
        SELECT * FROM {_CANCELLED}
    ), listed AS (
        SELECT r.id FROM given CROSS JOIN LATERAL (
            SELECT id, state FROM feedq.run WHERE schedule_id = given.schedule_id AND {UNFINISHED}
            ORDER BY state OFFSET 0
        ) r WHERE r.state = ANY(%(states)s)
    ), found AS MATERIALIZED (
        SELECT r.* FROM (SELECT id FROM listed ORDER BY id) l CROSS JOIN LATERAL (
            SELECT id, schedule_id, state FROM feedq.run WHERE id = l.id OFFSET 0 FOR UPDATE
        ) r WHERE r.state = ANY(%(states)s)
    )
    UPDATE feedq.run r SET state = 'cancelled', reason = given.reason, ended_at = feedq.clock()
    FROM found JOIN given USING (schedule_id) WHERE r.id = found.id RETURNING r.worker_id
"""


def stored_job(spec: ScheduleSpec) -> str:
    return spec.model_dump_json(include=set(JOB_KEYS), exclude_defaults=True, warnings=False)


def schedule_from(row: Any) -> Schedule:
    """Reads a row that begins with `SCHEDULE_COLUMNS`. Raises `Unreadable`."""
    schedule_id, name, declaration, state, *rest = row[:SCHEDULE_WIDTH]
    try:
        spec = ScheduleSpec.from_json(declaration)
    except InvalidInput as error:
        raise Unreadable(
            f"schedule {name!r} is stored in a way that this release of feedq cannot read ({error}); upgrade "
            "feedq, or declare the whole of it anew with `feedq apply`"
        ) from error
    return Schedule(schedule_id, spec, ScheduleState(state), *rest)


def shown_schedule_from(row: Any) -> Schedule:
    """Reads such a row to be looked at, whatever is stored: of one that is `unreadable` as much as is sure."""
    try:
        return schedule_from(row)
    except Unreadable as error:
        schedule_id, name, _, state, until, reason, *rest = row[:SCHEDULE_WIDTH]
        spec = ScheduleSpec.of({"name": name, "task": UNREADABLE, "paused": reason == DECLARED or None})
        shown = Schedule(schedule_id, spec, ScheduleState(state), until, reason, *rest)
        return replace(shown, unreadable=str(error))


def run_from(row: Any) -> Run:
    """Reads `RUN_COLUMNS`."""
    run_id, schedule_id, name, kind, key, tick_at, ticks, due_at, state, *rest, job = row
    try:
        rest.append(job_from(job))
    except InvalidInput:
        rest.append(ScheduleSpec.of({"name": name, "task": UNREADABLE}))
    return Run(run_id, schedule_id, name, RunKind(kind), key, tick_at, ticks, due_at, RunState(state), *rest)


def view_from(row: Any) -> ScheduleView:
    """Reads `SCHEDULE_COLUMNS`, `RUN_COLUMNS`, all null where there is no run, ``waiting`` and ``running``."""
    *columns, waiting, running = row
    run = columns[SCHEDULE_WIDTH:]
    last = None if run[0] is None else run_from(run)
    return ScheduleView(shown_schedule_from(columns), last, waiting, running)


@lru_cache(maxsize=KEPT)
def job_from(stored: str) -> ScheduleSpec:
    """Raises `InvalidInput`."""
    return ScheduleSpec.from_json(stored)


# -- locks, and what is written ----------------------------------------------------------------------


def now(c: Connection) -> datetime:
    moment: datetime = c.execute("SELECT feedq.clock()").scalar_one()
    return moment


def locked(c: Connection, name: str) -> Schedule:
    """The declared schedule of that name, its row locked. Raises `NotFound`, `Unreadable`."""
    return schedule_from(locked_row(c, name))


def locked_row(c: Connection, name: str) -> Any:
    """Locks a schedule and returns its `SCHEDULE_COLUMNS`, for who need not read the declaration. Raises
    `NotFound`."""
    sql = f"""
        SELECT {SCHEDULE_COLUMNS} FROM feedq.schedule s
        WHERE name = %(name)s AND removed_at IS NULL FOR NO KEY UPDATE
    """
    row = c.execute(sql, {"name": name}).one_or_none()
    if row is None:
        raise no_schedule(name)
    return row


def no_schedule(name: str) -> NotFound:
    return NotFound(f"no schedule named {name!r}; `feedq schedule list` shows them all")


def no_run(run_id: int) -> NotFound:
    return NotFound(f"no run {run_id}; it never was, or its schedule's history has been trimmed since")


def unfinished(c: Connection, schedule_ids: Sequence[int]) -> dict[int, Unfinished]:
    """The runs of each of these schedules that have not ended."""
    rows = c.execute(_COUNT, {"ids": list(schedule_ids)})
    return {row.id: Unfinished(row.waiting, row.running) for row in rows}


def cancel(c: Connection, reasons: Mapping[int, str], states: Sequence[RunState]) -> int:
    """Cancel the runs in these states of these schedules, whose rows are locked, and tell the workers of running
    ones. Returns how many runs."""
    parameters = {**_CANCELLED.of(reasons.items()), "states": [state.value for state in states]}
    workers = [row.worker_id for row in c.execute(_CANCEL, parameters)]
    if told := set(workers) - {None}:
        notify_workers(c, list(told), NotifyReason.JOBS)
    return len(workers)


def notify_some(c: Connection, runs: int, reason: NotifyReason) -> None:
    """Tell one worker for each of so many runs, with the commit: those that are least busy for their slots."""
    c.execute("SELECT feedq_1.notify_some(%(runs)s, %(reason)s)", {"runs": runs, "reason": reason.value})


def notify_if_soon(c: Connection, schedules: Iterable[Schedule], at: datetime) -> None:
    """Have a worker scan for the next tick of these, with the commit, if one of them is to fire soon."""
    fires_at = [s.next_fire_at for s in schedules if s.state is ScheduleState.ACTIVE]
    if any(fires is not None and fires <= at + SOON for fires in fires_at):
        notify_some(c, 1, NotifyReason.JOBS)


def record(c: Connection, kind: EventKind, **detail: Any) -> None:
    """Write an event. It names the schedule and does not point to it: history outlives it."""
    history.record(c, kind, detail={key: value for key, value in detail.items() if value is not None})
