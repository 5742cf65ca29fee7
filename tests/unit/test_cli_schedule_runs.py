"""`feedq schedule next`, `runs`, `trigger`, `backfill`, `purge` and `cancel`: ticks to come, and runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from feedq.core.schedule.model import BACKFILL_MAX, Overlap, RunKind, RunState, ScheduleSpec
from tests.unit.command import Command

NAME = "acme/poll"


@pytest.fixture
def command() -> Command:
    found = Command()
    found.ok("schedule", "add", NAME, "--task", "acme.jobs.poll", "--every", "30s", "--arg", "days=30")
    return found


# -- next --------------------------------------------------------------------------------------------


def test_the_next_ticks_are_shown_in_utc_and_on_the_clock_of_the_zone(command: Command) -> None:
    command.ok("schedule", "add", "b", "--task", "t", "--cron", "0 2 * * *", "--zone", "Europe/Berlin")
    assert command.ok("schedule", "next", "b", "--count", "2").splitlines() == [
        "b: cron 0 2 * * * Europe/Berlin",
        "UTC                   EUROPE/BERLIN                   NOTE",
        "2026-01-01 01:00:00Z  Thu 2026-01-01 02:00:00 +01:00",
        "2026-01-02 01:00:00Z  Fri 2026-01-02 02:00:00 +01:00",
    ]
    assert len(command.ok("schedule", "next", "b").splitlines()) == 22


def test_where_clocks_are_changed_there_is_a_note(command: Command) -> None:
    expression = ("schedule", "next", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--count", "3")
    forward = command.json(*expression, "--from", "2026-03-28")["ticks"]
    assert [tick["tick_at"][:16] for tick in forward] == [
        "2026-03-28T01:30",
        "2026-03-29T01:00",
        "2026-03-30T00:30",
    ]
    assert [tick["note"] for tick in forward] == [None, "clocks forward 1:00, +01:00 to +02:00", None]
    assert forward[1]["local"] == "2026-03-29T03:00:00+02:00"
    assert forward[1]["weekday"] == "Sunday"
    back = command.json(*expression, "--from", "2026-10-25")["ticks"]
    assert [tick["local"][11:] for tick in back] == ["02:30:00+02:00", "02:30:00+01:00", "02:30:00+01:00"]
    assert [tick["note"] for tick in back] == [None, "clocks back 1:00, +02:00 to +01:00", None]


def test_a_tick_at_the_very_time_given_is_one_of_them(command: Command) -> None:
    found = command.json("schedule", "next", "--every", "1h", "--from", "2026-05-01T10:00Z", "--count", "1")
    assert found["ticks"][0]["tick_at"][:16] == "2026-05-01T10:00"


def test_jitter_is_shown_as_it_will_be(command: Command) -> None:
    command.ok("schedule", "edit", NAME, "--jitter", "10s")
    (tick,) = command.json("schedule", "next", NAME, "--count", "1")["ticks"]
    declared = command.jobs.schedules.get(NAME)
    assert datetime.fromisoformat(tick["fire_at"]) == declared.next_fire_at
    assert declared.next_fire_at is not None
    assert declared.next_fire_at != declared.next_tick_at
    first = command.ok("schedule", "next", NAME).splitlines()[2]
    assert (
        first.split()[-1]
        == f"{declared.next_fire_at:%H:%M:%S}.{declared.next_fire_at.microsecond // 1000:03}Z"
    )


def test_h_is_hashed_from_the_name_that_is_tried(command: Command) -> None:
    def minute(*name: str) -> str:
        found = command.json("schedule", "next", *name, "--cron", "H * * * *", "--count", "1")
        return str(found["ticks"][0]["tick_at"])

    assert minute("a") == minute("a") != minute("b")
    assert minute()


def test_what_has_no_tick_left_says_so(command: Command) -> None:
    command.ok("schedule", "add", "once", "--task", "t", "--at", "2020-01-01")
    assert "no tick is left" in command.ok("schedule", "next", "once")
    assert command.json("schedule", "next", "once")["ticks"] == []


def test_a_paused_schedule_says_so(command: Command) -> None:
    command.ok("schedule", "pause", NAME)
    assert "(paused: " in command.ok("schedule", "next", NAME)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say which: the NAME of a schedule, or --cron, --every or --at to try"),
        (("x",), "no schedule named 'x'"),
        (("--cron", "x"), "cron: has 1 fields and needs five"),
        ((NAME, "--zone", "Mars"), "--zone: 'Mars' is no time zone"),
        ((NAME, "--anchor", "2026-01-01"), "--anchor goes with --cron, --every or --at"),
        ((NAME, "--from", "soon"), "--from: 'soon' is no time"),
        ((NAME, "--count", "0"), "Invalid value for '--count'"),
    ],
)
def test_wrong_questions_are_refused(command: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in command.refused("schedule", "next", *arguments)


# -- runs --------------------------------------------------------------------------------------------


def test_runs_are_shown_with_worker_lag_and_reason(command: Command) -> None:
    schedules = command.jobs.schedules
    run = schedules.make(NAME, "2026-01-01T00:00:00Z", attempt=2)
    command.clock.advance(0.25)
    schedules.start(run.id)
    command.clock.advance(12)
    schedules.end(run.id, RunState.FAILED, reason="ValueError: no such table")
    schedules.make(NAME, "missed", state=RunState.MISSED_CATCHUP, ticks=1_234)
    lines = command.ok("schedule", "runs", NAME).splitlines()
    assert lines[0].split() == ["ID", "KEY", "STATE", "WORKER", "DUE", "LAG", "TOOK", "NOTE"]
    assert "missed_catchup x1,234" in lines[1]
    assert lines[2].split() == [
        *(str(run.id), "2026-01-01T00:00:00Z", "failed", "one", "12s", "250", "ms", "12s"),
        *("attempt", "2;", "ValueError:", "no", "such", "table"),
    ]
    assert f"{NAME}/2026-01-01T00:00:00Z" in command.ok("schedule", "runs")
    (row,) = command.json("schedule", "runs", "--state", "failed", "--state", "lost")
    assert (row["correlation_id"], row["worker"]) == (f"{NAME}/2026-01-01T00:00:00Z", "one")
    assert row["lag_s"] == pytest.approx(0.25)
    assert command.ok("schedule", "runs", "--state", "lost") == "no runs\n"
    assert len(command.json("schedule", "runs", "--limit", "1")) == 1


# -- trigger -----------------------------------------------------------------------------------------


def test_a_trigger_is_a_run_now(command: Command) -> None:
    out = command.ok("schedule", "trigger", NAME, "--key", "release-4")
    (run,) = command.jobs.schedules.history.values()
    assert out == f"run {run.id} ({NAME}/trigger:release-4) waiting\n"
    assert (run.kind, run.job.kwargs) == (RunKind.TRIGGER, {"days": 30})


def test_a_task_that_no_worker_knows_is_a_warning(command: Command) -> None:
    command.jobs.schedules.no_worker[NAME] = "no worker knows task x"
    ran = command.run("schedule", "trigger", NAME)
    assert ran.exit_code == 0
    assert ran.stderr == f"Warning: schedule {NAME}: no worker knows task x\n"


def test_a_trigger_repeated_with_its_key_is_the_run_of_then(command: Command) -> None:
    first = command.json("schedule", "trigger", NAME, "--key", "k")
    assert command.json("schedule", "trigger", NAME, "--key", "k")["id"] == first["id"]
    assert len(command.jobs.schedules.history) == 1


def test_arguments_of_a_trigger_stand_in_for_the_declared_ones(command: Command) -> None:
    command.ok("schedule", "trigger", NAME, "--args", "[1]", "--arg", "region=eu")
    (run,) = command.jobs.schedules.history.values()
    assert (run.job.args, run.job.kwargs) == ((1,), {"days": 30, "region": "eu"})
    error = command.refused("schedule", "trigger", NAME, "--arg", "token=hunter2")
    assert "kwargs.token: would be stored and shown" in error
    assert "hunter2" not in error


def test_a_trigger_that_is_skipped_is_a_failure_with_its_reason(command: Command) -> None:
    command.ok("schedule", "trigger", NAME)
    result = command.run("schedule", "trigger", NAME)
    assert result.exit_code == 1
    assert "skipped_overlap: an earlier run has not ended" in result.stdout
    assert "no schedule named 'x'" in command.refused("schedule", "trigger", "x")


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (RunState.SUCCEEDED, 0),
        (RunState.FAILED, 1),
        (RunState.TIMED_OUT, 1),
        (RunState.LOST, 1),
        (RunState.CANCELLED, 1),
    ],
)
def test_waiting_ends_with_the_run_and_the_exit_status_says_how(
    command: Command, state: RunState, status: int
) -> None:
    def work() -> None:
        for run in command.jobs.schedules.history.values():
            if not run.state.is_final:
                command.jobs.schedules.end(run.id, state, reason="as it went")

    command.during_waits(work)
    result = command.run("schedule", "trigger", NAME, "--wait", "--timeout", "1h")
    assert result.exit_code == status, result.output
    assert f"{state}: as it went" in result.stdout


def test_waiting_gives_up_and_says_where_the_run_is(command: Command) -> None:
    command.during_waits(lambda: None)
    result = command.run("schedule", "trigger", NAME, "--wait", "--timeout", "0")
    assert result.exit_code == 1
    assert "not within 0 s; it may still happen. It is waiting" in result.stderr


# -- backfill ----------------------------------------------------------------------------------------


def backfill(command: Command, begin: str, end: str, *more: str) -> tuple[str, ...]:
    return ("schedule", "backfill", NAME, "--from", begin, "--to", end, *more)


def test_a_backfill_makes_a_run_for_each_tick_from_one_time_to_before_another(command: Command) -> None:
    arguments = backfill(command, "2025-12-31T10:00", "2025-12-31T10:02", "--yes")
    assert command.ok(*arguments) == f"{NAME}: 4 made, 0 there already\n"
    ticks = [run.tick_at for run in command.jobs.schedules.history.values()]
    first = datetime(2025, 12, 31, 10, tzinfo=UTC)
    assert ticks == [first + timedelta(seconds=30 * n) for n in range(4)]
    assert command.json(*arguments) == {"name": NAME, "ticks": 4, "made": 0, "existing": 4}


def test_a_backfill_takes_times_in_the_zone_of_the_schedule(command: Command) -> None:
    command.ok("schedule", "edit", NAME, "--cron", "@daily", "--zone", "Europe/Berlin")
    command.ok(*backfill(command, "2025-10-25", "2025-10-28", "--yes"))
    keys = [run.key for run in command.jobs.schedules.history.values()]
    assert keys == ["2025-10-24T22:00:00Z", "2025-10-25T22:00:00Z", "2025-10-26T23:00:00Z"]


def test_a_backfill_asks_with_the_number_of_runs(command: Command) -> None:
    error = command.refused(*backfill(command, "2025-12-31T10:00", "2025-12-31T10:02"))
    assert f"Make 4 runs of {NAME}, for the ticks 2025-12-31T10:00:00Z to 2025-12-31T10:01:30Z?" in error
    assert command.jobs.schedules.history == {}


@pytest.mark.parametrize(
    ("begin", "end", "message"),
    [
        ("2025-12-31", "2025-12-31", "--to: must be later than --from"),
        ("2025-12-31", "2027-01-01", "--to: lies in the future"),
        ("2025-12-31T10:00:01", "2025-12-31T10:00:02", "has no ticks from 2025-12-31T10:00:01Z"),
        ("2020-01-01", "2025-01-01", f"has more than {BACKFILL_MAX} ticks in between"),
        ("soon", "2025-01-01", "--from: 'soon' is no time"),
    ],
)
def test_a_backfill_that_cannot_be_meant_is_refused(
    command: Command, begin: str, end: str, message: str
) -> None:
    assert message in command.refused(*backfill(command, begin, end, "--yes"))
    assert command.jobs.schedules.history == {}


# -- purge and cancel --------------------------------------------------------------------------------


def test_purging_cancels_what_waits(command: Command) -> None:
    declared: ScheduleSpec = command.jobs.schedules.get(NAME).spec
    assert declared.overlap is Overlap.SKIP
    running = command.jobs.schedules.make(NAME, "a")
    command.jobs.schedules.start(running.id)
    command.jobs.schedules.make(NAME, "b")
    assert command.ok("schedule", "purge", NAME) == f"{NAME}: 1 waiting run cancelled\n"
    assert command.jobs.schedules.run(running.id).state is RunState.RUNNING
    assert command.json("schedule", "purge", NAME) == {"name": NAME, "cancelled": 0}
    assert "no schedule named 'x'" in command.refused("schedule", "purge", "x")


def test_one_run_is_cancelled_by_its_id(command: Command) -> None:
    run = command.jobs.schedules.make(NAME, "a")
    assert command.ok("schedule", "cancel", str(run.id)) == f"run {run.id} ({NAME}/a) cancelled\n"
    error = command.refused("schedule", "cancel", str(run.id), status=1)
    assert "has ended (cancelled); there is nothing to cancel" in error
    assert "no run 99" in command.refused("schedule", "cancel", "99")
    assert "Invalid value for 'RUN_ID'" in command.refused("schedule", "cancel", "0")
