"""Schedules, runs and tasks as the tables show them: whether somebody fires and runs what falls due. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from feedq.control.store.fleet_state import JobState
from feedq.verbs.diagnosis.checks import Check, fail, not_checked, ok, warn
from feedq.verbs.wording import NAMED_MAX, counted, duration, some

if TYPE_CHECKING:
    from feedq.control.store.jobs.listing import ScheduledTask

OVERDUE_S = 30.0
"""A tick is fired within a second of its time: what is this late is fired by nobody."""
WAITING_S = 60.0
"""A run that has been due for so long waits for more than its turn."""

START_WORKER = (
    "start or uncordon a worker: celery -A feedq worker; for jobs alone, celery -A feedq worker -Q jobs -c 8"
)
TASKS_ADVICE = (
    "set FEEDQ_IMPORTS to the module that defines it, or FEEDQ_WORKER_LABELS, and start the workers again"
)


def job_checks(state: JobState) -> Iterator[Check]:
    """Checks schedules and runs; yields nothing for an installation without any."""
    if not state.are_used:
        return
    if state.slots:
        slots = f"{counted(state.slots, 'job slot')} on {counted(state.workers, 'worker')}"
        yield ok("schedules", f"{described_schedules(state)}; {slots}")
    else:
        yield fail(
            "schedules",
            f"{described_schedules(state)}; no worker that serves has job slots, and nothing is run",
            START_WORKER,
        )
    if state.overdue_s is not None and state.overdue_s > OVERDUE_S:
        yield fail(
            "ticks",
            f"a tick fell due {duration(state.overdue_s)} ago and has not been fired",
            "workers fire them, all alike: see that one is up and reaches the control database",
        )
    if state.tripped:
        yield warn(
            "paused",
            f"{counted(len(state.tripped), 'schedule')} paused by failures: {some(state.tripped)}",
            "feedq schedule runs NAME --state failed says why; then feedq schedule resume NAME",
        )
    if state.failing:
        yield warn(
            "failed runs",
            f"the last run of {counted(state.failing, 'schedule')} did not succeed: "
            f"{some(state.failing_names, of=state.failing)}",
            "feedq schedule runs NAME --state failed says why; feedq schedule trigger NAME runs it again",
        )
    if state.slots and state.oldest_due_s is not None and state.oldest_due_s > WAITING_S:
        yield _waiting(state)


def described_schedules(state: JobState) -> str:
    """Counts schedules in words: ``12: 10 active, 2 paused (1 by failures)``."""
    tripped = f" ({len(state.tripped)} by failures)" if state.tripped else ""
    paused = f", {state.paused} paused{tripped}" if state.paused else ""
    return f"{state.schedules}: {state.active} active{paused}"


def described_runs(state: JobState) -> str:
    """Counts runs in words: ``3 running, 5 waiting, the oldest due for 12s``."""
    oldest = "" if state.oldest_due_s is None else f", the oldest due for {duration(state.oldest_due_s)}"
    return f"{state.running} running, {state.waiting} waiting{oldest}"


def _waiting(state: JobState) -> Check:
    assert state.oldest_due_s is not None
    waits = f"{counted(state.due, 'run')} due and not started, the oldest for {duration(state.oldest_due_s)}"
    if state.running >= state.slots:
        return warn(
            "runs",
            f"{waits}; all {counted(state.slots, 'job slot')} are taken",
            "start another worker, or raise FEEDQ_JOB_SLOTS",
        )
    return warn(
        "runs",
        f"{waits}, while {counted(state.slots - state.running, 'job slot')} are free",
        "a limit, an earlier run of their schedule or a task that no worker knows holds them back: "
        "feedq schedule runs --state waiting, feedq schedule list --queues",
    )


def check_tasks(tasks: Sequence[ScheduledTask]) -> Iterator[Check]:
    """Is there a worker that can run each task? As workers say when they register."""
    if not tasks:
        return
    if not any(task.workers for task in tasks):
        yield not_checked("tasks", "no worker runs jobs, so none says which tasks it knows", START_WORKER)
        return
    troubles = [task for task in tasks if not task.able]
    if not troubles:
        some_only = sum(task.able < task.workers for task in tasks)
        others = f", {some_only} of them on some workers only" if some_only else ""
        yield ok("tasks", f"{counted(len(tasks), 'task')} of schedules, each known to a worker{others}")
    for task in troubles[:NAMED_MAX]:
        others = f" (and {counted(task.schedules - 1, 'other')})" if task.schedules > 1 else ""
        yield fail("tasks", f"schedule {task.schedule}{others}: {task.why_unserved}", TASKS_ADVICE)
    if len(troubles) > NAMED_MAX:
        more = counted(len(troubles) - NAMED_MAX, "more task")
        yield warn("tasks", f"and {more}", "mend these first")
