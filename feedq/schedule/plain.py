"""Schedules as JSON, in the form in which the database, the interface of the web and manifests hold them.

::

    {"name": "report",
     "timing": {"cron": "0 2 * * *", "zone": "Europe/Berlin", "gap": "shift", "fold": "first"},
     "job": {"task": "shop.report", "kwargs": {"day": "yesterday"}},
     "policy": {"jitter_s": 30.0}}

Other timings are ``{"every_s": 30.0}``, with an ``anchor`` if need be, ``{"at": "2026-11-22T10:00:00Z"}`` and
``{"beat": true}``; several expressions or times are a list. Of job and policy only what differs from the default
is there, so that an option of a later release has its default in what was stored before. Reading takes nothing on
trust as to its shape: whatever is no such form raises `InvalidInput`, which names the option. Whether its values
can be right is for `feedq.schedule.check` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from feedq.errors import InvalidInput
from feedq.schedule.model import (
    Beat,
    CatchUp,
    Cron,
    DstFold,
    DstGap,
    Every,
    Exclusion,
    Job,
    Once,
    Overlap,
    ResumePolicy,
    Retries,
    ScheduleSpec,
    Semantics,
    Timing,
)
from feedq.schedule.words import instant

_Reader = Callable[[str, Any], Any]


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
    given = _mapping("schedule", plain, allowed=("name", "timing", "job", "policy"))
    return ScheduleSpec(
        name=_text("name", _required("name", given)),
        timing=timing_from_plain(_required("timing", given)),
        job=job_from_plain(_required("job", given)),
        **policy_from_plain(given.get("policy", {})),
    )


# -- timing ------------------------------------------------------------------------------------------


def timing_to_plain(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron(expression, zone, gap, fold):
            return {"cron": _plain(expression), "zone": zone, "gap": gap.value, "fold": fold.value}
        case Every(every_s, anchor):
            return {"every_s": every_s} | ({} if anchor is None else {"anchor": instant(anchor)})
        case Once(at):
            return {"at": _plain(at)}
        case Beat():
            return {"beat": True}


def timing_from_plain(plain: Any) -> Timing:
    given = _mapping("timing", plain)
    found = [kind for kind in _TIMINGS if kind in given]
    if len(found) != 1:
        raise InvalidInput("timing: must have exactly one of cron, every_s and at")
    build, options = _TIMINGS[found[0]]
    _mapping("timing", given, allowed=tuple(options))
    timing: Timing = build(**_read("timing", given, options))
    return timing


# -- job ---------------------------------------------------------------------------------------------


def job_to_plain(job: Job) -> dict[str, Any]:
    return {"task": job.task} | _differing(job, _JOB)


def job_from_plain(plain: Any) -> Job:
    given = _mapping("job", plain, allowed=("task", *_JOB))
    task = _text("job.task", _required("task", given, within="job."))
    return Job(task, **_read("job", given, _JOB))


# -- policy ------------------------------------------------------------------------------------------


def policy_to_plain(spec: ScheduleSpec) -> dict[str, Any]:
    """All of a declaration but its name, timing and job."""
    return _differing(spec, _POLICY)


def policy_from_plain(plain: Any) -> dict[str, Any]:
    """As keyword arguments of `ScheduleSpec`."""
    return _read("policy", _mapping("policy", plain, allowed=tuple(_POLICY)), _POLICY)


# -- values ------------------------------------------------------------------------------------------


def _differing(values: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these options that are not as they would be by default."""
    found = {
        field.name: getattr(values, field.name)
        for field in fields(values)
        if field.name in options and getattr(values, field.name) != _default(field)
    }
    return {name: _plain(value) for name, value in found.items()}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Retries):
        return _differing(value, _RETRIES)
    if isinstance(value, Exclusion):
        return _differing(value, _EXCLUDE)
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(path: str, given: Mapping[str, Any], options: Mapping[str, _Reader]) -> dict[str, Any]:
    return {
        _FIELD_NAMES.get(name, name): read(f"{path}.{name}", given[name])
        for name, read in options.items()
        if name in given
    }


