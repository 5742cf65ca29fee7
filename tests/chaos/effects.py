"""Jobs whose effects can be counted, for workers with ``FEEDQ_IMPORTS=tests.chaos.effects``.

An effect is a row of the table `effect`. `noted` commits it by itself, before the rest of the job and whatever the
fence says: a run that is executed twice leaves two. `transferred` writes it through the session of its run.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg2
from celery import shared_task
from sqlalchemy import text

from feedq import RunContext, run_context

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = """
    CREATE TABLE IF NOT EXISTS effect (
        id bigserial PRIMARY KEY, began_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz,
        schedule text NOT NULL, key text NOT NULL, attempt int NOT NULL, fence bigint NOT NULL, pid int NOT NULL,
        clock float8 NOT NULL
    )
"""
"""`clock` is the worker's own, `began_at` the database's."""
COLUMNS = ("schedule", "key", "attempt", "fence", "pid", "clock")
_VALUES = ", ".join(f"%({name})s" for name in COLUMNS)
_NOTE = f"INSERT INTO effect ({', '.join(COLUMNS)}) VALUES ({_VALUES}) RETURNING id"
_TRANSFER = text(
    f"INSERT INTO effect ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})"
)
_END = "UPDATE effect SET ended_at = clock_timestamp() WHERE id = %s"
_idle: SimpleQueue[Any] = SimpleQueue()
_rng = Random()


@contextmanager
def _connection() -> Iterator[Any]:
    """One of this process's own, which commits each statement."""
    try:
        connection = _idle.get_nowait()
    except Empty:
        connection = psycopg2.connect(os.environ["FEEDQ_DATABASE_URL"], connect_timeout=5)
        connection.autocommit = True
    yield connection  # after a failure it is not used again
    _idle.put(connection)


def _facts(context: RunContext) -> dict[str, Any]:
    return {
        "schedule": context.schedule,
        "key": context.key,
        "attempt": context.attempt,
        "fence": context.fence,
        "pid": os.getpid(),
        "clock": time.time(),
    }


def _note(context: RunContext) -> int:
    with _connection() as connection, connection.cursor() as cursor:
        cursor.execute(_NOTE, _facts(context))
        (effect_id,) = cursor.fetchone()
    return int(effect_id)


@shared_task(name="effects.noted")
def noted(most_s: float = 0.3) -> None:
    """An effect at once, and then some work, which hears of nothing."""
    _note(run_context())
    _work(_rng.uniform(0.0, most_s))


@shared_task(name="effects.transferred")
def transferred(most_s: float = 0.3, least_s: float = 0.0) -> None:
    """Work, and an effect in the middle of it, through the session."""
    context = run_context()
    work_s = _rng.uniform(least_s, most_s)
    _work(work_s / 2)
    context.session.execute(_TRANSFER, _facts(context))
    _work(work_s / 2)


@shared_task(name="effects.spanned")
def spanned(seconds: float) -> None:
    """An effect from the beginning to the end of the work, which heeds a cancellation."""
    effect_id = _note(run_context())
    run_context().wait(seconds)
    with _connection() as connection, connection.cursor() as cursor:
        cursor.execute(_END, (effect_id,))
    run_context().raise_if_cancelled()


@shared_task(name="effects.nothing")
def nothing(seconds: float = 0.0) -> None:
    """No effect at all."""
    _work(seconds)


def _work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(left_s)
