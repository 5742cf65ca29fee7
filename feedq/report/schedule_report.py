"""Schedules and runs.

Arguments of jobs stand in a schedule's own document only, and what a name gives away as a secret is masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedq.report.masking import shown
from feedq.report.run_report import lag_s
from feedq.schedule.model import Run, RunState, Schedule, ScheduleView
from feedq.schedule.plain import job_to_plain, policy_to_plain, timing_to_plain
from feedq.telemetry import mask_url


def schedule_row(view: ScheduleView) -> dict[str, Any]:
    """One schedule in a list."""
    return schedule_standing(view.schedule) | {
        "waiting": view.waiting,
        "running": view.running,
        "last": None if view.last is None else run_row(view.last),
    }


def schedule_standing(schedule: Schedule) -> dict[str, Any]:
    """A schedule by itself: what a change of it answers."""
    spec = schedule.spec
    return {
        "id": schedule.id,
        "name": spec.name,
        "state": schedule.state.value,
        "paused_until": schedule.paused_until,
        "pause_reason": schedule.pause_reason,
        "unreadable": schedule.unreadable,
        "timing": timing_to_plain(spec.timing),
        "task": spec.job.task,
        "queue": spec.job.queue,
        "semantics": spec.job.semantics.value,
        "next_tick_at": schedule.next_tick_at,
        "next_fire_at": schedule.next_fire_at,
        "failures": schedule.failures,
        "generation": schedule.generation,
    }


def schedule_document(
    view: ScheduleView, *, counts: Mapping[RunState, int], runs: Sequence[Run]
) -> dict[str, Any]:
    """The line, the rest of its declaration, its runs by state and the newest of them."""
    schedule, spec = view.schedule, view.schedule.spec
    return schedule_row(view) | {
        "job": shown(job_to_plain(spec.job)),
        "policy": policy_to_plain(spec),
        "unserved": view.unserved,
        "counts": {state.value: counts.get(state, 0) for state in RunState},
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "runs": [run_row(run) for run in runs],
    }


def run_row(run: Run) -> dict[str, Any]:
    """One run, without the arguments of its job."""
    return {
        "id": run.id,
        "schedule": run.schedule,
        "key": run.key,
        "correlation_id": f"{run.schedule}/{run.key}",
        "kind": run.kind.value,
        "tick_at": run.tick_at,
        "ticks": run.ticks,
        "due_at": run.due_at,
        "state": run.state.value,
        "reason": None if run.reason is None else mask_url(run.reason),
        "attempt": run.attempt,
        "fence": run.fence,
        "worker": run.worker,
        "worker_id": run.worker_id,
        "task": run.job.task,
        "queue": run.job.queue,
        "started_at": run.started_at,
        "deadline_at": run.deadline_at,
        "ended_at": run.ended_at,
        "lag_s": lag_s(run),
    }