def _mapping(path: str, value: Any, *, allowed: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{path}: must be a mapping of options")
    for name in value:
        if not isinstance(name, str) or (allowed is not None and name not in allowed):
            raise InvalidInput(f"{path}: has no option {name!r}; there are {', '.join(allowed or ())}")
    return value


def _required(name: str, given: Mapping[str, Any], *, within: str = "") -> Any:
    if name not in given:
        raise InvalidInput(f"{within}{name}: is missing")
    return given[name]


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{path}: must be a string; quote it")
    return value


def _number(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{path}: must be a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidInput(f"{path}: is too large a number") from None


def _integer(path: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{path}: must be a whole number")
    return value


def _truth(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{path}: must be true or false")
    return value


def _moment(path: str, value: Any) -> datetime:
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(_text(path, value))
    except ValueError:
        raise InvalidInput(f"{path}: must be a time such as 2026-11-22T10:00:00Z") from None
    if at.utcoffset() is None:
        raise InvalidInput(f"{path}: must end with a Z or an offset such as +01:00")
    return at


def _sequence(path: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{path}: must be a list")
    return tuple(value)


def _options(path: str, value: Any) -> dict[str, Any]:
    return dict(_mapping(path, value))


def _one_or_several(read: _Reader) -> _Reader:
    """A list of one is as good as the one."""

    def read_each(path: str, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return read(path, value)
        found = tuple(read(path, one) for one in value)
        return found[0] if len(found) == 1 else found

    return read_each


def _texts(path: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(path, one) for one in _sequence(path, value))


def _exclusion(path: str, value: Any) -> Exclusion:
    return Exclusion(**_read(path, _mapping(path, value, allowed=tuple(_EXCLUDE)), _EXCLUDE))


def _or_none(read: _Reader) -> _Reader:
    return lambda path, value: None if value is None else read(path, value)


def _one_of(values: type[StrEnum]) -> _Reader:
    known = {member.value: member for member in values}

    def read(path: str, value: Any) -> StrEnum:
        found = known.get(value) if isinstance(value, str) else None
        if found is None:
            raise InvalidInput(f"{path}: must be one of {', '.join(values)}")
        return found

    return read


def _retries(path: str, value: Any) -> Retries:
    return Retries(**_read(path, _mapping(path, value, allowed=tuple(_RETRIES)), _RETRIES))


def _beat(*, beat: bool) -> Beat:
    if not beat:
        raise InvalidInput("timing.beat: can only be true")
    return Beat()


_TIMINGS: dict[str, tuple[Callable[..., Timing], Mapping[str, _Reader]]] = {
    "cron": (
        Cron,
        {"cron": _one_or_several(_text), "zone": _text, "gap": _one_of(DstGap), "fold": _one_of(DstFold)},
    ),
    "every_s": (Every, {"every_s": _number, "anchor": _or_none(_moment)}),
    "at": (Once, {"at": _one_or_several(_moment)}),
    "beat": (_beat, {"beat": _truth}),
}
_FIELD_NAMES = {"cron": "expression"}
"""Options whose fields are called differently."""

_RETRIES: Mapping[str, _Reader] = {
    "limit": _integer,
    "first_s": _number,
    "factor": _number,
    "max_s": _number,
}
_EXCLUDE: Mapping[str, _Reader] = {"dates": _texts, "calendars": _texts, "zone": _text}
_JOB: Mapping[str, _Reader] = {
    "args": _sequence,
    "kwargs": _options,
    "semantics": _one_of(Semantics),
    "timeout_s": _or_none(_number),
    "retries": _retries,
    "queue": _text,
    "priority": _integer,
    "selector": _options,
}
_POLICY: Mapping[str, _Reader] = {
    "jitter_s": _number,
    "start_deadline_s": _or_none(_number),
    "overlap": _one_of(Overlap),
    "buffer_max": _integer,
    "catch_up": _one_of(CatchUp),
    "catch_up_window_s": _number,
    "catch_up_max": _integer,
    "misfire_after_s": _number,
    "resume": _one_of(ResumePolicy),
    "pause_on_failure": _or_none(_integer),
    "paused": _truth,
    "start_at": _or_none(_moment),
    "end_at": _or_none(_moment),
    "exclude": _exclusion,
    "keep_runs": _or_none(_integer),
    "keep_days": _or_none(_integer),
}
