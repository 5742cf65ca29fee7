"""Schedules and queues in a manifest: what they may say, where they are wrong, and the way back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.differences import plan
from feedq.core.model import Version
from feedq.core.schedule.spec import (
    CatchUp,
    Overlap,
    Queue,
    ResumePolicy,
    ScheduleSpec,
    Semantics,
    names_secret,
)
from feedq.core.values import DURATION_MAX_S
from feedq.verbs import documents, manifests
from tests.schedules import Keys, schedule_spec

FULL = """
schedules:
  - name: acme/nightly-cleanup
    cron: "H 2 * * *"
    zone: Europe/Berlin
    task: acme.jobs.cleanup
    args: [1, two]
    kwargs: {days: 30}
    semantics: transactional
    timeout: 1h30m
    retries: {limit: 3, first: 10s, factor: 1.5, max: 5m}
    queue: reports
    priority: -5
    selector:
      required:
        gpu: 'yes'
    jitter: 90
    start_deadline: 10m
    overlap: buffer_all
    buffer_max: 7
    catch_up: {policy: all, window: 2d, max: 9}
    misfire_after: 2m
    resume: catch_up
    pause_on_failure: 4
    paused: true
queues:
  - name: reports
    rate_per_s: 2
    burst: 10
    concurrency: 4
