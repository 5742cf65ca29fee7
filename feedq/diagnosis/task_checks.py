"""The tasks of schedules: is there a worker that can run each one? As workers say when they register. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedq.diagnosis.checks import Check, counted, fail, ok, warn
from feedq.store.jobs.serving import ScheduledTask, why_unserved

NAME = "tasks"
NAMED_MAX = 5
"""Tasks of which each has a line of its own."""
ADVICE = (
    "set FEEDQ_IMPORTS to the module that defines it, or FEEDQ_WORKER_LABELS, and start the workers again"
)


def check_tasks(tasks: Sequence[ScheduledTask]) -> Iterator[Check]:
    """Nothing to say without tasks or without workers."""
    if not any(task.workers for task in tasks):
        return
    troubles = [task for task in tasks if not task.able]
    if not troubles:
        some = sum(task.able < task.workers for task in tasks)
        others = f", {some} of them on some workers only" if some else ""
        yield ok(NAME, f"{counted(len(tasks), 'task')} of schedules, each known to a worker{others}")
    for task in troubles[:NAMED_MAX]:
        yield _trouble(task)
    if len(troubles) > NAMED_MAX:
        yield warn(NAME, f"and {counted(len(troubles) - NAMED_MAX, 'more task')}", "mend these first")


def _trouble(task: ScheduledTask) -> Check:
    others = f" (and {counted(task.schedules - 1, 'other')})" if task.schedules > 1 else ""
    why = why_unserved(task.task, task.selector, is_known=task.is_known)
    return fail(NAME, f"schedule {task.schedule}{others}: {why}", ADVICE)
