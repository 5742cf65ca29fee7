"""The JSON form of schedules: nothing is lost, defaults are left out, and wrong shapes are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feedq.control.store.jobs.rows import stored
from feedq.core.schedule.model import (
    Every,
    Job,
    Overlap,
    Retries,
    ScheduleSpec,
)
from feedq.core.schedule.plain import spec_from_json
from feedq.errors import InvalidInput

BARE = ScheduleSpec("report", Every(30.0), Job("shop.report"))


def test_what_is_as_by_default_is_left_out() -> None:
    assert stored(BARE) == {
        "name": "report",
        "timing": '{"every_s":30.0}',
        "job": '{"task":"shop.report"}',
        "policy": "{}",
    }
    changed = replace(BARE, job=Job("shop.report", retries=Retries(limit=2)), overlap=Overlap.ALLOW_ALL)
    assert stored(changed)["job"] == '{"task":"shop.report","retries":{"limit":2}}'
    assert stored(changed)["policy"] == '{"overlap":"allow_all"}'


@pytest.mark.parametrize(
    ("part", "text", "complaint"),
    [
        ("timing", '"@daily"', "timing: must have exactly one of cron, every_s, at, beat"),
        ("timing", '{"cron": "@daily", "at": "x"}', "timing: must have exactly one"),
        ("timing", '{"every_s": 5, "zone": "UTC"}', "timing.zone: is not known"),
        ("timing", '{"every_s": "5"}', "timing.every_s: must be a number"),
        ("timing", '{"cron": 5}', "timing.cron"),
        ("timing", '{"at": "tomorrow"}', "timing.at"),
        ("timing", '{"beat": false}', "timing.beat: "),
        ("job", "{}", "job.task: is missing"),
        ("job", '{"task": "t", "name": "x"}', "job.name: "),
        ("job", '{"task": "t", "args": "abc"}', "job.args: must be a list"),
        ("job", '{"task": "t", "kwargs": []}', "job.kwargs: must be a mapping"),
        ("job", '{"task": "t", "priority": 1.5}', "job.priority: must be a whole number"),
        ("job", '{"task": "t", "retries": {"max": 3}}', "job.retries.max: "),
        ("job", '{"task": "t", "semantics": "x"}', "job.semantics: must be one of at_most_once,"),
        ("policy", '{"overlap": "never"}', "policy.overlap: must be one of skip, buffer_one"),
        ("policy", '{"paused": "yes"}', "policy.paused: must be true or false"),
        ("policy", '{"start_at": "2026-11-22T10:00:00"}', "policy.start_at: "),
        ("policy", '{"jitter": 5}', "policy.jitter: is not known"),
    ],
)
def test_what_has_another_shape_is_refused_by_option(part: str, text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        spec_from_json(**stored(BARE) | {part: text})
    assert str(refused.value).startswith(complaint)
