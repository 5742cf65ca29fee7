"""Jobs of the tests, for workers with ``FEEDQ_IMPORTS=tests.jobs_under_test``: they write down what they do.

Each effect is a row of the table ``effect`` in the control database, committed at once, with what the job was told
of its run. Whoever looks at the table sees what happened, however the worker that did it ended.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg2
from celery import shared_task

from feedq import RunContext, run_context

TABLE = """
    CREATE TABLE IF NOT EXISTS effect (
        id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL,
        schedule text, key text, kind text, task text, request_id text, attempt int, fence bigint,
        tick_at timestamptz, due_at timestamptz, remaining_s float8, pid int
    )
"""
COLUMNS = (
    *("what", "schedule", "key", "kind", "task", "request_id"),
    *("attempt", "fence", "tick_at", "due_at", "remaining_s", "pid"),
)


def insert(placeholder: str) -> str:
    values = ", ".join(placeholder.format(name) for name in COLUMNS)
    return f"INSERT INTO effect ({', '.join(COLUMNS)}) VALUES ({values})"


def told(what: str, request_id: str) -> dict[str, Any]:
    context: RunContext = run_context()
    return {
        "what": what,
        "schedule": context.schedule,
        "key": context.key,
        "kind": context.kind.value,
        "task": context.task,
        "request_id": request_id,
        "attempt": context.attempt,
        "fence": context.fence,
        "tick_at": context.tick_at,
        "due_at": context.due_at,
        "remaining_s": context.remaining_s,
        "pid": os.getpid(),
    }


def write(what: str, request_id: str) -> None:
    connection = psycopg2.connect(os.environ["FEEDQ_DATABASE_URL"], connect_timeout=5)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(insert("%({})s"), told(what, request_id))
    finally:
        connection.close()


@shared_task(name="tests.note", bind=True)
def note(self: Any, what: str = "done") -> None:
    """One effect."""
    write(what, self.request.id)


@shared_task(name="tests.slow", bind=True)
def slow(self: Any, seconds: float) -> None:
    """Begins, takes its time unless it is told to stop, and ends."""
    write("begun", self.request.id)
    run_context().wait(seconds)
    write("told to stop" if run_context().is_cancelled else "ended", self.request.id)
    run_context().raise_if_cancelled()


@shared_task(name="tests.pause")
def pause(seconds: float) -> None:
    """Takes its time, and speaks to nobody."""
    run_context().wait(seconds)
    run_context().raise_if_cancelled()
