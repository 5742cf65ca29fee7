"""One schedule, or the limits of one job queue, as in a manifest: what its keys may hold, and the way back.

The command line reads its options as these keys too, so that both mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from feedq.manifest.declared_values import NONE, Fields
from feedq.schedule.check import NAME_MAX, calendar_problems, problems
from feedq.schedule.model import (
    DEFAULT_QUEUE,
    Beat,
    Calendar,
    Cron,
    DstFold,
    DstGap,
    Every,
    Exclusion,
    Job,
    Once,
    Overlap,
    Queue,
    ResumePolicy,
    Retries,
    ScheduleSpec,
    Semantics,
    Timing,
)
from feedq.schedule.words import instant
from feedq.wording import exact_duration

TIMING_KEYS = {
    "cron": ("cron", "zone", "dst_gap", "dst_fold"),
    "every": ("every", "anchor", "zone"),
    "at": ("at", "zone"),
}
"""Exactly one of these is given; and what goes with it."""
SCHEDULE_KEYS = (
    *("name", "task", "cron", "every", "at", "zone", "dst_gap", "dst_fold", "anchor"),
    *("start", "end", "exclude", "args", "kwargs"),
    *("semantics", "timeout", "retries", "queue", "priority", "selector", "jitter", "start_deadline"),
    *("overlap", "buffer_max", "catch_up", "misfire_after", "resume", "pause_on_failure", "paused", "keep"),
)
ZONED_KEYS = ("anchor", "start", "end", "exclude")
"""What a zone means something to beside an interval."""
EXCLUDE_KEYS = ("dates", "calendars")
CALENDAR_KEYS = ("name", "dates")
SELECTOR_KEYS = ("required",)
RETRIES_KEYS = ("limit", "first", "factor", "max")
CATCH_UP_KEYS = ("policy", "window", "max")
KEEP_KEYS = ("runs", "days")
QUEUE_KEYS = ("name", "rate_per_s", "burst", "concurrency")
DEFAULT_ZONE = "UTC"
RATE_MAX = 1_000_000.0
BURST_MAX = 1_000_000.0
CONCURRENCY_MAX = 2**31 - 1
"""As the column holds it."""

_NAMES = {
    "every_s": "every",
    "catch_up_window_s": "catch_up.window",
    "catch_up_max": "catch_up.max",
    "gap": "dst_gap",
    "fold": "dst_fold",
    "start_at": "start",
    "end_at": "end",
    "exclude.zone": "zone",
    "keep_runs": "keep.runs",
    "keep_days": "keep.days",
}
"""Names of `feedq.schedule.check` that differ here by more than their unit."""

_DEFAULT_JOB = Job("")
_DEFAULT = ScheduleSpec("", Beat(), _DEFAULT_JOB)


Value = TypeVar("Value")


# -- schedules ---------------------------------------------------------------------------------------


def read_schedule(schedule: Mapping[Any, Any]) -> ScheduleSpec | list[tuple[str, str]]:
    """The schedule; or, as ``(key, what is wrong)``, everything about its shape that is wrong."""
    fields = Fields(schedule, SCHEDULE_KEYS)
    catch_up = fields.below("catch_up", CATCH_UP_KEYS, shorthand="policy")
    keep = fields.below("keep", KEEP_KEYS, shorthand="runs")
    zone = fields.text("zone", DEFAULT_ZONE)
    spec = ScheduleSpec(
        name=fields.text("name", "", required=True),
        timing=_timing(fields, zone),
        job=_job(fields),
        jitter_s=fields.seconds("jitter", _DEFAULT.jitter_s),
        start_deadline_s=_limit(fields, "start_deadline", _DEFAULT.start_deadline_s),
        overlap=fields.word("overlap", _DEFAULT.overlap),
        buffer_max=fields.whole("buffer_max", _DEFAULT.buffer_max),
        catch_up=catch_up.word("policy", _DEFAULT.catch_up),
        catch_up_window_s=catch_up.seconds("window", _DEFAULT.catch_up_window_s),
        catch_up_max=catch_up.whole("max", _DEFAULT.catch_up_max),
        misfire_after_s=fields.seconds("misfire_after", _DEFAULT.misfire_after_s),
        resume=fields.word("resume", _DEFAULT.resume),
        pause_on_failure=fields.whole("pause_on_failure", None)
        if fields.unless_none("pause_on_failure")
        else None,
        paused=fields.flag("paused", _DEFAULT.paused),
        start_at=_moment(fields, "start", zone),
        end_at=_moment(fields, "end", zone),
        exclude=_exclusion(fields, zone),
        keep_runs=keep.whole("runs", None) if keep.unless_none("runs") else None,
        keep_days=keep.whole("days", None) if keep.unless_none("days") else None,
    )
    return fields.problems or spec


def schedule_problems(spec: ScheduleSpec) -> list[str]:
    """Everything that is wrong with a schedule of the right shape, with the names that a manifest has."""
    return [_renamed(problem) for problem in problems(spec)]


def plain_schedule(spec: ScheduleSpec) -> dict[str, Any]:
    """One schedule as it stands in a manifest; what is at its default is left out."""
    keys: dict[str, Any] = {"name": spec.name} | _plain_timing(spec.timing) | _plain_bounds(spec)
    keys |= _plain_job(spec.job)
    durations = {
        "jitter": (spec.jitter_s, _DEFAULT.jitter_s),
        "start_deadline": (spec.start_deadline_s, _DEFAULT.start_deadline_s),
        "misfire_after": (spec.misfire_after_s, _DEFAULT.misfire_after_s),
    }
    keys |= {key: _seconds(value) for key, (value, usual) in durations.items() if value != usual}
    others = ("overlap", "buffer_max", "resume", "pause_on_failure", "paused")
    keys |= {key: getattr(spec, key) for key in others if getattr(spec, key) != getattr(_DEFAULT, key)}
    catch_up: dict[str, Any] = {}
    if spec.catch_up is not _DEFAULT.catch_up:
        catch_up["policy"] = spec.catch_up.value
    if spec.catch_up_window_s != _DEFAULT.catch_up_window_s:
        catch_up["window"] = _seconds(spec.catch_up_window_s)
    if spec.catch_up_max != _DEFAULT.catch_up_max:
        catch_up["max"] = spec.catch_up_max
    if catch_up:
        keys["catch_up"] = catch_up
    kept = {"runs": spec.keep_runs, "days": spec.keep_days}
    if any(kept.values()):
        keys["keep"] = {key: value for key, value in kept.items() if value is not None}
    # As plain text: an enumeration is more than a string to the writer of YAML.
    return {
        key: str(value) if isinstance(value, Overlap | ResumePolicy) else value for key, value in keys.items()
    }


def _timing(fields: Fields, zone: str) -> Timing:
    given = [kind for kind in TIMING_KEYS if fields.has(kind)]
    if len(given) != 1:
        what = "is missing" if not given else f"{' and '.join(given)} exclude each other"
        fields.problems.append((given[-1] if given else "cron", f"one of cron, every and at: {what}"))
        return Beat()
    for key in {key for keys in TIMING_KEYS.values() for key in keys} - {*TIMING_KEYS[given[0]]}:
        if fields.has(key):
            fields.wrong(key, f"means nothing beside {given[0]}")
    if given == ["cron"]:
        expressions = tuple(one.text("cron", "") for one in fields.several("cron"))
        gap, fold = fields.word("dst_gap", DstGap.SHIFT), fields.word("dst_fold", DstFold.FIRST)
        return Cron(_one_or_all(expressions), zone, gap, fold) if expressions else Beat()
    if given == ["every"]:
        if fields.has("zone") and not any(fields.has(key) for key in ZONED_KEYS):
            fields.wrong("zone", "means nothing to an interval without an anchor, start, end or exclude")
        return Every(fields.seconds("every", 1.0), fields.moment("anchor", zone))
    moments = tuple(at for one in fields.several("at") if (at := one.moment("at", zone)) is not None)
    return Once(_one_or_all(moments)) if moments else Beat()


def _one_or_all(values: tuple[Value, ...]) -> Value | tuple[Value, ...]:
    """A list of one is as good as the one."""
    return values[0] if len(values) == 1 else values


def _moment(fields: Fields, key: str, zone: str) -> datetime | None:
    return fields.moment(key, zone) if fields.unless_none(key) else None


def _exclusion(fields: Fields, zone: str) -> Exclusion:
    if not fields.unless_none("exclude"):
        return Exclusion()
    given = fields.below("exclude", EXCLUDE_KEYS, shorthand="dates")
    dates = _texts(given, "dates")
    calendars = _texts(given, "calendars")
    return Exclusion(dates, zone, calendars) if dates or calendars else Exclusion()


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    """A list of strings, or one; once each. ``none`` is an empty list."""
    if not fields.unless_none(key):
        return ()
    return tuple(dict.fromkeys(one.text(key, "") for one in fields.several(key)))


def _job(fields: Fields) -> Job:
    retries = fields.below("retries", RETRIES_KEYS, shorthand="limit")
    usual = _DEFAULT_JOB.retries
    return Job(
        task=fields.text("task", "", required=True),
        args=fields.sequence("args"),
        kwargs=fields.mapping("kwargs"),
        semantics=fields.word("semantics", Semantics.AT_MOST_ONCE),
        timeout_s=_limit(fields, "timeout", _DEFAULT_JOB.timeout_s),
        retries=Retries(
            limit=retries.whole("limit", usual.limit),
            first_s=retries.seconds("first", usual.first_s),
            factor=retries.number("factor", usual.factor),
            max_s=retries.seconds("max", usual.max_s),
        ),
        queue=fields.text("queue", DEFAULT_QUEUE),
        priority=fields.whole("priority", _DEFAULT_JOB.priority),
        selector=fields.below("selector", SELECTOR_KEYS, shorthand="required").mapping("required"),
    )


def _limit(fields: Fields, key: str, usual: float | None) -> float | None:
    """A duration, or ``none``."""
    return fields.seconds(key, usual) if fields.unless_none(key) else None


def _plain_timing(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron(expression, zone, gap, fold):
            keys = {"cron": _listed(expression), "zone": zone, "dst_gap": gap.value, "dst_fold": fold.value}
            usual = {"zone": DEFAULT_ZONE, "dst_gap": DstGap.SHIFT.value, "dst_fold": DstFold.FIRST.value}
            return {key: value for key, value in keys.items() if value != usual.get(key)}
        case Every(every_s, anchor):
            return {"every": _seconds(every_s)} | ({} if anchor is None else {"anchor": instant(anchor)})
        case Once() as once:
            moments = tuple(map(instant, once.moments))
            return {"at": _listed(_one_or_all(moments))}
        case Beat():
            # The beat's own; nobody declares it.
            return {}


def _plain_bounds(spec: ScheduleSpec) -> dict[str, Any]:
    ends = (("start", spec.start_at), ("end", spec.end_at))
    keys: dict[str, Any] = {key: instant(at) for key, at in ends if at is not None}
    if spec.exclude:
        if not isinstance(spec.timing, Cron) and spec.exclude.zone != DEFAULT_ZONE:
            keys["zone"] = spec.exclude.zone
        lists = {"dates": spec.exclude.dates, "calendars": spec.exclude.calendars}
        keys["exclude"] = {key: list(values) for key, values in lists.items() if values}
    return keys


def _listed(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


def _plain_job(job: Job) -> dict[str, Any]:
    keys: dict[str, Any] = {"task": job.task}
    if job.args:
        keys["args"] = list(job.args)
    if job.kwargs:
        keys["kwargs"] = dict(job.kwargs)
    if job.semantics is not _DEFAULT_JOB.semantics:
        keys["semantics"] = job.semantics.value
    if job.timeout_s != _DEFAULT_JOB.timeout_s:
        keys["timeout"] = _seconds(job.timeout_s)
    retries, usual = job.retries, _DEFAULT_JOB.retries
    values = {
        "limit": (retries.limit, usual.limit),
        "first": (_seconds(retries.first_s), _seconds(usual.first_s)),
        "factor": (retries.factor, usual.factor),
        "max": (_seconds(retries.max_s), _seconds(usual.max_s)),
    }
    if retries != usual:
        keys["retries"] = {key: value for key, (value, default) in values.items() if value != default}
    if job.queue != DEFAULT_QUEUE:
        keys["queue"] = job.queue
    if job.priority:
        keys["priority"] = job.priority
    if job.selector:
        keys["selector"] = {"required": dict(job.selector)}
    return keys


def _seconds(seconds: float | None) -> str | float:
    return NONE if seconds is None else exact_duration(seconds)


def _renamed(problem: str) -> str:
    """``job.retries.first_s: …`` as ``retries.first: …``."""
    path, colon, what = problem.partition(": ")
    head, _, rest = path.partition(".")
    name = rest if head in ("timing", "job", "policy") and rest else path
    return f"{_NAMES.get(name, name.removesuffix('_s'))}{colon}{what}"


# -- calendars ---------------------------------------------------------------------------------------


def read_calendar(calendar: Mapping[Any, Any]) -> Calendar | list[tuple[str, str]]:
    """The calendar; or, as ``(key, what is wrong)``, everything that is wrong with it."""
    fields = Fields(calendar, CALENDAR_KEYS)
    found = Calendar(fields.text("name", "", required=True), _texts(fields, "dates"))
    if not fields.problems:
        for problem in calendar_problems(found):
            key, _, what = problem.partition(": ")
            fields.wrong(key, what)
    return fields.problems or found


def plain_calendar(calendar: Calendar) -> dict[str, Any]:
    """One calendar as it stands in a manifest."""
    return {"name": calendar.name, "dates": list(calendar.dates)}


# -- queues ------------------------------------------------------------------------------------------


def read_queue(queue: Mapping[Any, Any]) -> Queue | list[tuple[str, str]]:
    """The limits of a queue; or, as ``(key, what is wrong)``, everything that is wrong with them."""
    fields = Fields(queue, QUEUE_KEYS)
    found = Queue(
        name=fields.text("name", "", required=True),
        rate_per_s=fields.number("rate_per_s", None),
        burst=fields.number("burst", 1.0),
        concurrency=fields.whole("concurrency", None),
    )
    if not fields.problems:
        for key, what in queue_problems(found):
            fields.wrong(key, what)
    return fields.problems or found


def queue_problems(queue: Queue) -> list[tuple[str, str]]:
    """``(key, what is wrong)`` with the values of limits; empty when they may be set."""
    found = []
    name = queue.name
    if not (0 < len(name) <= NAME_MAX and name.isprintable() and " " not in name):
        found.append(("name", f"must be printable, without spaces, of at most {NAME_MAX} characters"))
    if queue.rate_per_s is None and queue.concurrency is None:
        found.append(("name", f"{queue.name!r} has neither rate_per_s nor concurrency, hence no limit"))
    if queue.rate_per_s is not None and not 0 < queue.rate_per_s <= RATE_MAX:
        found.append(("rate_per_s", f"must be more than 0 and at most {RATE_MAX:,.0f}"))
    if not 1 <= queue.burst <= BURST_MAX:
        found.append(("burst", f"must be from 1 to {BURST_MAX:,.0f}"))
    if queue.concurrency is not None and not 1 <= queue.concurrency <= CONCURRENCY_MAX:
        found.append(("concurrency", f"must be from 1 to {CONCURRENCY_MAX}"))
    return found


def plain_queue(queue: Queue) -> dict[str, Any]:
    """The limits of one queue as they stand in a manifest; what is at its default is left out."""
    keys: dict[str, Any] = {"name": queue.name}
    if queue.rate_per_s is not None:
        keys["rate_per_s"] = queue.rate_per_s
    if queue.burst != 1.0:
        keys["burst"] = queue.burst
    if queue.concurrency is not None:
        keys["concurrency"] = queue.concurrency
    return keys
