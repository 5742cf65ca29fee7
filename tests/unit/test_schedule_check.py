"""Declarations of schedules: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from feedq.core.schedule.arguments import names_secret
from feedq.core.schedule.entries import ScheduleEntry, job_problems, plain_schedule
from feedq.core.schedule.model import Beat, Cron, Every, Job, Once, Overlap, Retries, ScheduleSpec, Timing
from feedq.core.values import DURATION_MAX_S, NAME_MAX, read
from feedq.core.values import JSON_DEPTH_MAX as DEPTH_MAX
from feedq.core.values import JSON_SIZE_MAX as SIZE_MAX
from feedq.errors import InvalidInput

BARE = ScheduleSpec("report", Every(30.0), Job("shop.report"))
SECRET = "hunter2"


def problems(spec: ScheduleSpec) -> list[str]:
    found = read(ScheduleEntry, plain_schedule(spec))
    return [what for _, what in found] if isinstance(found, list) else []


def timed(timing: Timing) -> ScheduleSpec:
    return replace(BARE, timing=timing)


def job(**options: Any) -> ScheduleSpec:
    return replace(BARE, job=Job(**({"task": "shop.report"} | options)))


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "spec",
    [
        BARE,
        replace(BARE, name="shop/report:täglich", jitter_s=DURATION_MAX_S, buffer_max=5),
        replace(BARE, name="x" * NAME_MAX, start_deadline_s=0.5, catch_up_window_s=0, misfire_after_s=0),
        replace(BARE, overlap=Overlap.BUFFER_ALL, buffer_max=10_000, catch_up_max=10_000, pause_on_failure=1),
        timed(Cron("H 2 * * MON-FRI", "Europe/Berlin")),
        timed(Cron("@daily", "America/Argentina/Buenos_Aires")),
        timed(Cron("@daily", "Etc/GMT+5")),
        timed(Every(0.1)),
        timed(Every(DURATION_MAX_S, datetime(2026, 1, 1, tzinfo=UTC))),
        timed(Once(datetime(2026, 1, 1, tzinfo=UTC))),
        job(args=[1, 2.5, None, True, "text", [], {}], kwargs={"a": {"b": ["c"]}}),
        job(args=("x" * (SIZE_MAX - 2),), kwargs={"deep": deep(DEPTH_MAX - 1)}),
        job(kwargs={"password": "${DB_PASSWORD}", "token": None, "secret": "", "use_password": False}),
        job(kwargs={"url": "https://reader:${PASSWORD}@example.org/a", "monkey": 1, "max_tokens": 5}),
        job(kwargs={"text": "mail me@example.org at 10:30, see http://example.org:80/a@b"}),
        job(timeout_s=None, priority=-100, retries=Retries(1000, 0, 1, 0)),
    ],
)
def test_what_can_be_right_is_accepted(spec: ScheduleSpec) -> None:
    assert problems(spec) == []
    assert ScheduleEntry.valid(plain_schedule(spec)).spec == as_read(spec)
    assert job_problems(spec.job) == []


def as_read(spec: ScheduleSpec) -> ScheduleSpec:
    return replace(spec, job=replace(spec.job, args=tuple(spec.job.args)))


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (replace(BARE, name=""), "name: must not be empty"),
        (replace(BARE, name="a b"), "name: must be printable, without spaces, and must not begin with '-'"),
        (replace(BARE, name="a\x07"), "name: must be printable"),
        (replace(BARE, name="x" * 201), "name: has 201 characters; at most 200 are allowed"),
        (replace(BARE, name="beat:nightly"), "name: beat:… is for entries of beat_schedule.py"),
        (timed(Beat()), "one of cron, every and at: is missing"),
        (timed(Cron("0 25 * * *")), "cron: the hour '25' is wrong: write 0 to 23"),
        (timed(Cron("0 0 30 2 *")), "cron: never fires"),
        (timed(Cron("@daily", "Europe/Berln")), "zone: 'Europe/Berln' is no time zone such as"),
        (timed(Cron("@daily", "europe/berlin")), "did you mean Europe/Berlin"),
        (timed(Cron("@daily", "Berlin")), "Europe/Berlin"),
        (timed(Cron("@daily", "../etc/passwd")), "zone: '../etc/passwd' is no time zone"),
        (timed(Cron("@daily", "/etc/localtime")), "zone: '/etc/localtime' is no time zone"),
        (timed(Cron("@daily", "UTC\0")), "is no time zone"),
        (timed(Cron("@daily", "x" * 10_000)), "is no time zone"),
        (timed(Every(0.05)), "every: must be a number of seconds from 0.1 to 316224000"),
        (timed(Every(DURATION_MAX_S * 1.001)), "every: must be a number of seconds from 0.1"),
        (timed(Every(float("nan"))), "every: must be a number of seconds from 0.1"),
        (timed(Once(datetime(3000, 1, 1, tzinfo=UTC))), "at: must lie in the years 1970 to 2999"),
        (replace(BARE, jitter_s=-1), "jitter: -1 is negative; a duration must be positive"),
        (replace(BARE, jitter_s=float("inf")), "jitter: must be a number of seconds from 0"),
        (
            replace(BARE, start_deadline_s=0),
            "start_deadline: must be a number of seconds from 0.001 to 316224000, or none",
        ),
        (replace(BARE, buffer_max=0), "buffer_max: must be a whole number from 1 to 10000"),
        (replace(BARE, buffer_max=True), "buffer_max: must be a whole number"),
        (replace(BARE, catch_up_max=10**500), "catch_up.max: must be a whole number from 1 to 10000"),
        (replace(BARE, catch_up_window_s=-0.1), "catch_up.window: -0.1 is negative; a duration must"),
        (replace(BARE, pause_on_failure=0), "pause_on_failure: must be a whole number from 1"),
        (job(task=""), "task: must not be empty"),
        (job(priority=101), "priority: must be a whole number from -100 to 100"),
        (job(timeout_s=0), "timeout: must be a number of seconds from 0.001"),
        (job(retries=Retries(limit=-1)), "retries.limit: must be a whole number from 0 to 1000"),
        (job(retries=Retries(first_s=-1)), "retries.first: -1 is negative"),
        (job(retries=Retries(factor=0.5)), "retries.factor: must be a number from 1 to 100"),
        (job(retries=Retries(max_s=float("nan"))), "retries.max: must be a number of seconds from 0"),
        (job(kwargs=[]), "kwargs: must be a mapping"),
        (job(args=[float("nan")]), "args.0: must be a finite number"),
        (job(args=[2**70]), "args.0: is an integer beyond 64 bits"),
        (job(args=[datetime(2026, 1, 1, tzinfo=UTC)]), "args.0: datetime is not a JSON value"),
        (job(args=["a\0b"]), "args.0: must not contain the NUL character"),
        (job(kwargs={"a\0": 1}), "must not contain the NUL character"),
        (job(kwargs={"a": "\ud800"}), "kwargs.a: contains half of a surrogate pair"),
        (job(kwargs={"a": {5: 1}}), "kwargs.a: the key 5 must be a string"),
        (job(kwargs={"a": "x" * SIZE_MAX}), "kwargs: too large; at most 65536"),
        (job(kwargs={"x" * 60_000: list(range(5_000)), "y": 2**70}), "kwargs.y: is an integer"),
        (job(args=[deep(DEPTH_MAX)]), "args: nested more than 32 deep"),
        (job(args=endless()), "args: nested more than 32 deep"),
        (
            job(kwargs={"password": SECRET}),
            "kwargs.password: would be stored and shown as it stands; write a",
        ),
        (job(kwargs={"db": {"apiKey": SECRET}}), "kwargs.db.apiKey: would be stored"),
        (job(args=[{"X-Auth-Token": SECRET}]), "args.0.X-Auth-Token: would be stored"),
        (
            job(kwargs={"credentials": {"user": "me", "word": [SECRET]}}),
            "kwargs.credentials.word.0: would be",
        ),
        (job(kwargs={"password": f"{SECRET}${{NAME}}"}), "kwargs.password: would be stored"),
        (
            job(kwargs={"url": f"https://reader:{SECRET}@example.org"}),
            "kwargs.url: holds a password in a URL",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_option(spec: ScheduleSpec, complaint: str) -> None:
    found = problems(spec)
    assert [problem for problem in found if complaint in problem], found
    assert all(SECRET not in problem for problem in found)
    with pytest.raises(InvalidInput, match="schedule ") as refused:
        ScheduleEntry.valid(plain_schedule(spec))
    assert all(problem in str(refused.value) for problem in found)


@pytest.mark.timeout(
    10
)  # with each name looked through for each value it would take minutes; this is a moment
def test_long_names_over_many_values_cost_neither_time_nor_memory() -> None:
    found = problems(job(kwargs={"x" * 60_000: [2**70] * 5_000}))
    assert len(found) == 5_000
    assert sum(map(len, found)) < 2_000_000


def test_everything_that_is_wrong_is_named_at_once() -> None:
    spec = ScheduleSpec("a b", Cron("0 25 * * *", "Nowhere"), Job("", priority=999), jitter_s=-1)
    options = [problem.partition(":")[0] for problem in problems(spec)]
    assert options == ["name", "task", "zone", "cron", "priority", "jitter"]


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("password", True),
        ("PASSWORD", True),
        ("dbPassword", True),
        ("db-password", True),
        ("api_key", True),
        ("apikey", True),
        ("x-api-key", True),
        ("accessToken", True),
        ("client_secret", True),
        ("credentials", True),
        ("key", False),
        ("monkey", False),
        ("tokens", False),
        ("secretary", False),
        ("passwords_changed", False),
    ],
)
def test_secrets_are_known_by_their_names(name: str, is_secret: bool) -> None:
    assert names_secret(name) is is_secret
