"""Which schedules no worker can serve: none knows the task, or none of those that do has the labels.

Nothing fails by it: runs wait until a worker comes that can do them (`feedq.store.jobs.candidates`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from feedq.store.jobs.candidates import CAN, KNOWS

_SERVING = """
    serving AS MATERIALIZED (
        SELECT w.name, w.labels, t.tasks FROM feedq.worker w LEFT JOIN feedq.task_set t ON t.id = w.task_set_id
        WHERE w.state = 'active' AND w.target_state = 'serving' AND w.job_slots > 0
    )
"""
_WANTED = "coalesce(s.job ->> 'task', '') AS task, coalesce(s.job -> 'selector', '{}'::jsonb) AS selector"
_CAN = CAN.format(task="wanted.task", selector="wanted.selector")
_UNSERVED = f"""
    WITH {_SERVING}, wanted AS MATERIALIZED (
        SELECT s.name, {_WANTED} FROM feedq.schedule s WHERE s.removed_at IS NULL AND s.name = ANY(:names)
    )
    SELECT wanted.name, wanted.task, wanted.selector,
        EXISTS (SELECT FROM serving me WHERE {KNOWS.format(task="wanted.task")}) AS is_known
    FROM wanted
    WHERE EXISTS (SELECT FROM serving) AND NOT EXISTS (SELECT FROM serving me WHERE {_CAN})
"""
_TASKS = f"""
    WITH {_SERVING}, wanted AS MATERIALIZED (
        SELECT found.task, found.selector, min(found.name) AS schedule, count(*)::int AS schedules FROM (
            SELECT s.name, {_WANTED} FROM feedq.schedule s WHERE s.removed_at IS NULL AND s.state = 'active'
        ) found GROUP BY 1, 2
    )
    SELECT wanted.*, (SELECT count(*)::int FROM serving) AS workers,
        (SELECT count(*)::int FROM serving me WHERE {_CAN}) AS able,
        EXISTS (SELECT FROM serving me WHERE {KNOWS.format(task="wanted.task")}) AS is_known
    FROM wanted ORDER BY wanted.task, wanted.selector
"""


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task that active schedules run, on workers with these labels."""

    task: str
    schedule: str
    """The first of them."""
    schedules: int
    selector: Mapping[str, str]
    workers: int
    """Workers that run jobs."""
    able: int
    """Those of them that know the task and have the labels."""
    is_known: bool
    """Whether one knows the task, whatever its labels."""


def unserved(c: Connection, names: Collection[str]) -> dict[str, str]:
    """Which of these schedules no worker can serve, and why, in a sentence. None while no worker runs jobs."""
    rows = c.execute(text(_UNSERVED), {"names": list(names)})
    return {row.name: why_unserved(row.task, row.selector, is_known=row.is_known) for row in rows}


def scheduled_tasks(c: Connection) -> list[ScheduledTask]:
    """Of active schedules, each task with each selector once."""
    return [
        ScheduledTask(
            row.task, row.schedule, row.schedules, row.selector, row.workers, row.able, row.is_known
        )
        for row in c.execute(text(_TASKS))
    ]


def why_unserved(task: str, selector: Mapping[str, str], *, is_known: bool) -> str:
    if not is_known:
        return f"no worker knows task {task}: its runs wait until one does (FEEDQ_IMPORTS names its module)"
    labels = ", ".join(f"{key}={value}" for key, value in selector.items())
    return f"no worker that knows task {task} has the labels {labels}: its runs wait until one does"
