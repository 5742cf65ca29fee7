"""Declarations of schedules: what is refused, and in which words."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import inf, nan
from typing import Any

import pytest

from feedq.core.schedule.spec import Queue, ScheduleSpec, checked_job, names_secret
from feedq.core.values import DURATION_MAX_S, NAME_MAX, read
from feedq.core.values import JSON_DEPTH_MAX as DEPTH_MAX
from feedq.core.values import JSON_SIZE_MAX as SIZE_MAX
from feedq.errors import InvalidInput
from tests.schedules import schedule_spec

SECRET = "hunter2"


def problems(spec: ScheduleSpec) -> list[str]:
    found = read(ScheduleSpec, spec.plain())
    return [what for _, what in found] if isinstance(found, list) else []


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "spec",
    [
        schedule_spec(name="shop/report:täglich", jitter=DURATION_MAX_S, buffer_max=5),
        schedule_spec(name="x" * NAME_MAX, start_deadline=0.5, misfire_after=0, catch_up={"window": 0}),
        schedule_spec(cron=("H 2 * * MON-FRI",), zone="Europe/Berlin"),
        schedule_spec(cron=("@daily",), zone="Etc/GMT+5"),
        schedule_spec(every=DURATION_MAX_S, anchor=datetime(2026, 1, 1, tzinfo=UTC)),
        schedule_spec(args=[1, 2.5, None, True, "text", [], {}], kwargs={"a": {"b": ["c"]}}),
        schedule_spec(args=["x" * (SIZE_MAX - 2)], kwargs={"deep": deep(DEPTH_MAX - 1)}),
        schedule_spec(
            kwargs={"password": "${DB_PASSWORD}", "token": None, "secret": "", "use_password": False}
        ),
        schedule_spec(
            kwargs={"url": "https://reader:${PASSWORD}@example.org/a", "monkey": 1, "max_tokens": 5}
        ),
        schedule_spec(kwargs={"text": "mail me@example.org at 10:30, see http://example.org:80/a@b"}),
        schedule_spec(
            timeout=None, priority=-100, retries={"limit": 1000, "first": 0, "factor": 1, "max": 0}
        ),
    ],
)
def test_what_can_be_right_is_accepted(spec: ScheduleSpec) -> None:
    assert problems(spec) == []
    assert ScheduleSpec.valid(spec.plain()) == spec
    assert ScheduleSpec.from_json(spec.to_json()) == spec
    assert checked_job(spec) == spec


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (schedule_spec(name=""), "name: must not be empty"),
        (schedule_spec(name="a b"), "name: must be printable, without spaces, and must not begin with '-'"),
        (schedule_spec(name="x" * 201), "name: has 201 characters; at most 200 are allowed"),
        (schedule_spec(name="beat:nightly"), "name: beat:… is reserved for entries of beat_schedule.py"),
        (schedule_spec(at=()), "one of cron, every and at: is missing"),
        (schedule_spec(cron=("0 25 * * *",)), "cron: the hour '25' is wrong: write 0 to 23"),
        (
            schedule_spec(cron=("@daily",), zone="Europe/Berln"),
            "zone: 'Europe/Berln' is not a time zone such as",
        ),
        (schedule_spec(cron=("@daily",), zone="Berlin"), "Europe/Berlin"),
        (schedule_spec(cron=("@daily",), zone="x" * 10_000), "is not a time zone"),
        (schedule_spec(every=0.05), "every: must be a number of seconds from 0.1 to 316224000"),
        (schedule_spec(jitter=-1), "jitter: -1 is negative; a duration must be positive"),
        (
            schedule_spec(start_deadline=0),
            "start_deadline: must be a number of seconds from 0.001 to 316224000, or none",
        ),
        (schedule_spec(catch_up={"window": -0.1}), "catch_up.window: -0.1 is negative; a duration must"),
        (schedule_spec(task=""), "task: must not be empty"),
        (schedule_spec(args=[2**70]), "args.0: is an integer beyond 64 bits"),
        (schedule_spec(args=["a\0b"]), "args.0: must not contain the NUL character"),
        (schedule_spec(kwargs={"a": "x" * SIZE_MAX}), "kwargs: too large; at most 65536"),
        (schedule_spec(kwargs={"x" * 60_000: list(range(5_000)), "y": 2**70}), "kwargs.y: is an integer"),
        (schedule_spec(args=[deep(DEPTH_MAX)]), "args: nested more than 32 deep"),
        (
            schedule_spec(kwargs={"password": SECRET}),
            "kwargs.password: would be stored and shown in plain text; write a",
        ),
        (schedule_spec(kwargs={"password": f"{SECRET}${{NAME}}"}), "kwargs.password: would be stored"),
        (
            schedule_spec(kwargs={"url": f"https://reader:{SECRET}@example.org"}),
            "kwargs.url: holds a password in a URL",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_option(spec: ScheduleSpec, complaint: str) -> None:
    found = problems(spec)
    assert [problem for problem in found if complaint in problem], found
    assert all(SECRET not in problem for problem in found)
    with pytest.raises(InvalidInput, match="schedule ") as refused:
        ScheduleSpec.valid(spec.plain())
    assert all(problem in str(refused.value) for problem in found)


@pytest.mark.timeout(
    10
)  # with each name looked through for each value it would take minutes; this is a moment
def test_long_names_over_many_values_cost_neither_time_nor_memory() -> None:
    found = problems(schedule_spec(kwargs={"x" * 60_000: [2**70] * 5_000}))
    assert len(found) == 5_000
    assert sum(map(len, found)) < 2_000_000


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("password", True),
        ("dbPassword", True),
        ("db-password", True),
        ("apikey", True),
        ("client_secret", True),
        ("key", False),
        ("monkey", False),
        ("secretary", False),
        ("passwords_changed", False),
    ],
)
def test_secrets_are_known_by_their_names(name: str, is_secret: bool) -> None:
    assert names_secret(name) is is_secret


@pytest.mark.parametrize(
    "keys",
    [
        *({"name": name} for name in ("", " mail", "a\nb")),
        *({"rate_per_s": rate} for rate in (0.0, -1.0, nan, inf)),
        *({"burst": burst} for burst in (0.5, nan)),
        *({"concurrency": most} for most in (0, 2**31)),
    ],
    ids=str,
)
def test_limits_of_a_queue_that_cannot_be_right_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(keys))):
        Queue.valid({"name": "mail", "concurrency": 1} | keys)


# -- as it is stored ---------------------------------------------------------------------------------


def test_what_is_as_by_default_is_not_stored() -> None:
    assert schedule_spec("a").to_json() == '{"name":"a","task":"tasks.report","every":60.0}'
    changed = schedule_spec("a", retries={"limit": 2}, timeout=90.0, selector={"required": {"gpu": "yes"}})
    assert json.loads(changed.to_json()) == {
        "name": "a",
        "task": "tasks.report",
        "every": 60.0,
        "timeout": 90.0,
        "retries": {"limit": 2},
        "selector": {"required": {"gpu": "yes"}},
    }


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"task": None}, "task: is missing"),
        ({"warp": 9}, "unknown key 'warp'; known are name, task, "),
        ({"every": "soon"}, "every: 'soon' is not a duration"),
        ({"args": "abc"}, "args: must be a list"),
        ({"overlap": "never"}, "overlap: must be one of skip, buffer_one"),
    ],
)
def test_what_another_release_has_stored_is_refused_by_key(keys: dict[str, Any], complaint: str) -> None:
    stored = {"name": "a", "task": "t", "every": 60.0} | keys
    with pytest.raises(InvalidInput) as refused:
        ScheduleSpec.from_json(json.dumps(stored))
    assert str(refused.value).startswith(complaint)


def test_a_rule_that_has_changed_since_does_not_hide_what_is_stored() -> None:
    """Nor is it worth the time when a page of schedules is read; firing says what is wrong with one."""
    keys = {"cron": "0 25 * * *", "exclude": "24.12.", "kwargs": {"password": SECRET}}
    stored = {"name": "a", "task": "t"} | keys
    assert ScheduleSpec.from_json(json.dumps(stored)).kwargs == {"password": SECRET}
