"""Declarations of schedules in as few words as a test needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from feedq.core.schedule.spec import NOT_OF_JOB, TIMING_KEYS, ScheduleSpec

INTERVAL_S: Final = 60.0
"""Of schedules that do not say."""
Keys = dict[str, Any]
"""Some keys of a declaration."""


def schedule_spec(name: str = "nightly", **keys: Any) -> ScheduleSpec:
    """A schedule with these keys of its declaration, not checked."""
    assert keys.keys() <= ScheduleSpec.model_fields.keys(), "a key that there is not would do nothing"
    when = {} if keys.keys() & TIMING_KEYS.keys() else {"every": INTERVAL_S}
    return ScheduleSpec.of({"name": name, "task": "tasks.report"} | when | keys)


def never(name: str, **keys: Any) -> ScheduleSpec:
    """A schedule that runs when it is triggered only."""
    return schedule_spec(name, every=86_400.0, anchor=datetime.now(UTC) + timedelta(hours=12), **keys)


def job_spec(name: str = "nightly", **keys: Any) -> ScheduleSpec:
    """A schedule as its runs have it, with these keys."""
    return job_of(schedule_spec(name, **keys))


def job_of(spec: ScheduleSpec) -> ScheduleSpec:
    """What the runs of a schedule have of it."""
    return spec.model_copy(update={key: ScheduleSpec.model_fields[key].default for key in NOT_OF_JOB})
