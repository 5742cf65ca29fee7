"""Schedules and runs in `feedq status`, `top` and `doctor`: what is said of them, and when it is a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click
import msgspec
import pytest

from feedq.cli.top import look, rendered
from feedq.control.store.fleet_state import JobState
from feedq.control.store.jobs.listing import ScheduledTask
from feedq.core.schedule.model import Run, RunKind, RunState, Schedule, ScheduleState, ScheduleView
from feedq.core.selection import Selection
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.schedule_checks import (
    OVERDUE_S,
    WAITING_S,
    check_tasks,
    described_runs,
    described_schedules,
    job_checks,
)
from feedq.verbs.schedules import schedule_row
from tests.schedules import job_spec, schedule_spec
from tests.unit.command import NO_JOBS, Command, FakeInvocation

JOB = job_spec()
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
        (3, "while 5 job slots are free -> a limit holds"),
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


def test_status_names_schedules_that_this_release_cannot_read(command: Command) -> None:
    command.job_state = WELL
    assert "declarations" not in command.ok("status")
    unreadable = replace(scheduled(command, "acme/b").schedule, unreadable="unknown key 'warp'")
    command.jobs.schedules.found = [scheduled(command, "acme/a"), ScheduleView(unreadable, None, 0, 0)]
    out = command.ok("status")
    assert "warn: declarations: 1 schedule that this release of feedq cannot read: acme/b\n" in out
    assert "-> upgrade feedq, or declare them anew with feedq apply" in out


def test_top_has_them_on_its_line(command: Command) -> None:
    assert "runs:" not in command.ok("top", "--count", "1")
    command.job_state = WELL
    line = command.ok("top", "--count", "1")
    assert line.rstrip().endswith("runs: 3 running, 5 waiting, the oldest due for 12s")
    document = msgspec.json.decode(command.ok("top", "--count", "1", "--json"))
    jobs = document["fleet"]["jobs"]
    assert (jobs["running"], jobs["waiting"], jobs["slots"]) == (3, 5, 8)


# -- the table of `feedq top` ------------------------------------------------------------------------


def drawn(
    command: Command, views: Sequence[ScheduleView], *, width: int = 120, height: int = 24
) -> list[str]:
    """The lines of the live view in a terminal of this size."""
    invocation = FakeInvocation(command.store, clock=command.clock, job_state=WELL)
    frame = replace(look(invocation, Selection()), schedules=list(map(schedule_row, views)))
    lines = rendered(frame, width=width, height=height, last="Ctrl-C leaves")
    return [click.unstyle(line).rstrip() for line in lines]


def scheduled(
    command: Command,
    name: str,
    *,
    next_s: float = 3_600.0,
    state: ScheduleState = ScheduleState.ACTIVE,
    last: RunState | None = None,
    ended_ago_s: float | None = None,
    waiting: int = 0,
) -> ScheduleView:
    """A schedule that fires in so long, and its last run."""
    now = command.clock.now()
    at = now + timedelta(seconds=next_s)
    schedule = Schedule(1, schedule_spec(name), state, None, None, 1, at, at, 0, now, now)
    ended_at = None if ended_ago_s is None else now - timedelta(seconds=ended_ago_s)
    times = (now, None, ended_at)
    run = (
        None
        if last is None
        else Run(*(1, 1, name, RunKind.TICK, "k", now, 1, now, last, None, 1, 1, None, "one"), *times, JOB)
    )
    return ScheduleView(schedule, run, waiting, int(last is RunState.RUNNING))


def test_top_shows_where_a_few_schedules_stand(command: Command) -> None:
    missed, running, paused = RunState.MISSED_DEADLINE, RunState.RUNNING, ScheduleState.PAUSED
    views = [
        scheduled(command, "acme/fails", next_s=3_480, last=missed, ended_ago_s=150),
        scheduled(command, "acme/late", next_s=-42, last=running, waiting=1),
        scheduled(command, "acme/paused", state=paused),
    ]
    lines = drawn(command, views)
    at = next(number for number, line in enumerate(lines) if "RESULT" in line)
    assert lines[at - 1] == ""
    assert [line.replace(" 1 min ", " 1min ").split() for line in lines[at : at + 4]] == [
        ["NAME", "STATE", "WHEN", "TASK", "NEXT", "LAST", "RESULT", "WAIT", "RUN"],
        ["acme/fails", "active", "every", "1min", "tasks.report", "58m", "2m", "missed_deadline", "0", "0"],
        ["acme/late", "active", "every", "1min", "tasks.report", "-42s", "0.0s", "running", "1", "1"],
        ["acme/paused", "paused", "every", "1min", "tasks.report", "-", "-", "-", "0", "0"],
    ]
    assert lines[at + 4] == "Ctrl-C leaves"


@pytest.mark.parametrize(("height", "shown"), [(10, 1), (24, 4), (60, 5)])
def test_schedules_take_their_lines_from_feeds(command: Command, height: int, shown: int) -> None:
    command.worker("one")
    for n in range(70):
        command.feed(f"f{n:02}")
    views = [scheduled(command, f"acme/s{n}") for n in range(5)]
    for width in (80, 120):
        lines = drawn(command, views, width=width, height=height)
        assert len([line for line in lines if line.startswith("acme/s")]) == shown
        assert all(len(line) <= width for line in lines)
        assert len(lines) == max(height, 11), "all of it, with one feed at least"
        assert lines[-1].endswith("more feeds; Ctrl-C leaves")


def test_top_asks_for_a_few_and_names_those_that_failures_have_paused(command: Command) -> None:
    command.job_state = replace(WELL, tripped=tuple(f"acme/s{n}" for n in range(9)))
    command.jobs.schedules.found = [scheduled(command, f"acme/s{n}") for n in range(9)]
    document = msgspec.json.decode(command.ok("top", "--count", "1", "--json"))
    assert [schedule["name"] for schedule in document["schedules"]] == [f"acme/s{n}" for n in range(5)]
    assert command.jobs.schedules.asked[-1] == "urgent"
