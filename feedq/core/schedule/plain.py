"""Schedules as JSON, in the form in which the database and the API hold them.

::

    {"name": "report",
     "timing": {"cron": "0 2 * * *", "zone": "Europe/Berlin"},
     "job": {"task": "shop.report", "kwargs": {"day": "yesterday"}},
     "policy": {"jitter_s": 30.0}}

Other timings are ``{"every_s": 30.0}``, with an ``anchor`` if need be, ``{"at": "2026-11-22T10:00:00Z"}`` and
``{"beat": true}``; several expressions or times are a list. Of job and policy only what differs from the default
is there, so that an option of a later release has its default in what was stored before. The shape follows from
the types of `feedq.core.schedule.model`, and whatever has another raises `InvalidInput`, which names the option.
Whether its values can be right is for `feedq.core.schedule.entries` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from feedq.core.schedule.model import STRICT, Beat, Cron, Every, Job, Once, ScheduleSpec, Timing
from feedq.core.values import explained_type
from feedq.errors import InvalidInput

_TIMINGS: Mapping[str, type[Timing]] = {"cron": Cron, "every_s": Every, "at": Once, "beat": Beat}
_OTHER_PARTS = {"name", "timing", "job"}


def timing_to_plain(timing: Timing) -> dict[str, Any]:
    return _dumped(type(timing), timing, by_alias=True, exclude_none=True)


def job_to_plain(job: Job) -> dict[str, Any]:
    return _dumped(Job, job, exclude_defaults=True)


def policy_to_plain(spec: ScheduleSpec) -> dict[str, Any]:
    """All of a declaration but its name, timing and job."""
    return _dumped(ScheduleSpec, spec, exclude_defaults=True, exclude=_OTHER_PARTS)


def spec_from_json(name: str, *, timing: str | bytes, job: str | bytes, policy: str | bytes) -> ScheduleSpec:
    found = _read("policy", _policy_model(), policy)
    bare = ScheduleSpec(name, timing_from_json(timing), job_from_json(job))
    return replace(bare, **{option: getattr(found, option) for option in found.model_fields_set})


def timing_from_json(text: str | bytes) -> Timing:
    keys = msgspec.json.decode(text)
    kinds = [kind for key, kind in _TIMINGS.items() if isinstance(keys, dict) and key in keys]
    if len(kinds) != 1:
        raise InvalidInput(f"timing: must have exactly one of {', '.join(_TIMINGS)}")
    timing: Timing = _read("timing", kinds[0], text)
    return timing


def job_from_json(text: str | bytes) -> Job:
    job: Job = _read("job", Job, text)
    return job


def _read(part: str, kind: type, text: str | bytes) -> Any:
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{'.'.join(map(str, (part, *first['loc'])))}: {explained_type(first)}") from None


def _dumped(kind: type, value: Any, **options: Any) -> dict[str, Any]:
    plain: dict[str, Any] = _adapter(kind).dump_python(value, mode="json", warnings=False, **options)
    return plain


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _policy_model() -> type[BaseModel]:
    types = get_type_hints(ScheduleSpec, include_extras=True)
    options: dict[str, Any] = {
        field.name: (types[field.name], field.default)
        for field in fields(ScheduleSpec)
        if field.name not in _OTHER_PARTS
    }
    return create_model("Policy", __config__=STRICT, **options)
