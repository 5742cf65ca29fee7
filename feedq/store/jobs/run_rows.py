"""Rows of schedules and runs as values of `feedq.schedule.model`, and the column lists that select them.

A declaration is stored in three parts, the job, the timing and the policies, each as JSON in the words of
`feedq.schedule.plain`. A run has a copy of the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from feedq.errors import InvalidInput, Unreadable
from feedq.schedule.model import (
    Cron,
    Job,
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
    Timing,
    UnreadableSpec,
)
from feedq.schedule.plain import (
    job_from_plain,
    job_to_plain,
    policy_from_plain,
    policy_to_plain,
    timing_from_plain,
    timing_to_plain,
)
from feedq.store.jobs.pauses import DECLARED

SPEC_COLUMNS = (
    "s.name, s.job::text AS job, s.timing::text AS timing, s.policy::text AS policy, "
    "s.excluded::text AS excluded"
)
SCHEDULE_COLUMNS = (
    f"s.id, {SPEC_COLUMNS}, s.state, s.paused_until, s.pause_reason, s.generation, s.next_tick_at, "
    "s.next_fire_at, s.failures, s.created_at, s.updated_at"
)
"""In the order of the fields, as those of runs are: a page has a thousand rows, and to look each column up by its
name takes longer than all else that is done with it."""
SCHEDULE_WIDTH = 15
RUN_COLUMNS = (
    "r.id AS run_id, r.schedule_id, s.name AS schedule_name, r.kind, r.key, r.tick_at, r.ticks, r.due_at, "
    "r.state AS run_state, r.reason, r.attempt, r.fence, r.worker_id, w.name AS worker_name, r.started_at, "
    "r.deadline_at, r.ended_at, r.job::text AS run_job"
)
"""Of a run, with its schedule and its worker joined to it."""
UNREADABLE = "(cannot be read)"
"""Shown in lists as the task of a job that this release cannot read. Nothing is told by it: see
`feedq.schedule.model.Schedule.unreadable`."""
KEPT = 4_096
"""Values of each part that are kept, read once: what people look at is the same again and again, and few
schedules have a timing of their own."""


def stored_job(job: Job) -> str:
    return orjson.dumps(job_to_plain(job)).decode()


def stored(spec: ScheduleSpec) -> dict[str, str | None]:
    """The columns that hold a declaration."""
    return {
        "name": spec.name,
        "job": stored_job(spec.job),
        "timing": orjson.dumps(timing_to_plain(spec.timing)).decode(),
        "policy": orjson.dumps(policy_to_plain(spec)).decode(),
        "excluded": stored_dates(spec.exclude.calendar_dates) if spec.exclude.calendars else None,
    }


def stored_dates(dates: Sequence[str]) -> str:
    return orjson.dumps(list(dates)).decode()


def spec_from(row: Any) -> ScheduleSpec:
    """From `SPEC_COLUMNS`. Raises `Unreadable`."""
    name, job, timing, policy, excluded = row
    try:
        return ScheduleSpec(name, _timing_from(timing), job_from(job), **_policy_from(policy, excluded))
    except (InvalidInput, ValueError) as error:
        raise Unreadable(
            f"schedule {name!r} is stored in a way that this release of feedq cannot read ({error}); upgrade "
            "feedq, or declare the whole of it anew: `feedq apply`, or `feedq schedule edit` with --task, its "
            "timing and all else"
        ) from error


def declared_from(row: Any) -> ScheduleSpec | UnreadableSpec:
    """From `SPEC_COLUMNS` and ``pause_reason``, whatever is stored."""
    *columns, pause_reason = row
    try:
        return spec_from(columns)
    except Unreadable as error:
        return UnreadableSpec(str(error), paused=pause_reason == DECLARED)


def schedule_from(row: Any) -> Schedule:
    """From a row that begins with `SCHEDULE_COLUMNS`. Raises `Unreadable`."""
    schedule_id, name, job, timing, policy, excluded, state, *rest = row[:SCHEDULE_WIDTH]
    return Schedule(
        schedule_id, spec_from((name, job, timing, policy, excluded)), ScheduleState(state), *rest
    )


def shown_schedule_from(row: Any) -> Schedule:
    """The same to be looked at, whatever is stored: of one that is `unreadable` as much as is sure."""
    try:
        return schedule_from(row)
    except Unreadable as error:
        schedule_id, name, _, timing, _, _, state, until, reason, *rest = row[:SCHEDULE_WIDTH]
        spec = ScheduleSpec(name, _shown_timing_from(timing), Job(UNREADABLE), paused=reason == DECLARED)
        known = Schedule(schedule_id, spec, ScheduleState(state), until, reason, *rest)
        return replace(known, unreadable=str(error))


def run_from(row: Any) -> Run:
    """From `RUN_COLUMNS`."""
    run_id, schedule_id, name, kind, key, tick_at, ticks, due_at, state, *rest, job = row
    rest.append(_shown_job_from(job))
    return Run(run_id, schedule_id, name, RunKind(kind), key, tick_at, ticks, due_at, RunState(state), *rest)


def view_from(row: Any) -> ScheduleView:
    """From `SCHEDULE_COLUMNS`, `RUN_COLUMNS`, all null where there is no run, ``waiting`` and ``running``."""
    *columns, waiting, running = row
    run = columns[SCHEDULE_WIDTH:]
    last = None if run[0] is None else run_from(run)
    return ScheduleView(shown_schedule_from(columns), last, waiting, running)


def _shown_job_from(stored: str) -> Job:
    try:
        return job_from(stored)
    except (InvalidInput, ValueError):
        return Job(UNREADABLE)


def _shown_timing_from(stored: str) -> Timing:
    try:
        return _timing_from(stored)
    except (InvalidInput, ValueError):
        return Cron("?")


@lru_cache(maxsize=KEPT)
def job_from(stored: str) -> Job:
    return job_from_plain(orjson.loads(stored))


@lru_cache(maxsize=KEPT)
def _timing_from(stored: str) -> Timing:
    return timing_from_plain(orjson.loads(stored))


@lru_cache(maxsize=KEPT)
def _policy_from(stored: str, excluded: str | None) -> Mapping[str, Any]:
    policy = policy_from_plain(orjson.loads(stored))
    if excluded is None or "exclude" not in policy:
        return policy
    return policy | {"exclude": replace(policy["exclude"], calendar_dates=tuple(orjson.loads(excluded)))}
