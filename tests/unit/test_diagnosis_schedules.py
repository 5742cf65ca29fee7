"""Schedules and runs in `feedq status`, `top` and `doctor`: what is said of them, and when it is a warning."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from feedq.control.store.fleet_state import JobState
from feedq.control.store.jobs.listing import ScheduledTask
from feedq.core.schedule.model import Schedule, ScheduleState, ScheduleView
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.schedule_checks import (
    OVERDUE_S,
    WAITING_S,
    check_tasks,
    described_runs,
    described_schedules,
    job_checks,
)
from tests.schedules import schedule_spec
from tests.unit.command import NO_JOBS, Command

WELL = JobState(
    active=10,
    paused=2,
    tripped=(),
    overdue_s=None,
    running=3,
    waiting=5,
    due=4,
    oldest_due_s=12.0,
    workers=2,
    slots=8,
)


def found(state: JobState) -> dict[str, tuple[Level, str]]:
    return {check.name: (check.level, f"{check.detail} -> {check.advice}") for check in job_checks(state)}


def test_a_healthy_installation_has_no_warnings() -> None:
    assert found(WELL) == {"schedules": (Level.OK, "12: 10 active, 2 paused; 8 job slots on 2 workers -> ")}
    assert described_runs(WELL) == "3 running, 5 waiting, the oldest due for 12s"


def test_without_schedules_nothing_is_said() -> None:
    assert found(NO_JOBS) == {}
    # Runs of a schedule that was removed are something.
    assert found(replace(NO_JOBS, waiting=1))["schedules"][0] is Level.FAIL


def test_schedules_that_nobody_serves_fail() -> None:
    level, text = found(replace(WELL, slots=0, workers=0, oldest_due_s=1e6))["schedules"]
    assert level is Level.FAIL
    assert "no worker that serves has job slots" in text
    assert "celery -A feedq worker -Q jobs" in text


def test_ticks_that_nobody_fires_fail() -> None:
    assert "ticks" not in found(replace(WELL, overdue_s=OVERDUE_S))
    level, text = found(replace(WELL, overdue_s=OVERDUE_S + 60))["ticks"]
    assert level is Level.FAIL
    assert "a tick fell due 90s ago and has not been fired" in text


def test_schedules_paused_by_failures_are_named() -> None:
    state = replace(WELL, tripped=tuple(f"s{n}" for n in range(7)))
    level, text = found(state)["paused"]
    assert level is Level.WARN
    assert "7 schedules paused by failures: s0, s1, s2, s3, s4 and 2 more" in text
    assert described_schedules(replace(WELL, tripped=("a",))) == "12: 10 active, 2 paused (1 by failures)"


@pytest.mark.parametrize(
    ("running", "said"),
    [
        (8, "all 8 job slots are taken -> start another worker"),
        (3, "while 5 job slots are free -> a limit, "),
    ],
)
def test_runs_that_wait_long_are_a_warning_that_says_why(running: int, said: str) -> None:
    assert "runs" not in found(replace(WELL, oldest_due_s=WAITING_S))
    level, text = found(replace(WELL, oldest_due_s=WAITING_S + 30, running=running))["runs"]
    assert level is Level.WARN
    assert "4 runs due and not started, the oldest for 90s" in text
    assert said in text


# -- what workers know -------------------------------------------------------------------------------


def task(name: str = "acme.mail", *, able: int = 2, is_known: bool = True, **changes: Any) -> ScheduledTask:
    plain = ScheduledTask(name, "acme/mail", 3, {}, workers=2, able=able, is_known=is_known)
    return replace(plain, **changes)


def judged(*tasks: ScheduledTask) -> list[tuple[Level, str]]:
    return [(check.level, check.detail) for check in check_tasks(tasks)]


@pytest.mark.parametrize(
    ("tasks", "level", "said"),
    [
        ([task(), task("b")], Level.OK, "2 tasks of schedules, each known to a worker"),
        ([task(), task("b", able=1)], Level.OK, "each known to a worker, 1 of them on some workers only"),
        (
            [task(able=0, is_known=False), task("b")],
            Level.FAIL,
            "schedule acme/mail (and 2 others): no worker knows task acme.mail: its runs wait until one does",
        ),
        (
            [task(able=0, selector={"gpu": "yes"}, schedules=1)],
            Level.FAIL,
            "schedule acme/mail: no worker that knows task acme.mail has the labels gpu=yes: its runs wait",
        ),
        ([task(workers=0, able=0, is_known=False)], Level.NOT_CHECKED, "no worker runs jobs"),
    ],
)
def test_tasks_are_judged_by_what_workers_know(tasks: list[ScheduledTask], level: Level, said: str) -> None:
    ((found, detail),) = judged(*tasks)
    assert (found, said in detail) == (level, True)


def test_without_schedules_there_are_no_tasks_to_check() -> None:
    assert judged() == []


def test_of_many_tasks_the_first_are_named() -> None:
    found = judged(*(task(f"t{n}", able=0, is_known=False) for n in range(8)))
    assert len(found) == 6
    assert found[-1] == (Level.WARN, "and 3 more tasks")


# -- the commands ------------------------------------------------------------------------------------


@pytest.fixture
def command() -> Command:
    return Command()


def test_status_shows_schedules_and_runs(command: Command) -> None:
    command.worker("one")
    assert "schedules" not in command.ok("status")
    assert command.json("status")["jobs"]["active"] == 0
    command.job_state = replace(WELL, tripped=("acme/x",))
    out = command.ok("status")
    assert "schedules  12: 10 active, 2 paused (1 by failures)" in out
    assert "runs       3 running, 5 waiting, the oldest due for 12s" in out
    assert "job slots  8 on 2 workers" in out
    assert "warn: paused: 1 schedule paused by failures: acme/x" in out
    document = command.json("status")
    jobs = document["jobs"]
    assert (jobs["active"], jobs["paused"], jobs["tripped"]) == (10, 2, ["acme/x"])
    assert jobs["oldest_due_s"] == 12.0
    assert "paused" in {warning["name"] for warning in document["warnings"]}


def test_top_has_them_on_its_line(command: Command) -> None:
    assert "runs:" not in command.ok("top", "--count", "1")
    command.job_state = WELL
    line = command.ok("top", "--count", "1")
    assert line.rstrip().endswith("runs: 3 running, 5 waiting, the oldest due for 12s")
    document = msgspec.json.decode(command.ok("top", "--count", "1", "--json"))
    jobs = document["fleet"]["jobs"]
    assert (jobs["running"], jobs["waiting"], jobs["slots"]) == (3, 5, 8)


def scheduled(command: Command, name: str) -> ScheduleView:
    """A schedule that fires in an hour, and has not run yet."""
    now = command.clock.now()
    at = now + timedelta(hours=1)
    schedule = Schedule(1, schedule_spec(name), ScheduleState.ACTIVE, None, None, 1, at, at, 0, now, now)
    return ScheduleView(schedule, None, 0, 0)
