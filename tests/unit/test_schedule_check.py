"""Declarations of schedules: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from feedq.errors import InvalidInput
from feedq.schedule.arguments import DEPTH_MAX, SIZE_MAX, names_secret
from feedq.schedule.check import DURATION_MAX_S, NAME_MAX, problems, validate
from feedq.schedule.model import Beat, Cron, Every, Job, Once, Overlap, Retries, ScheduleSpec, Timing

BARE = ScheduleSpec("report", Every(30.0), Job("shop.report"))
SECRET = "hunter2"


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
        replace(BARE, name="beat:nightly", timing=Beat()),
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
    validate(spec)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (replace(BARE, name=""), "name: must not be empty"),
        (replace(BARE, name="a b"), "name: must be printable, without spaces, and must not begin with '-'"),
        (replace(BARE, name="-a"), "name: must be printable"),
        (replace(BARE, name="a\x07"), "name: must be printable"),
        (replace(BARE, name="x" * 201), "name: has 201 characters; at most 200 are allowed"),
        (replace(BARE, name="beat:nightly"), "name: beat:… is for entries of beat_schedule.py"),
        (timed(Beat()), "name: beat:… is for entries of beat_schedule.py"),
        (timed(Cron("0 25 * * *")), "timing.cron: the hour '25' is wrong; allowed are 0 to 23"),
        (timed(Cron("0 0 30 2 *")), "timing.cron: never fires"),
        (timed(Cron("@daily", "Europe/Berln")), "timing.zone: 'Europe/Berln' is no time zone such as"),
        (timed(Cron("@daily", "europe/berlin")), "did you mean Europe/Berlin"),
        (timed(Cron("@daily", "Berlin")), "Europe/Berlin"),
        (timed(Cron("@daily", "")), "timing.zone: ''"),
        (timed(Cron("@daily", "America")), "timing.zone: 'America' is no time zone"),
        (timed(Cron("@daily", "../etc/passwd")), "timing.zone: '../etc/passwd' is no time zone"),
        (timed(Cron("@daily", "/etc/localtime")), "timing.zone: '/etc/localtime' is no time zone"),
        (timed(Cron("@daily", "localtime")), "timing.zone: 'localtime' is no time zone"),
        (timed(Cron("@daily", "UTC\0")), "is no time zone"),
        (timed(Cron("@daily", "x" * 10_000)), "is no time zone"),
        (timed(Every(0.05)), "timing.every_s: must be a number from 0.1 to 316224000"),
        (timed(Every(0.0)), "timing.every_s: must be a number from 0.1"),
        (timed(Every(DURATION_MAX_S * 1.001)), "timing.every_s: must be a number from 0.1"),
        (timed(Every(float("nan"))), "timing.every_s: must be a number from 0.1"),
        (timed(Every(5, datetime(2026, 1, 1))), "timing.anchor: must end with a Z"),  # noqa: DTZ001  # on purpose
        (timed(Once(datetime(1969, 1, 1, tzinfo=UTC))), "timing.at: must lie in the years 1970 to 2999"),
        (timed(Once(datetime(3000, 1, 1, tzinfo=UTC))), "timing.at: must lie in the years 1970 to 2999"),
        (replace(BARE, jitter_s=-1), "jitter_s: must be a number from 0 to 316224000"),
        (replace(BARE, jitter_s=float("inf")), "jitter_s: must be a number from 0"),
        (
            replace(BARE, start_deadline_s=0),
            "start_deadline_s: must be a number from 0.001 to 316224000, or nothing",
        ),
        (replace(BARE, buffer_max=0), "buffer_max: must be a whole number from 1 to 10000"),
        (replace(BARE, buffer_max=True), "buffer_max: must be a whole number"),
        (replace(BARE, catch_up_max=10**500), "catch_up_max: must be a whole number from 1 to 10000"),
        (replace(BARE, catch_up_window_s=-0.1), "catch_up_window_s: must be a number from 0"),
        (replace(BARE, misfire_after_s=-5), "misfire_after_s: must be a number from 0"),
        (replace(BARE, pause_on_failure=0), "pause_on_failure: must be a whole number from 1"),
        (job(task=""), "job.task: must not be empty"),
        (job(task="shop report"), "job.task: must be printable, without spaces"),
        (job(queue=""), "job.queue: must not be empty"),
        (job(priority=101), "job.priority: must be a whole number from -100 to 100"),
        (job(timeout_s=0), "job.timeout_s: must be a number from 0.001"),
        (job(retries=Retries(limit=-1)), "job.retries.limit: must be a whole number from 0 to 1000"),
        (job(retries=Retries(first_s=-1)), "job.retries.first_s: must be a number from 0"),
        (job(retries=Retries(factor=0.5)), "job.retries.factor: must be a number from 1 to 100"),
        (job(retries=Retries(max_s=float("nan"))), "job.retries.max_s: must be a number from 0"),
        (job(args="abc"), "job.args: must be a list"),
        (job(kwargs=[]), "job.kwargs: must be a mapping"),
        (job(args=[float("nan")]), "job.args.0: must be a finite number"),
        (job(args=[2**70]), "job.args.0: is an integer beyond 64 bits"),
        (job(args=[datetime(2026, 1, 1, tzinfo=UTC)]), "job.args.0: datetime is not a JSON value"),
        (job(args=["a\0b"]), "'job.args.0': must not contain the NUL character"),
        (job(kwargs={"a\0": 1}), "must not contain the NUL character"),
        (job(kwargs={"a": "\ud800"}), "'job.kwargs.a': contains half of a surrogate pair"),
        (job(kwargs={"a": {5: 1}}), "job.kwargs.a: the key 5 must be a string"),
        (job(kwargs={"a": "x" * SIZE_MAX}), "job.kwargs: too large; at most 65536"),
        (job(kwargs={"x" * SIZE_MAX: 1}), "job.kwargs: too large"),
        (job(args=[0] * (SIZE_MAX + 1)), "job.args: too large"),
        (job(kwargs={"x" * 60_000: list(range(5_000)), "y": 2**70}), "job.kwargs.y: is an integer"),
        (job(args=[deep(DEPTH_MAX)]), "job.args: nested more than 32 deep"),
        (job(args=endless()), "job.args: nested more than 32 deep"),
        (
            job(kwargs={"password": SECRET}),
            "job.kwargs.password: would be stored and shown as it stands; write a",
        ),
        (job(kwargs={"db": {"apiKey": SECRET}}), "job.kwargs.db.apiKey: would be stored"),
        (job(args=[{"X-Auth-Token": SECRET}]), "job.args.0.X-Auth-Token: would be stored"),
        (
            job(kwargs={"credentials": {"user": "me", "word": [SECRET]}}),
            "job.kwargs.credentials.word.0: would be",
        ),
        (job(kwargs={"password": 4711}), "job.kwargs.password: would be stored"),
        (job(kwargs={"password": f"{SECRET}${{NAME}}"}), "job.kwargs.password: would be stored"),
        (
            job(kwargs={"url": f"https://reader:{SECRET}@example.org"}),
            "job.kwargs.url: holds a password in a URL",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_option(spec: ScheduleSpec, complaint: str) -> None:
    found = problems(spec)
    assert [problem for problem in found if complaint in problem], found
    assert all(SECRET not in problem for problem in found)
    with pytest.raises(InvalidInput, match="schedule ") as refused:
        validate(spec)
    assert all(problem in str(refused.value) for problem in found)


def test_everything_that_is_wrong_is_named_at_once() -> None:
    spec = ScheduleSpec("a b", Cron("0 25 * * *", "Nowhere"), Job("", priority=999), jitter_s=-1)
    options = [problem.partition(":")[0] for problem in problems(spec)]
    assert options == ["name", "timing.cron", "timing.zone", "jitter_s", "job.task", "job.priority"]


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
