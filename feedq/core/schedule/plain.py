"""Schedules as JSON, in the form in which the database and the interface of the web hold them.

::

    {"name": "report",
     "timing": {"cron": "0 2 * * *", "zone": "Europe/Berlin"},
     "job": {"task": "shop.report", "kwargs": {"day": "yesterday"}},
     "policy": {"jitter_s": 30.0}}

Other timings are ``{"every_s": 30.0}``, with an ``anchor`` if need be, ``{"at": "2026-11-22T10:00:00Z"}`` and
``{"beat": true}``; several expressions or times are a list. Of job and policy only what differs from the default
is there, so that an option of a later release has its default in what was stored before. Reading takes nothing on
trust as to its shape, which follows from the types of `feedq.core.schedule.model`: whatever has another raises
`InvalidInput`, which names the option. Whether its values can be right is for `feedq.core.schedule.entries` to
say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, get_type_hints

import orjson
from pydantic import TypeAdapter, ValidationError

from feedq.core.schedule.model import Beat, Cron, Every, Job, Once, ScheduleSpec, Timing
from feedq.core.values import explained_type, instant
from feedq.errors import InvalidInput

_TIMINGS: Mapping[str, type[Cron | Every | Once]] = {"cron": Cron, "every_s": Every, "at": Once}
_JOB = tuple(field.name for field in fields(Job))
_POLICY = tuple(field.name for field in fields(ScheduleSpec) if field.name not in ("name", "timing", "job"))


def to_plain(spec: ScheduleSpec) -> dict[str, Any]:
    """The whole declaration."""
    return {
        "name": spec.name,
        "timing": timing_to_plain(spec.timing),
        "job": job_to_plain(spec.job),
        "policy": policy_to_plain(spec),
    }


def from_plain(plain: Any) -> ScheduleSpec:
    """The declaration that `to_plain` made this of. What has a default may be left out."""
    given = _mapping("schedule", plain, ("name", "timing", "job", "policy"))
    return ScheduleSpec(
        name=_value("name", str, _required("name", given)),
        timing=timing_from_plain(_required("timing", given)),
        job=job_from_plain(_required("job", given)),
        **policy_from_plain(given.get("policy", {})),
    )


def timing_to_plain(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron(expression, zone):
            return {"cron": _plain(expression), "zone": zone}
        case Every(every_s, anchor):
            return {"every_s": every_s} | ({} if anchor is None else {"anchor": instant(anchor)})
        case Once(at):
            return {"at": _plain(at)}
        case Beat():
            return {"beat": True}


def timing_from_plain(plain: Any) -> Timing:
    if plain == {"beat": True}:
        return Beat()
    given = _mapping("timing", plain)
    found = [name for name in _TIMINGS if name in given]
    if len(found) != 1:
        raise InvalidInput("timing: must have exactly one of cron, every_s and at")
    kind: Any = _TIMINGS[found[0]]
    _mapping("timing", given, ["cron" if name == "expression" else name for name in _types(kind)])
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = "expression" if name == "cron" else name
        read = _value(f"timing.{name}", _types(kind)[field], value)
        # A list of one is as good as the one.
        values[field] = read[0] if isinstance(read, tuple) and len(read) == 1 else read
    timing: Timing = kind(**values)
    return timing


def job_to_plain(job: Job) -> dict[str, Any]:
    return _differing(Job, job)


def job_from_plain(plain: Any) -> Job:
    given = _mapping("job", plain, _JOB)
    _required("task", given, within="job.")
    return Job(**_read("job", Job, given))


def policy_to_plain(spec: ScheduleSpec) -> dict[str, Any]:
    """Writes all of a declaration but its name, timing and job."""
    return _differing(ScheduleSpec, spec, exclude={"name", "timing", "job"})


def policy_from_plain(plain: Any) -> dict[str, Any]:
    """Reads the policy as keyword arguments of `ScheduleSpec`."""
    return _read("policy", ScheduleSpec, _mapping("policy", plain, _POLICY))


# -- values ------------------------------------------------------------------------------------------


def _differing(kind: type, value: Any, **left_out: Any) -> dict[str, Any]:
    """The fields that are not as they would be by default."""
    plain: dict[str, Any] = _adapter(kind).dump_python(
        value, mode="json", exclude_defaults=True, warnings=False, **left_out
    )
    return plain


def _plain(at: str | datetime | tuple[str | datetime, ...]) -> Any:
    if isinstance(at, tuple):
        return [_plain(one) for one in at]
    return instant(at) if isinstance(at, datetime) else at


def _mapping(path: str, value: Any, allowed: Collection[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{path}: must be a mapping of options")
    for name in value:
        if allowed is not None and name not in allowed:
            raise InvalidInput(f"{path}: has no option {name!r}; there are {', '.join(allowed)}")
    return value


def _required(name: str, given: Mapping[str, Any], *, within: str = "") -> Any:
    if name not in given:
        raise InvalidInput(f"{within}{name}: is missing")
    return given[name]


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(path: str, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(f"{path}.{name}", _types(kind)[name], value) for name, value in given.items()}


def _value(path: str, kind: Any, value: Any) -> Any:
    if type(value) is kind:
        return value  # most are, and it is quickly seen
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**_read(path, kind, _mapping(path, value, _types(kind))))
    try:
        # Strictly as JSON: neither a text nor a truth value counts as a number.
        found = _adapter(kind).validate_json(orjson.dumps(value), strict=True)
    except ValidationError as error:
        raise InvalidInput(f"{path}: {explained_type(error.errors()[0])}") from None
    except TypeError as error:
        raise InvalidInput(f"{path}: is no JSON: {error}") from None
    found = tuple(found) if isinstance(found, list) else found
    moments = found if isinstance(found, tuple) else (found,)
    if any(isinstance(at, datetime) and at.utcoffset() is None for at in moments):
        raise InvalidInput(f"{path}: must end with a Z or an offset such as +01:00")
    return found
