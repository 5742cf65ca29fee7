"""Schedules and runs in `feedq status`, `top` and `doctor`: what is said of them, and when it is a warning."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from feedq.diagnosis.checks import Level
from feedq.diagnosis.schedules import OVERDUE_S, WAITING_S, described_runs, described_schedules, job_checks
from feedq.diagnosis.tasks import check_tasks, judge_tasks
from feedq.schedule.model import Every, Job, ScheduleSpec
from feedq.store.insight import JobState, ScheduledTask
from tests.unit.command import Command

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
    nothing = replace(WELL, active=0, paused=0, running=0, waiting=0, due=0, oldest_due_s=None, slots=0)
    assert found(nothing) == {}
    # Runs of a schedule that was removed are something.
    assert found(replace(nothing, waiting=1))["schedules"][0] is Level.FAIL


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

CLEANUP, MAIL = ScheduledTask("acme.cleanup", "acme/cleanup", 1), ScheduledTask("acme.mail", "acme/mail", 3)
NOWHERE = "redis://127.0.0.1:1/0"


def judged(known: dict[str, set[str]], *, workers: int = 2) -> list[tuple[Level, str]]:
    return [(c.level, c.detail) for c in judge_tasks([CLEANUP, MAIL], known, workers=workers)]


def test_tasks_that_every_worker_knows_are_well() -> None:
    both = {"acme.cleanup", "acme.mail", "acme.other"}
    ((level, said),) = judged({"w1": both, "w2": both})
    assert (level, said) == (Level.OK, "2 tasks of schedules, known to all; 2 of 2 workers answered")


def test_a_task_that_no_worker_knows_is_named_with_its_schedule() -> None:
    ((level, said),) = judged({"w1": {"acme.cleanup"}, "w2": {"acme.cleanup"}})
    assert level is Level.FAIL
    assert said == (
        "schedule acme/mail (and 2 others) names task acme.mail, which no running worker has registered"
    )


def test_a_worker_that_lacks_what_others_know_is_named() -> None:
    ((level, said),) = judged({"w1": {"acme.cleanup", "acme.mail"}, "w2": {"acme.mail"}})
    assert level is Level.WARN
    assert said.endswith("names task acme.cleanup, which 1 of 2 workers have not registered: w2")


def test_a_worker_that_is_silent_may_know_what_the_others_do_not() -> None:
    ((level, said),) = judged({"w1": {"acme.mail"}})
    assert level is Level.WARN
    assert said.endswith("which none of the 1 workers has that answered, of 2")


def test_of_silent_workers_nothing_is_known() -> None:
    assert judged({}) == [(Level.OK, "not checked: none of 2 workers answered within 2 s")]


def test_many_unknown_tasks_do_not_fill_the_screen() -> None:
    tasks = [ScheduledTask(f"acme.t{n}", f"acme/s{n}", 1) for n in range(7)]
    found = list(judge_tasks(tasks, {"w1": set()}, workers=1))
    assert [check.level for check in found] == [Level.FAIL] * 5 + [Level.WARN]
    assert found[-1].detail == "and 2 more tasks"


def test_nobody_is_asked_for_nothing() -> None:
    built_in = ScheduledTask("celery.backend_cleanup", "acme/x", 1)
    assert list(check_tasks(NOWHERE, [built_in], ["w1"])) == []
    assert list(check_tasks(NOWHERE, [CLEANUP], [])) == []


def test_without_a_broker_tasks_are_not_checked() -> None:
    (check,) = check_tasks(NOWHERE, [CLEANUP], ["w1"])
    assert check.level is Level.OK
    assert check.detail.startswith("not checked: ")


# -- the commands ------------------------------------------------------------------------------------


@pytest.fixture
def command() -> Command:
    return Command()


def test_status_shows_schedules_and_runs(command: Command) -> None:
    command.worker("one")
    assert "schedules" not in command.ok("status")
    assert command.json("status")["schedules"] is None
    command.job_state = replace(WELL, tripped=("acme/x",))
    out = command.ok("status")
    assert "schedules  12: 10 active, 2 paused (1 by failures)" in out
    assert "runs       3 running, 5 waiting, the oldest due for 12s" in out
    assert "job slots  8 on 2 workers" in out
    assert "warn: paused: 1 schedule paused by failures: acme/x" in out
    document = command.json("status")
    assert document["schedules"] == {
        "total": 12,
        "active": 10,
        "paused": 2,
        "paused_by_failures": ["acme/x"],
        "overdue_s": None,
    }
    assert document["runs"]["oldest_due_s"] == 12.0
    assert "paused" in {warning["name"] for warning in document["warnings"]}


def test_status_names_schedules_that_this_release_cannot_read(command: Command) -> None:
    command.job_state = WELL
    assert "declarations" not in command.ok("status")
    for name in ("acme/a", "acme/b"):
        added = command.jobs.schedules.add(ScheduleSpec(name, Every(60.0), Job("t")))
    command.jobs.schedules.by_name["acme/b"] = replace(added, unreadable="unknown key 'warp'")
    out = command.ok("status")
    assert "warn: declarations: 1 schedule that this release of feedq cannot read: acme/b\n" in out
    assert "-> upgrade feedq, or declare them anew: feedq apply" in out


def test_top_has_them_on_its_line(command: Command) -> None:
    assert "runs:" not in command.ok("top", "--count", "1")
    command.job_state = WELL
    line = command.ok("top", "--count", "1")
    assert line.rstrip().endswith("runs: 3 running, 5 waiting, the oldest due for 12s")
    document = orjson.loads(command.ok("top", "--count", "1", "--json"))
    assert document["runs"] == {"running": 3, "waiting": 5, "slots": 8}