"""
EVERY = "schedules:\n  - {name: a, task: t, every: 30s}\n"


def read(text: str) -> manifests.Manifest:
    return manifests.parse(text, origin="f.yaml")


def problems(text: str) -> list[str]:
    return [str(problem) for problem in read(text).problems]


def schedules(text: str) -> list[ScheduleSpec]:
    found = read(text)
    assert not found.problems
    return [declaration.spec for declaration in found.schedules]


def test_every_key_has_its_place() -> None:
    (spec,) = schedules(FULL)
    assert spec == schedule_spec(
        name="acme/nightly-cleanup",
        cron=("H 2 * * *",),
        zone="Europe/Berlin",
        task="acme.jobs.cleanup",
        args=[1, "two"],
        kwargs={"days": 30},
        semantics=Semantics.TRANSACTIONAL,
        timeout=5400.0,
        retries={"limit": 3, "first": 10.0, "factor": 1.5, "max": 300.0},
        queue="reports",
        priority=-5,
        selector={"required": {"gpu": "yes"}},
        jitter=90.0,
        start_deadline=600.0,
        overlap=Overlap.BUFFER_ALL,
        buffer_max=7,
        catch_up={"policy": CatchUp.ALL, "window": 172_800.0, "max": 9},
        misfire_after=120.0,
        resume=ResumePolicy.CATCH_UP,
        pause_on_failure=4,
        paused=True,
    )
    reports = Queue(name="reports", rate_per_s=2.0, burst=10.0, concurrency=4)
    assert [declaration.spec for declaration in read(FULL).queues] == [reports]


def test_a_declaration_knows_its_line_and_whether_it_says_paused() -> None:
    found = read(EVERY + "  - {name: b, task: t, every: 1m, paused: false}\n").schedules
    assert [(d.where, d.spec.paused) for d in found] == [("f.yaml:2", None), ("f.yaml:3", False)]


def test_none_lifts_a_limit() -> None:
    limits = "timeout: none, start_deadline: none, pause_on_failure: none"
    (spec,) = schedules(EVERY.replace("30s", f"30s, {limits}"))
    assert (spec.timeout, spec.start_deadline, spec.pause_on_failure) == (None, None, None)
    assert spec.plain()["timeout"] == "none"


QUARTER_PAST = datetime(2026, 1, 1, 0, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("every: 1d", {"every": 86_400.0}),
        (
            "every: 1h, anchor: 2026-01-01T01:15, zone: Europe/Berlin",
            {"every": 3600.0, "anchor": QUARTER_PAST},
        ),
        (
            "at: '2026-12-01T08:00:00-05:00', zone: Europe/Berlin",
            {"at": (datetime(2026, 12, 1, 13, tzinfo=UTC),)},
        ),
        (
            "cron: [0 8 * * *, 30 17 * * FRI], zone: Europe/Berlin",
            {"cron": ("0 8 * * *", "30 17 * * FRI"), "zone": "Europe/Berlin"},
        ),
        (
            "at: [2026-12-01T08:00, 2027-01-01], zone: Europe/Berlin",
            {"at": (datetime(2026, 12, 1, 7, tzinfo=UTC), datetime(2026, 12, 31, 23, tzinfo=UTC))},
        ),
    ],
)
def test_timings(options: str, wanted: Keys) -> None:
    (spec,) = schedules(f"schedules:\n  - {{name: a, task: t, {options}}}\n")
    assert spec == schedule_spec("a", task="t", **wanted)


BERLIN = {"zone": "Europe/Berlin"}
HOLIDAYS = {"exclude": ["2026-05-01", "2026-12-24..2027-01-02"]}


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        (
            {"every": "1h", "start": "2026-12-01", "end": "2027-12-01T08:00:00Z"},
            {"start": "2026-12-01T00:00:00Z"},
        ),
        ({"every": "1h", "start": "2026-12-01"} | BERLIN, {"start": "2026-11-30T23:00:00Z", "zone": None}),
        ({"every": "1h"} | BERLIN | HOLIDAYS, {}),
        ({"every": "1h", "keep": {"runs": 1000, "days": 30}}, {}),
        ({"every": "1h", "keep": 50}, {"keep": {"runs": 50}}),
        ({"every": "1h", "exclude": "2026-12-25"}, {"exclude": ["2026-12-25"]}),
        (
            {"every": "1h", "exclude": "none", "start": "none", "end": "none"},
            dict.fromkeys(("exclude", "start", "end")),
        ),
    ],
)
def test_what_bounds_a_schedule_is_read_and_written_alike(
    options: dict[str, Any], plain: dict[str, Any]
) -> None:
    keys = {"name": "a", "task": "t"} | options
    spec = ScheduleSpec.valid(keys)
    wanted = {key: value for key, value in (keys | plain).items() if value is not None}
    assert spec.plain() == wanted
    assert ScheduleSpec.valid(wanted) == spec


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("task: t", "f.yaml:2: schedule 'a': one of cron, every and at: is missing"),
        ("task: t, at: [soon]", "at: 'soon' is not a time; write it as 2026-12-01T08:00"),
        (
            "task: t, every: 1, end: 2026-03-29T02:30, zone: Europe/Berlin",
            "end: '2026-03-29T02:30' does not exist",
        ),
        ("task: t, cron: '@daily', every: 1", "one of cron, every and at: cron and every cannot be combined"),
        ("task: t, every: 1, zone: UTC", "zone: has no effect on an interval without an anchor"),
        (
            "task: t, at: 2026-10-25T02:30, zone: Europe/Berlin",
            "choose one with an offset, 2026-10-25T02:30:00+02:00",
        ),
        ("task: t, at: '9999-12-31T23:59:00-10:00'", "is out of the range of times"),
        ("task: t, every: 1, retries: {often: 3}", "retries: unknown key 'often'; known are limit, first"),
        ("task: t, every: 1, colour: red", "unknown key 'colour'; known are name, task, zone, cron"),
    ],
)
def test_a_mistake_is_named_with_its_place(options: str, problem: str) -> None:
    found = problems(f"schedules:\n  - {{name: a, {options}}}\n")
    assert any(problem in line for line in found), found
    assert all(line.startswith("f.yaml:2: schedule 'a': ") for line in found)


def test_a_mistake_has_the_line_of_its_key() -> None:
    text = "schedules:\n- name: a\n  task: t\n  every: 1m\n  retries:\n    first: x\n  priority: high\n"
    assert problems(text) == [
        "f.yaml:5: schedule 'a': retries.first: 'x' is not a duration; write it as 90s, 2m, 1m30s, 1h or 1d",
        "f.yaml:7: schedule 'a': priority: must be a whole number from -100 to 100",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "schedules: [a]\n",
            "f.yaml:1: a schedule must be a mapping with name, task, and one of cron, every",
        ),
        ("schedules: {a: 1}\n", "f.yaml:1: schedules: must be a list"),
        ("queues: [{name: a}]\n", "f.yaml:1: queue 'a': name: 'a' has neither rate_per_s nor concurrency"),
        (
            EVERY + "  - {name: a, task: t, every: 1}\n",
            "f.yaml:3: schedule 'a' is already declared at f.yaml:2",
        ),
        ('{"schedules": [{"name": "a"}]}', "f.yaml: schedule 1: schedule 'a': task: is missing"),
    ],
)
def test_a_mistake_around_a_schedule_is_named_too(text: str, problem: str) -> None:
    found = [str(p) for p in read(text).problems]
    assert any(problem in line for line in found), found


# -- plans -------------------------------------------------------------------------------------------


def there(name: str, **keys: Any) -> tuple[ScheduleSpec, Version | None]:
    return schedule_spec(name, task="t", **keys), (1, 1)


def test_what_does_not_say_paused_keeps_what_there_is() -> None:
    paused = {"a": there("a", every=30.0, paused=True)}
    assert plan("schedule", schedules(EVERY), paused) == []
    runs = schedules(EVERY.replace("30s", "30s, paused: false"))
    (change,) = plan("schedule", runs, paused)
    assert [(o.option, o.before, o.after) for o in change.options] == [("paused", True, "(unset)")]
    assert plan("schedule", runs, {"a": there("a", every=30.0)}) == []


# -- there and back ----------------------------------------------------------------------------------

printable = st.characters(exclude_categories=("C", "Z"), exclude_characters="-")
names = st.text(printable, min_size=1, max_size=12)
words = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12)
keys = words.filter(lambda key: not names_secret(key))  # an argument named like a secret is refused
seconds = st.floats(0, DURATION_MAX_S) | st.integers(0, 10**7).map(float)
limits = st.floats(0.1, DURATION_MAX_S) | st.integers(1, 10**7).map(float)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  # the zone is given beside them
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
    | st.sampled_from(["no", "1e3", "0x10", "1_0", "=", "<<", "~", "", "2026-01-01", "1:30", ".5", "+1", "-"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
expressions = st.sampled_from([("@daily",), ("H 2 * * *",), ("0 8 * * MON", "@hourly")])
timings: st.SearchStrategy[Keys] = (
    st.builds(dict, cron=expressions, zone=st.sampled_from(["UTC", "Europe/Berlin"]))
    | st.builds(dict, every=limits, anchor=st.none() | moments)
    | st.builds(dict, at=st.tuples(moments))
)
retries: st.SearchStrategy[Keys] = st.builds(
    dict, limit=st.integers(0, 9), first=seconds, factor=st.floats(1, 100), max=seconds
)
catch_up: st.SearchStrategy[Keys] = st.builds(
    dict, policy=st.sampled_from(CatchUp), window=seconds, max=st.integers(1, 10_000)
)
others: st.SearchStrategy[Keys] = st.builds(
    dict,
    task=names,
    args=st.lists(values, max_size=3),
    kwargs=st.dictionaries(keys, values, max_size=3),
    semantics=st.sampled_from(Semantics),
    timeout=st.none() | limits,
    retries=retries,
    queue=names,
    priority=st.integers(-100, 100),
    jitter=seconds,
    start_deadline=st.none() | limits,
    overlap=st.sampled_from(Overlap),
    buffer_max=st.integers(1, 10_000),
    catch_up=catch_up,
    misfire_after=seconds,
    resume=st.sampled_from(ResumePolicy),
    pause_on_failure=st.none() | st.integers(1, 10**6),
    paused=st.none() | st.booleans(),
    end=st.none() | moments,
)
specs = st.builds(lambda name, timing, other: schedule_spec(name, **timing, **other), names, timings, others)
queues = st.builds(
    Queue,
    name=st.from_regex(r"[a-z/]{1,9}", fullmatch=True),
    rate_per_s=st.floats(0.001, 1e6),
    burst=st.floats(1, 1e6),
    concurrency=st.none() | st.integers(1, 99),
)


@given(spec=specs, queue=queues)
def test_what_is_dumped_reads_back_alike(spec: ScheduleSpec, queue: Queue) -> None:
    found = read(documents.dump({"schedules": [spec.plain()], "queues": [queue.plain()]}))
    assert not found.problems
    assert [d.spec for d in found.schedules] == [spec]
    assert [d.spec for d in found.queues] == [queue]


@given(spec=specs)
def test_what_is_stored_reads_back_alike(spec: ScheduleSpec) -> None:
    assert ScheduleSpec.from_json(spec.to_json()) == spec
