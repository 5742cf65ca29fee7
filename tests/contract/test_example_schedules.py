"""The schedules of ``examples/`` are valid, name jobs that exist, and their jobs do what they say."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from feedq.core.schedule.model import ClaimedRun, RunKind
from feedq.core.schedule.spec import ScheduleSpec, Semantics
from feedq.verbs.manifest import reader
from feedq.worker.jobs.calling import import_jobs
from feedq.worker.jobs.context import RunContext

EXAMPLES = Path(__file__).parents[2] / "examples" / "schedules"
FILE = EXAMPLES / "schedules.yaml"
TICK = datetime(2026, 11, 22, 10, tzinfo=UTC)


def declared() -> dict[str, ScheduleSpec]:
    read = reader.parse(FILE.read_text(), origin=FILE.name)
    assert read.problems == ()
    return {declaration.spec.name: declaration.spec for declaration in read.schedules}


@pytest.fixture(scope="module")
def harbour() -> Iterator[ModuleType]:
    """The module as a worker imports it that is started beside it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(EXAMPLES)
        # As the program celery has it: its own directory is on the path, and not the one that it is started in.
        patched.setattr(sys, "path", [path for path in sys.path if path not in ("", str(EXAMPLES))])
        import_jobs(("harbour",))
    yield sys.modules["harbour"]
    del sys.modules["harbour"]


def jobs(module: ModuleType) -> dict[str, Any]:
    return {task.name: task for task in vars(module).values() if hasattr(task, "apply_async")}


def context(name: str, *, remaining_s: float = 30) -> RunContext:
    job = declared()[name]
    key = TICK.isoformat().replace("+00:00", "Z")
    claimed = ClaimedRun(1, 9, 1, name, key, RunKind.TICK, TICK, TICK, job, remaining_s)
    return RunContext(claimed)


def call(module: ModuleType, job: ScheduleSpec) -> None:
    jobs(module)[job.task].run(*job.args, **job.kwargs)


@pytest.fixture
def tables(database_url: str) -> str:
    """A database with the tables in the head of the example, and some landed positions."""
    comment = "\n".join(line[2:] for line in FILE.read_text().splitlines() if line.startswith("# "))
    statements = re.findall(r"^CREATE TABLE .*?^\);$", comment, re.MULTILINE | re.DOTALL)
    assert len(statements) == 2
    landed = "CREATE TABLE ais_raw (feed text, epoch bigint, received_at timestamptz, payload text)"
    connection = psycopg2.connect(database_url)
    with connection, connection.cursor() as cursor:
        for statement in (*statements, landed):
            cursor.execute(statement)
        for minutes in (-61, -60, -30, -1, 0):
            at = TICK + timedelta(minutes=minutes)
            cursor.execute("INSERT INTO ais_raw VALUES ('home/ais', 1, %s, 'AIVDM')", (at,))
    connection.close()
    return database_url


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        found = cursor.fetchall()
    connection.close()
    return found


def test_the_schedules_are_valid_and_there_is_one_for_each_semantics() -> None:
    assert {spec.semantics for spec in declared().values()} == set(Semantics)
    assert len(declared()) == 3


def test_each_schedule_names_a_task_that_takes_its_arguments(harbour: ModuleType) -> None:
    for spec in declared().values():
        task = jobs(harbour)[spec.task]
        inspect.signature(task.run).bind(*spec.args, **spec.kwargs)
    assert {spec.task for spec in declared().values()} == set(jobs(harbour))


def test_ships_are_counted_for_the_hour_before_the_tick_in_the_runs_own_transaction(
    harbour: ModuleType, tables: str
) -> None:
    engine = create_engine(tables.replace("postgresql:", "postgresql+psycopg2:", 1))
    run = context("harbour/ships")
    with Session(engine) as session, run.entered(), run.within(session):
        call(harbour, declared()["harbour/ships"])
        assert rows(tables, "SELECT * FROM ais_hourly") == [], "committed by the job itself"
        session.commit()
    engine.dispose()
    assert rows(tables, "SELECT * FROM ais_hourly") == [("home/ais", TICK - timedelta(hours=1), 3)]
