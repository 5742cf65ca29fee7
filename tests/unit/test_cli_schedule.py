"""`feedq schedule`: declaring, looking, pausing; and what each command refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from feedq.core.schedule.model import (
    Beat,
    CatchUp,
    Cron,
    Every,
    Exclusion,
    Job,
    Once,
    Overlap,
    Queue,
    ResumePolicy,
    Retries,
    RunState,
    ScheduleSpec,
    ScheduleState,
    Semantics,
)
from feedq.errors import Unavailable
from tests.unit.command import Command

POLL = ("schedule", "add", "acme/poll", "--task", "acme.jobs.poll")


@pytest.fixture
def command() -> Command:
    return Command()


@pytest.fixture
def poll(command: Command) -> Command:
    """With the schedule acme/poll, every 30 s."""
    command.ok(*POLL, "--every", "30s")
    return command


def spec(command: Command, name: str = "acme/poll") -> ScheduleSpec:
    return command.jobs.schedules.get(name).spec


# -- add ---------------------------------------------------------------------------------------------


def test_add_declares_a_schedule_from_options(command: Command) -> None:
    out = command.ok(
        *("schedule", "add", "acme/cleanup", "--task", "acme.jobs.cleanup", "--cron", "H 2 * * *"),
        *("--zone", "Europe/Berlin", "--args", '[1, "two"]'),
        *("--kwargs", '{"days": 7, "dry": false}', "--arg", "days=30", "--arg", "region=eu"),
        *("--semantics", "transactional", "--timeout", "1h30m", "--retries", "3", "--retry-first", "5s"),
        *("--retry-factor", "1.5", "--retry-max", "5m", "--queue", "reports", "--priority", "-5"),
        *("--require", "gpu=yes"),
        *("--jitter", "90", "--start-deadline", "10m", "--overlap", "buffer_all", "--buffer-max", "7"),
        *("--catch-up", "all", "--catch-up-window", "2d", "--catch-up-max", "9", "--misfire-after", "2m"),
        *("--resume", "catch_up", "--pause-on-failure", "4", "--paused"),
    )
    assert out == "acme/cleanup added\n"
    assert spec(command, "acme/cleanup") == ScheduleSpec(
        name="acme/cleanup",
        timing=Cron("H 2 * * *", "Europe/Berlin"),
        job=Job(
            task="acme.jobs.cleanup",
            args=(1, "two"),
            kwargs={"days": 30, "dry": False, "region": "eu"},
            semantics=Semantics.TRANSACTIONAL,
            timeout_s=5400.0,
            retries=Retries(3, 5.0, 1.5, 300.0),
            queue="reports",
            priority=-5,
            selector={"gpu": "yes"},
        ),
        jitter_s=90.0,
        start_deadline_s=600.0,
        overlap=Overlap.BUFFER_ALL,
        buffer_max=7,
        catch_up=CatchUp.ALL,
        catch_up_window_s=172_800.0,
        catch_up_max=9,
        misfire_after_s=120.0,
        resume=ResumePolicy.CATCH_UP,
        pause_on_failure=4,
        paused=True,
    )


def test_add_needs_no_more_than_a_task_and_a_timing(command: Command) -> None:
    assert command.json(*POLL, "--every", "30s") == [{"name": "acme/poll", "result": "added"}]
    assert spec(command) == ScheduleSpec("acme/poll", Every(30.0), Job("acme.jobs.poll"))
    command.ok("schedule", "add", "b", "--task", "t", "--at", "2026-12-01T08:00", "--zone", "Europe/Berlin")
    assert spec(command, "b").timing == Once(datetime(2026, 12, 1, 7, tzinfo=UTC))


def test_options_may_be_repeated_and_bounds_are_edited_and_lifted(command: Command) -> None:
    command.ok(
        *(*POLL, "--cron", "0 8 * * *", "--cron", "30 17 * * FRI", "--zone", "Europe/Berlin"),
        *(
            "--start",
            "2026-12-01",
            "--end",
            "2027-12-01",
            "--exclude",
            "2026-12-25",
            "--exclude",
            "2026-12-31",
        ),
    )
    bounded = spec(command)
    assert bounded.timing == Cron(("0 8 * * *", "30 17 * * FRI"), "Europe/Berlin")
    assert bounded.start_at == datetime(2026, 11, 30, 23, tzinfo=UTC)
    assert bounded.exclude == Exclusion(("2026-12-25", "2026-12-31"), "Europe/Berlin")
    exported = command.ok("schedule", "export")
    assert "1 unchanged" in command.ok("apply", "-f", "-", "--prune", given=exported)
    command.ok("schedule", "edit", "acme/poll", "--every", "1h")
    assert spec(command).exclude == bounded.exclude
    command.ok("schedule", "edit", "acme/poll", "--start", "none", "--end", "none", "--exclude", "none")
    assert spec(command) == ScheduleSpec("acme/poll", Every(3600.0), Job("acme.jobs.poll"))
    command.ok("schedule", "edit", "acme/poll", "--at", "2026-12-01T08:00Z", "--at", "2027-12-01T08:00Z")
    assert spec(command).timing == Once(
        (datetime(2026, 12, 1, 8, tzinfo=UTC), datetime(2027, 12, 1, 8, tzinfo=UTC))
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--at", "2020-01-01T08:00Z"), "at (2020-01-01T08:00:00Z) is in the past"),
        (("--every", "1m", "--end", "2020-01-01"), "its end (2020-01-01T00:00:00Z) is in the past"),
        (
            ("--cron", "0 0 25 12 *", "--exclude", "2026-12-25", "--end", "2027-01-01"),
            "its start, its end and the days that it leaves out",
        ),
    ],
)
def test_a_schedule_that_never_fires_is_declared_with_a_warning(
    command: Command, arguments: tuple[str, ...], why: str
) -> None:
    result = command.run(*POLL, *arguments)
    assert (result.exit_code, result.stdout) == (0, "acme/poll added\n")
    assert f"Warning: schedule acme/poll: has no tick to come: {why}" in result.stderr
    exported = command.ok("schedule", "export")
    command.ok("schedule", "remove", "acme/poll", "--yes")
    assert why in command.run("apply", "-f", "-", "--dry-run", given=exported).stderr
    result = command.run("apply", "-f", "-", given=exported)
    assert why in result.stderr
    result = command.run("schedule", "edit", "acme/poll", "--timeout", "5m")
    assert why in result.stderr


@pytest.mark.parametrize(
    "option", ["--every", "--jitter", "--timeout", "--misfire-after", "--start-deadline"]
)
def test_a_negative_duration_is_refused_as_what_it_is(command: Command, option: str) -> None:
    error = command.refused(*POLL, "--every", "1m", option, "-5s")
    name = option.removeprefix("--").replace("-", "_")
    assert f"{name}: '-5s' is negative; a duration must be positive, such as 90s" in error


def test_how_much_history_is_kept_can_be_said_and_taken_back(poll: Command) -> None:
    poll.ok("schedule", "edit", "acme/poll", "--keep-runs", "1000", "--keep-days", "30")
    assert (spec(poll).keep_runs, spec(poll).keep_days) == (1_000, 30)
    poll.ok("schedule", "edit", "acme/poll", "--keep-days", "none")
    assert (spec(poll).keep_runs, spec(poll).keep_days) == (1_000, None)


def test_next_shows_an_expression_with_its_bounds(command: Command) -> None:
    timing = (
        "--cron",
        "0 8 * * *",
        "--cron",
        "@daily",
        "--exclude",
        "2026-12-25..2026-12-26",
        "--end",
        "2026-12-28",
    )
    found = command.json("schedule", "next", *timing, "--from", "2026-12-24", "--count", "3")
    ticks = [tick["local"][:16] for tick in found["ticks"]]
    assert ticks == ["2026-12-24T00:00", "2026-12-24T08:00", "2026-12-27T00:00"]
    assert found["when"] == "cron 0 8 * * *; @daily UTC"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "schedule 'acme/poll': one of cron, every and at: is missing"),
        (("--every", "1m", "--cron", "@daily"), "cron and every exclude each other"),
        (("--every", "soon"), "every: 'soon' is no duration; write it as 90s, 2m, 1m30s, 1h or 1d"),
        (("--every", "1m", "--timeout", "x", "--jitter", "y"), "timeout: 'x' is no duration"),
        (("--every", "1m", "--timeout", "x", "--jitter", "y"), "jitter: 'y' is no duration"),
        (("--cron", "61 * * * *"), "cron: the minute '61' is wrong: write 0 to 59"),
        (("--cron", "@daily", "--zone", "Mars"), "zone: 'Mars' is no time zone such as Europe/Berlin"),
        (("--at", "2026-03-29T02:30", "--zone", "Europe/Berlin"), "does not exist in Europe/Berlin"),
        (("--every", "1m", "--overlap", "never"), "Invalid value for '--overlap'"),
        (("--every", "1m", "--retries", "-1"), "retries.limit: "),
        (("--every", "1m", "--pause-on-failure", "few"), "pause_on_failure: must be a whole number"),
        (("--every", "1m", "--keep-runs", "0"), "keep.runs: must be a whole number from 1 to 100000"),
        (("--every", "1m", "--keep-days", "few"), "keep.days: must be a whole number"),
        (("--every", "1m", "--args", "{}"), "--args: must be a JSON list"),
        (("--every", "1m", "--args", "[NaN]"), "--args: is no valid JSON"),
        (("--every", "1m", "--kwargs", "[]"), "--kwargs: must be a JSON object"),
        (("--every", "1m", "--arg", "days"), "--arg 'days': write it as KEY=VALUE"),
    ],
)
def test_what_cannot_be_right_is_refused(command: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in command.refused(*POLL, *arguments)
    assert command.jobs.schedules.by_name == {}


def test_a_secret_is_refused_and_not_repeated(command: Command) -> None:
    for arguments in (("--arg", "password=hunter2"), ("--kwargs", '{"db": {"token": "hunter2"}}')):
        error = command.refused(*POLL, "--every", "1m", *arguments)
        assert "would be stored and shown" in error
        assert "hunter2" not in error
    command.ok(*POLL, "--every", "1m", "--arg", "password=${ACME_PASSWORD}")


def test_a_name_that_is_taken_is_a_conflict(poll: Command) -> None:
    error = poll.refused(*POLL, "--every", "30s", status=1)
    assert "schedule 'acme/poll' exists already; `feedq schedule edit` changes it" in error


# -- edit --------------------------------------------------------------------------------------------


def test_edit_changes_what_is_given_and_keeps_the_rest(command: Command) -> None:
    command.ok(
        *POLL, "--every", "30s", "--retries", "3", "--retry-first", "5s", "--kwargs", '{"a": 1, "b": 2}'
    )
    out = command.ok(
        "schedule", "edit", "acme/poll", "--retry-max", "1m", "--arg", "b=3", "--catch-up-window", "1h"
    )
    assert out.splitlines() == [
        '    catch_up.window: (unset) -> "1h"',
        "    kwargs.b: 2 -> 3",
        '    retries.max: (unset) -> "1m"',
        "acme/poll edited",
    ]
    edited = spec(command)
    assert edited.timing == Every(30.0)
    assert edited.job.retries == Retries(3, 5.0, 2.0, 60.0)
    assert edited.job.kwargs == {"a": 1, "b": 3}
    assert edited.catch_up_window_s == 3600.0


def test_another_kind_of_timing_takes_the_place_of_the_old_one(command: Command) -> None:
    command.ok(*POLL, "--cron", "@daily", "--zone", "Europe/Berlin")
    command.ok("schedule", "edit", "acme/poll", "--cron", "@hourly")
    assert spec(command).timing == Cron("@hourly", "Europe/Berlin")
    command.ok("schedule", "edit", "acme/poll", "--every", "1h")
    assert spec(command).timing == Every(3600.0)
    command.ok("schedule", "edit", "acme/poll", "--cron", "@daily", "--zone", "Europe/Berlin")
    command.ok("schedule", "edit", "acme/poll", "--at", "2026-12-01T08:00")
    assert spec(command).timing == Once(datetime(2026, 12, 1, 7, tzinfo=UTC))
    command.ok("schedule", "edit", "acme/poll", "--every", "1h", "--anchor", "2026-01-01T00:15")
    command.ok("schedule", "edit", "acme/poll", "--every", "2h")
    assert spec(command).timing == Every(7200.0, datetime(2026, 1, 1, 0, 15, tzinfo=UTC))
    command.ok("schedule", "edit", "acme/poll", "--cron", "@daily")
    assert spec(command).timing == Cron("@daily")


def test_an_edit_that_changes_nothing_is_told_so(poll: Command) -> None:
    poll.jobs.schedules.calls.clear()
    out = poll.ok("schedule", "edit", "acme/poll", "--every", "30", "--timeout", "1h")
    assert out == "acme/poll unchanged\n"
    assert poll.jobs.schedules.calls == []


def test_none_lifts_limits(poll: Command) -> None:
    poll.ok("schedule", "edit", "acme/poll", "--start-deadline", "5m", "--pause-on-failure", "3")
    poll.ok(
        *("schedule", "edit", "acme/poll", "--start-deadline", "none", "--pause-on-failure", "none"),
        *("--timeout", "none"),
    )
    edited = spec(poll)
    assert (edited.start_deadline_s, edited.pause_on_failure, edited.job.timeout_s) == (None, None, None)


def test_edit_refuses_what_it_cannot_do(poll: Command) -> None:
    assert "nothing to change" in poll.refused("schedule", "edit", "acme/poll")
    assert "no schedule named 'x'" in poll.refused("schedule", "edit", "x", "--every", "1m")
    assert "buffer_max: " in poll.refused("schedule", "edit", "acme/poll", "--buffer-max", "0")
    beat = ScheduleSpec("beat:report", Beat(), Job("t"))
    poll.jobs.schedules.add(beat)
    error = poll.refused("schedule", "edit", "beat:report", "--every", "1m")
    assert "is an entry of beat_schedule.py; edit it there" in error


# -- looking -----------------------------------------------------------------------------------------


def test_schedules_are_listed_with_their_last_run(poll: Command) -> None:
    poll.ok("schedule", "add", "acme/report", "--task", "t", "--cron", "@daily", "--paused")
    run = poll.jobs.schedules.make("acme/poll", "k")
    poll.jobs.schedules.start(run.id)
    poll.clock.advance(2)
    poll.jobs.schedules.end(run.id, RunState.FAILED, reason="ValueError: no")
    poll.jobs.schedules.make("acme/poll", "l")
    lines = poll.ok("schedule", "list").splitlines()
    assert lines[0].split() == [
        "NAME",
        "STATE",
        "WHEN",
        "TASK",
        "NEXT",
        "LAST",
        "RESULT",
        "WAIT",
        "RUN",
    ]
    assert lines[1].split() == [
        *("acme/poll", "active", "every", "30", "s", "acme.jobs.poll", "28s", "0.0s", "failed", "1", "0")
    ]
    assert lines[2].split()[:2] == ["acme/report", "paused"]
    (row,) = poll.json("schedule", "list", "--state", "active")
    assert (row["name"], row["waiting"], row["last"]["state"]) == ("acme/poll", 1, "failed")
    assert row["timing"] == {"every_s": 30.0}
    assert [r["name"] for r in poll.json("schedule", "list", "--prefix", "acme/r")] == ["acme/report"]


def test_no_schedules_says_what_to_do(command: Command) -> None:
    assert "`feedq schedule add`" in command.ok("schedule", "list")
    assert command.json("schedule", "list") == []


def test_a_long_list_is_read_in_pages(command: Command) -> None:
    for number in range(2_001):
        command.jobs.schedules.add(ScheduleSpec(f"s{number:04}", Every(60.0), Job("t")))
    assert len(command.json("schedule", "list", "--limit", "100000")) == 2_001
    assert command.jobs.schedules.calls.count("views") == 3


def test_a_long_list_says_that_it_was_cut(command: Command) -> None:
    for number in range(7):
        command.jobs.schedules.add(ScheduleSpec(f"s{number}", Every(60.0), Job("t"), paused=number % 2 == 1))
    first = command.run("schedule", "list", "--limit", "3", "--json")
    assert [row["name"] for row in json.loads(first.stdout)] == ["s0", "s1", "s2"]
    assert first.stderr == "these are the first 3; --limit shows more, --prefix others\n"
    assert command.run("schedule", "list", "--limit", "7").stderr == ""
    paused = command.json("schedule", "list", "--state", "paused", "--limit", "2")
    assert [row["name"] for row in paused] == ["s1", "s3"]


def test_one_schedule_is_shown_with_everything(poll: Command) -> None:
    poll.ok("schedule", "edit", "acme/poll", "--arg", "days=30", "--jitter", "5s")
    for number in range(12):
        run = poll.jobs.schedules.make("acme/poll", f"k{number}")
        poll.jobs.schedules.end(run.id, RunState.SUCCEEDED)
    out = poll.ok("schedule", "show", "acme/poll")
    assert "state       active" in out
    assert "fires " in out
    assert "runs        12 succeeded" in out
    shown = out.partition("declaration\n")[2].partition("\n\n")[0]
    declared = {"name": "acme/poll", "every": "30s", "task": "acme.jobs.poll", "kwargs": {"days": 30}}
    assert yaml.safe_load(shown) == declared | {"jitter": "5s"}
    assert " k11 " in out
    assert " k1 " not in out
    document = poll.json("schedule", "show", "acme/poll")
    assert document["counts"]["succeeded"] == 12
    assert (document["job"]["kwargs"], document["policy"]) == ({"days": 30}, {"jitter_s": 5.0})
    assert "no schedule named 'x'" in poll.refused("schedule", "show", "x")


def test_what_came_from_elsewhere_cannot_steer_the_terminal(poll: Command) -> None:
    run = poll.jobs.schedules.make("acme/poll", "k")
    poll.jobs.schedules.end(run.id, RunState.FAILED, reason="bad \x1b[2J https://me:hunter2@host/")
    for out in (poll.ok("schedule", "runs"), poll.ok("schedule", "show", "acme/poll")):
        assert "\x1b" not in out
        assert "hunter2" not in out


def test_schedules_are_exported_as_a_manifest_that_changes_nothing(poll: Command) -> None:
    poll.ok(
        "schedule", "add", "b", "--task", "t", "--cron", "0 2 * * *", "--zone", "Europe/Berlin", "--paused"
    )
    poll.jobs.schedules.add(ScheduleSpec("beat:report", Beat(), Job("t")))
    poll.jobs.queues.set(Queue("reports", 2.0, 1.0, 4))
    exported = poll.ok("schedule", "export")
    assert "beat:" not in exported
    again = poll.ok("apply", "-f", "-", "--prune", given=exported)
    assert again == "0 added, 0 changed, 0 removed, = 3 unchanged\n"
    assert yaml.safe_load(poll.ok("schedule", "export", "b")).keys() == {"schedules"}
    document = poll.json("schedule", "export", "--prefix", "acme/")
    assert [row["name"] for row in document["schedules"]] == ["acme/poll"]
    assert "no schedule named 'x'" in poll.refused("schedule", "export", "x")


# -- pause, resume, remove ---------------------------------------------------------------------------


def test_a_schedule_is_paused_and_resumed(poll: Command) -> None:
    assert poll.ok("schedule", "pause", "acme/poll", "--reason", "maintenance") == "acme/poll paused\n"
    paused = poll.jobs.schedules.get("acme/poll")
    assert (paused.state, paused.pause_reason, paused.paused_until) == (
        ScheduleState.PAUSED,
        "maintenance",
        None,
    )
    assert "paused because  maintenance" in poll.ok("schedule", "show", "acme/poll")
    assert poll.json("schedule", "resume", "acme/poll") == [{"name": "acme/poll", "result": "resumed"}]
    assert poll.jobs.schedules.get("acme/poll").state is ScheduleState.ACTIVE


def test_a_pause_may_end_by_itself(command: Command) -> None:
    command.ok(*POLL, "--cron", "@daily", "--zone", "Europe/Berlin")
    command.ok("schedule", "pause", "acme/poll", "--for", "1h30m")
    until = command.jobs.schedules.get("acme/poll").paused_until
    assert until == command.clock.now() + timedelta(minutes=90)
    command.ok("schedule", "pause", "acme/poll", "--until", "2026-12-01T08:00")
    assert command.jobs.schedules.get("acme/poll").paused_until == datetime(2026, 12, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("acme/poll", "--for", "1h", "--until", "2026-12-01"), "--until and --for exclude each other"),
        (("acme/poll", "--for", "long"), "--for: 'long' is no duration"),
        (("acme/poll", "--for", "99999999d"), "is too long; leave it out to pause for good"),
        (("acme/poll", "--until", "soon"), "--until: 'soon' is no time"),
        (("acme/poll", "x"), "no schedule named 'x'"),
    ],
)
def test_a_wrong_pause_touches_nothing(poll: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in poll.refused("schedule", "pause", *arguments)
    assert poll.jobs.schedules.get("acme/poll").state is ScheduleState.ACTIVE


def test_removing_asks_first_and_is_all_or_nothing(poll: Command) -> None:
    assert "Remove acme/poll?" in poll.refused("schedule", "remove", "acme/poll")
    # Nobody is asked about what does not exist.
    assert "no schedule named 'x'" in poll.refused("schedule", "remove", "x")
    assert "no schedule named 'x'" in poll.refused("schedule", "remove", "acme/poll", "x", "--yes")
    assert list(poll.jobs.schedules.by_name) == ["acme/poll"]
    assert poll.ok("schedule", "remove", "acme/poll", "--yes") == "acme/poll removed\n"
    assert poll.jobs.schedules.by_name == {}


def test_a_database_that_is_away_is_one_line(poll: Command) -> None:
    def away(_: str) -> None:
        raise Unavailable("control database is away")

    poll.jobs.schedules.before_change = away
    error = poll.refused("schedule", "pause", "acme/poll", status=1)
    assert error == "Error: control database is away\n"


# -- queues ------------------------------------------------------------------------------------------


def test_limits_of_queues_are_set_changed_and_lifted(command: Command) -> None:
    queue = ("schedule", "queue")
    assert command.ok(*queue, "set", "reports", "--rate", "2", "--concurrency", "4") == "reports set\n"
    command.ok(*queue, "set", "reports", "--rate", "none", "--burst", "3")
    assert command.jobs.queues.all() == [Queue("reports", None, 3.0, 4)]
    command.jobs.queues.busy = {"default": (5, 1)}
    lines = command.ok(*queue, "list").splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["default", "-", "-", "-", "5", "1"],
        ["reports", "-", "-", "4", "0", "0"],
    ]
    assert command.json(*queue, "list")[1] == {
        "name": "reports",
        "rate_per_s": None,
        "burst": 3.0,
        "concurrency": 4,
        "waiting": 0,
        "running": 0,
    }
    assert command.ok(*queue, "remove", "reports") == "reports removed\n"
    assert "has no limits" in command.refused(*queue, "remove", "reports")


def test_no_queues_says_what_to_do(command: Command) -> None:
    assert "`feedq schedule queue set`" in command.ok("schedule", "queue", "list")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no limit; give --rate, --burst or --concurrency"),
        (("--rate", "fast"), "--rate: 'fast' must be a number, or none"),
        (("--rate", "0"), "queue 'q': rate_per_s: must be a number greater than 0"),
        (("--rate", "nan"), "rate_per_s: must be a number greater than 0"),
        (("--concurrency", "1.5"), "--concurrency: '1.5' must be a number, or none"),
        (("--concurrency", "none"), "has neither rate_per_s nor concurrency"),
    ],
)
def test_wrong_limits_are_refused(command: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in command.refused("schedule", "queue", "set", "q", *arguments)
    assert command.jobs.queues.all() == []
