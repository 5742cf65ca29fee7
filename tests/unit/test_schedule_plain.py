"""The JSON form of schedules: nothing is lost, defaults are left out, and wrong shapes are named."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.schedule.model import (
    Beat,
    CatchUp,
    Cron,
    Every,
    Job,
    Once,
    Overlap,
    ResumePolicy,
    Retries,
    ScheduleSpec,
    Semantics,
)
from feedq.core.schedule.plain import (
    from_plain,
    job_from_plain,
    job_to_plain,
    policy_from_plain,
    policy_to_plain,
    timing_from_plain,
    timing_to_plain,
    to_plain,
)
from feedq.errors import InvalidInput

numbers = st.floats(0, 1e9, allow_nan=False)
offsets = st.integers(-12, 14).map(lambda hours: timezone(timedelta(hours=hours)))
moments = st.builds(
    lambda us, zone: datetime(2026, 1, 1, tzinfo=UTC).astimezone(zone) + timedelta(microseconds=us),
    st.integers(-(10**15), 10**15),
    offsets,
)
timings = st.one_of(
    st.builds(Cron, st.text(), st.text()),
    st.builds(Every, numbers, st.one_of(st.none(), moments)),
    st.builds(Once, moments),
    st.just(Beat()),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), numbers, st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)
jobs = st.builds(
    Job,
    st.text(),
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(st.text(), values, max_size=3),
    st.sampled_from(Semantics),
    st.one_of(st.none(), st.just(3600.0), numbers),
    st.builds(Retries, st.integers(0, 9), numbers, numbers, numbers),
    st.sampled_from(["default", "slow"]),
    st.integers(-100, 100),
)
specs = st.builds(
    ScheduleSpec,
    st.text(),
    timings,
    jobs,
    jitter_s=st.one_of(st.just(0.0), numbers),
    start_deadline_s=st.one_of(st.none(), numbers),
    overlap=st.sampled_from(Overlap),
    buffer_max=st.integers(1, 200),
    catch_up=st.sampled_from(CatchUp),
    catch_up_window_s=numbers,
    catch_up_max=st.integers(1, 200),
    misfire_after_s=numbers,
    resume=st.sampled_from(ResumePolicy),
    pause_on_failure=st.one_of(st.none(), st.integers(1, 9)),
    paused=st.booleans(),
)
BARE = ScheduleSpec("report", Every(30.0), Job("shop.report"))


@given(specs)
def test_nothing_is_lost_on_the_way_through_json(spec: ScheduleSpec) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(spec)))) == spec


@given(specs)
def test_the_parts_are_the_same_alone(spec: ScheduleSpec) -> None:
    plain = to_plain(spec)
    assert plain["timing"] == timing_to_plain(spec.timing)
    assert plain["job"] == job_to_plain(spec.job)
    assert plain["policy"] == policy_to_plain(spec)
    assert timing_from_plain(plain["timing"]) == spec.timing
    assert job_from_plain(plain["job"]) == spec.job
    assert replace(BARE, **policy_from_plain(plain["policy"])) == replace(
        spec, name=BARE.name, timing=BARE.timing, job=BARE.job
    )


def test_what_is_as_by_default_is_left_out() -> None:
    assert to_plain(BARE) == {
        "name": "report",
        "timing": {"every_s": 30.0},
        "job": {"task": "shop.report"},
        "policy": {},
    }
    retried = replace(BARE, job=Job("shop.report", retries=Retries(limit=2)), overlap=Overlap.ALLOW_ALL)
    assert to_plain(retried)["job"] == {"task": "shop.report", "retries": {"limit": 2}}
    assert to_plain(retried)["policy"] == {"overlap": "allow_all"}


def test_every_option_of_the_model_has_a_plain_form() -> None:
    policy = {field.name for field in fields(ScheduleSpec)} - {"name", "timing", "job"}
    for name in policy:
        assert policy_from_plain({name: policy_value(name)}).keys() == {name}
    job = {field.name for field in fields(Job)} - {"task"}
    for name in job:
        job_from_plain({"task": "t", name: job_value(name)})
    for name in (field.name for field in fields(Retries)):
        assert getattr(job_from_plain({"task": "t", "retries": {name: 7}}).retries, name) == 7


def policy_value(name: str) -> Any:
    return {} if name == "exclude" else getattr(BARE, name)


def job_value(name: str) -> Any:
    return {} if name == "retries" else getattr(BARE.job, name)


@pytest.mark.parametrize(
    ("timing", "plain"),
    [
        (
            Cron("0 2 * * *", "Europe/Berlin"),
            {"cron": "0 2 * * *", "zone": "Europe/Berlin"},
        ),
        (Every(30.0), {"every_s": 30.0}),
        (Once(datetime(2026, 11, 22, 10, tzinfo=UTC)), {"at": "2026-11-22T10:00:00Z"}),
        (Beat(), {"beat": True}),
        (
            Cron(("@daily", "0 8 * * MON")),
            {"cron": ["@daily", "0 8 * * MON"], "zone": "UTC"},
        ),
        (
            Once((datetime(2026, 11, 22, 10, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))),
            {"at": ["2026-11-22T10:00:00Z", "2027-01-01T00:00:00Z"]},
        ),
    ],
)
def test_timings_are_told_apart_by_their_options(timing: Any, plain: dict[str, Any]) -> None:
    assert timing_to_plain(timing) == plain
    assert timing_from_plain(plain) == timing


def test_short_forms_are_read() -> None:
    assert timing_from_plain({"cron": ["@daily"]}) == Cron("@daily")
    assert timing_from_plain({"cron": "@daily"}) == Cron("@daily")
    berlin = timing_from_plain({"at": "2026-11-22T11:00:00+01:00"})
    assert berlin == Once(datetime(2026, 11, 22, 10, tzinfo=UTC))
    assert from_plain({"name": "a", "timing": {"every_s": 5}, "job": {"task": "t"}}).timing == Every(5.0)


def whole(**parts: Any) -> dict[str, Any]:
    return {"name": "report", "timing": {"every_s": 30}, "job": {"task": "t"}, "policy": {}} | parts


@pytest.mark.parametrize(
    ("plain", "complaint"),
    [
        ([], "schedule: must be a mapping"),
        ({"name": "report", "job": {"task": "t"}}, "timing: is missing"),
        (whole(name=5), "name: must be a string; quote it"),
        (whole(when="now"), "schedule: has no option 'when'; there are name, timing, job, policy"),
        (whole(timing="@daily"), "timing: must be a mapping"),
        (whole(timing={}), "timing: must have exactly one of cron, every_s and at"),
        (whole(timing={"cron": "@daily", "at": "x"}), "timing: must have exactly one"),
        (
            whole(timing={"every_s": 5, "zone": "UTC"}),
            "timing: has no option 'zone'; there are every_s, anchor",
        ),
        (whole(timing={"every_s": "5"}), "timing.every_s: must be a number"),
        (whole(timing={"every_s": True}), "timing.every_s: must be a number"),
        (whole(timing={"every_s": 10**400}), "timing.every_s: is no JSON: Integer exceeds 64-bit range"),
        (whole(timing={"cron": 5}), "timing.cron: must be a string"),
        (whole(timing={"cron": "@daily", "gap": "leap"}), "timing: has no option 'gap'"),
        (whole(timing={"at": "tomorrow"}), "timing.at: must be a time such as 2026-11-22T10:00:00Z"),
        (whole(timing={"at": "2026-11-22T10:00:00"}), "timing.at: must end with a Z or an offset"),
        (whole(timing={"beat": False}), "timing: must have exactly one of cron, every_s and at"),
        (whole(job={}), "job.task: is missing"),
        (whole(job={"task": "t", "name": "x"}), "job: has no option 'name'"),
        (whole(job={"task": "t", "args": "abc"}), "job.args: must be a list"),
        (whole(job={"task": "t", "kwargs": []}), "job.kwargs: must be a mapping"),
        (whole(job={"task": "t", "priority": 1.5}), "job.priority: must be a whole number"),
        (whole(job={"task": "t", "retries": 3}), "job.retries: must be a mapping"),
        (
            whole(job={"task": "t", "retries": {"max": 3}}),
            "job.retries: has no option 'max'; there are limit,",
        ),
        (whole(job={"task": "t", "semantics": ["x"]}), "job.semantics: must be one of at_most_once,"),
        (whole(policy={"overlap": "never"}), "policy.overlap: must be one of skip, buffer_one"),
        (whole(policy={"paused": "yes"}), "policy.paused: must be true or false"),
        (whole(policy={"jitter": 5}), "policy: has no option 'jitter'; there are jitter_s"),
        (whole(policy={5: 5}), "policy: has no option 5"),
    ],
)
def test_what_has_another_shape_is_refused_by_option(plain: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_plain(plain)
    assert str(refused.value).startswith(complaint)
