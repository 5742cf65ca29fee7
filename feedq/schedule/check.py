"""Whether a declared schedule can be right: all that is wrong with it, in sentences.

Nothing here connects anywhere: whether a worker knows the task shows when it is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from feedq.errors import InvalidInput
from feedq.schedule.arguments import argument_problems
from feedq.schedule.cron import parse
from feedq.schedule.exclusions import date_problems
from feedq.schedule.model import Beat, Calendar, Cron, Every, Job, Once, ScheduleSpec, Timing

NAME_MAX = 200
"""Characters of the name of a schedule, task or job queue: it appears in log lines, tables and metric labels."""
BEAT_PREFIX = "beat:"
"""Names of the schedules behind entries of ``beat_schedule.py`` begin so, and no others."""
EVERY_MIN_S = 0.1
"""Of an interval: each tick is a row in the database."""
DURATION_MAX_S = 10 * 366 * 86_400.0
"""Ten years."""
DURATION_MIN_S = 0.001
"""Of a limit: with none at all nothing could be in time."""
BUFFER_MAX = 10_000
"""Runs of one schedule that may wait."""
CATCH_UP_MAX = 10_000
"""Misfires that are made up for at once: they become rows in one transaction."""
KEEP_RUNS_MAX = 100_000
"""More would take long to count."""
KEEP_DAYS_MAX = 3_660
CALENDARS_MAX = 20
"""Of one schedule."""
TIMES_MAX = 100
"""Cron expressions or moments of one schedule."""
RETRIES_MAX = 1_000
FAILURES_MAX = 1_000_000
FACTOR_MAX = 100.0
PRIORITY_MAX = 100
LABELS_MAX = 100

_NAME = re.compile(r"[^\s-]\S*")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}", re.ASCII)
_OWN_ZONES = {"localtime", "posixrules", "Factory"}
"""Names that mean another zone on each machine."""


def validate(spec: ScheduleSpec) -> None:
    """Raises `InvalidInput` with all that is wrong, naming schedule and options."""
    found = problems(spec)
    if found:
        raise InvalidInput(f"schedule {spec.name!r}: {'; '.join(found)}")


def problems(spec: ScheduleSpec) -> list[str]:
    """Everything that is wrong with a declaration, one sentence each; empty when it may be stored."""
    return [
        *_name_problems("name", spec.name),
        *_beat_problems(spec),
        *_timing_problems(spec.timing, spec.name),
        *_bounds_problems(spec),
        *_policy_problems(spec),
        *job_problems(spec.job),
    ]


def _name_problems(option: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{option}: must not be empty"
    elif len(name) > NAME_MAX:
        yield f"{option}: has {len(name)} characters; at most {NAME_MAX} are allowed"
    elif not (_NAME.fullmatch(name) and name.isprintable()):
        yield f"{option}: must be printable, without spaces, and must not begin with '-'"


# -- timing and policy -------------------------------------------------------------------------------


def _beat_problems(spec: ScheduleSpec) -> Iterator[str]:
    if spec.name.startswith(BEAT_PREFIX) != isinstance(spec.timing, Beat):
        yield (
            f"name: {BEAT_PREFIX}… is for entries of beat_schedule.py with feedq_once, and for nothing else; "
            "choose another name, or give cron, every_s or at"
        )


def _timing_problems(timing: Timing, name: str) -> Iterator[str]:
    match timing:
        case Cron(_, zone) as cron:
            yield from _count_problems("timing.cron", cron.expressions)
            for expression in cron.expressions[:TIMES_MAX]:
                try:
                    parse(expression, name=name)
                except ValueError as error:
                    which = "" if isinstance(cron.expression, str) else f"{expression[:NAME_MAX]!r} "
                    yield f"timing.cron: {which}{error}"
            yield from _zone_problems("timing.zone", zone)
        case Every(every_s, anchor):
            yield from _number_problems("timing.every_s", every_s, EVERY_MIN_S, DURATION_MAX_S)
            if anchor is not None:
                yield from _moment_problems("timing.anchor", anchor)
        case Once() as once:
            yield from _count_problems("timing.at", once.moments)
            for at in once.moments[:TIMES_MAX]:
                yield from _moment_problems("timing.at", at)


def _count_problems(option: str, times: Sequence[object]) -> Iterator[str]:
    if not 1 <= len(times) <= TIMES_MAX:
        yield f"{option}: has {len(times)} entries; from 1 to {TIMES_MAX} are allowed"


def _bounds_problems(spec: ScheduleSpec) -> Iterator[str]:
    """Of what limits the ticks of a timing: its start, its end, and days that are left out."""
    wrong = False
    for option, at in (("start_at", spec.start_at), ("end_at", spec.end_at)):
        if at is not None:
            found = list(_moment_problems(option, at))
            wrong = wrong or bool(found)
            yield from found
    if not wrong and spec.start_at is not None and spec.end_at is not None and spec.end_at <= spec.start_at:
        yield "end_at: must be later than the start"
    if spec.exclude:
        for problem in date_problems(spec.exclude.dates):
            yield f"exclude.dates: {problem}"
        if len(spec.exclude.calendars) > CALENDARS_MAX:
            yield f"exclude.calendars: has {len(spec.exclude.calendars)}; at most {CALENDARS_MAX} are allowed"
        for name in spec.exclude.calendars[:CALENDARS_MAX]:
            yield from _name_problems("exclude.calendars", name)
        if not isinstance(spec.timing, Cron):  # whose zone it is
            yield from _zone_problems("exclude.zone", spec.exclude.zone)


def calendar_problems(calendar: Calendar) -> list[str]:
    """Everything that is wrong with a calendar, one sentence each; empty when it may be stored."""
    found = list(_name_problems("name", calendar.name))
    if not calendar.dates:
        found.append("dates: must not be empty")
    return found + [f"dates: {problem}" for problem in date_problems(calendar.dates)]


def _zone_problems(option: str, zone: str) -> Iterator[str]:
    if _ZONE.fullmatch(zone) and zone not in _OWN_ZONES:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            pass
        else:
            return
    near = get_close_matches(zone[:NAME_MAX].lower(), _zones(), n=3)
    hint = f"; did you mean {' or '.join(_zones()[name] for name in near)}?" if near else ""
    yield f"{option}: {zone[:NAME_MAX]!r} is no time zone such as Europe/Berlin or UTC{hint}"


@lru_cache(maxsize=1)
def _zones() -> Mapping[str, str]:
    """All names, by themselves in small letters."""
    return {name.lower(): name for name in sorted(available_timezones() - _OWN_ZONES)}


def _moment_problems(option: str, at: datetime) -> Iterator[str]:
    if at.utcoffset() is None:
        yield f"{option}: must end with a Z or an offset such as +01:00"
    elif not datetime(1970, 1, 1, tzinfo=UTC) <= at < datetime(3000, 1, 1, tzinfo=UTC):
        yield f"{option}: must lie in the years 1970 to 2999"


def _policy_problems(spec: ScheduleSpec) -> Iterator[str]:
    yield from _number_problems("jitter_s", spec.jitter_s, 0, DURATION_MAX_S)
    yield from _limit_problems("start_deadline_s", spec.start_deadline_s)
    yield from _number_problems("buffer_max", spec.buffer_max, 1, BUFFER_MAX, kind=int)
    yield from _number_problems("catch_up_window_s", spec.catch_up_window_s, 0, DURATION_MAX_S)
    yield from _number_problems("catch_up_max", spec.catch_up_max, 1, CATCH_UP_MAX, kind=int)
    yield from _number_problems("misfire_after_s", spec.misfire_after_s, 0, DURATION_MAX_S)
    for option, kept, most in (
        ("keep_runs", spec.keep_runs, KEEP_RUNS_MAX),
        ("keep_days", spec.keep_days, KEEP_DAYS_MAX),
    ):
        if kept is not None:
            yield from _number_problems(option, kept, 1, most, kind=int)
    if spec.pause_on_failure is not None:
        yield from _number_problems("pause_on_failure", spec.pause_on_failure, 1, FAILURES_MAX, kind=int)


def _selector_problems(selector: Any) -> Iterator[str]:
    if not isinstance(selector, Mapping) or len(selector) > LABELS_MAX:
        yield f"job.selector: must be a mapping of at most {LABELS_MAX} labels of workers"
        return
    for key, value in selector.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            yield f"job.selector.{key}: must be a string; quote it"
        elif not (0 < len(key) <= NAME_MAX and len(value) <= NAME_MAX and (key + value).isprintable()):
            yield f"job.selector.{key[:NAME_MAX]}: must be printable, of at most {NAME_MAX} characters"


def _number_problems(
    option: str, value: Any, low: float, high: float, *, kind: type[int] | type[float] = float
) -> Iterator[str]:
    allowed = int if kind is int else int | float
    # Written so that what is no number at all (NaN) is out of range, too.
    if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
        yield f"{option}: must be a {'whole ' if kind is int else ''}number from {low:g} to {high:.10g}"


def _limit_problems(option: str, limit_s: float | None) -> Iterator[str]:
    if limit_s is not None:
        for problem in _number_problems(option, limit_s, DURATION_MIN_S, DURATION_MAX_S):
            yield f"{problem}, or nothing for no limit"


# -- job ---------------------------------------------------------------------------------------------


def job_problems(job: Job) -> Iterator[str]:
    """Of a job alone, as a trigger may bring one."""
    yield from _name_problems("job.task", job.task)
    yield from _name_problems("job.queue", job.queue)
    yield from _selector_problems(job.selector)
    yield from _number_problems("job.priority", job.priority, -PRIORITY_MAX, PRIORITY_MAX, kind=int)
    yield from _limit_problems("job.timeout_s", job.timeout_s)
    yield from _number_problems("job.retries.limit", job.retries.limit, 0, RETRIES_MAX, kind=int)
    yield from _number_problems("job.retries.first_s", job.retries.first_s, 0, DURATION_MAX_S)
    yield from _number_problems("job.retries.factor", job.retries.factor, 1, FACTOR_MAX)
    yield from _number_problems("job.retries.max_s", job.retries.max_s, 0, DURATION_MAX_S)
    if isinstance(job.args, list | tuple):
        yield from argument_problems("job.args", job.args)
    else:
        yield "job.args: must be a list"
    if isinstance(job.kwargs, Mapping):
        yield from argument_problems("job.kwargs", job.kwargs)
    else:
        yield "job.kwargs: must be a mapping"
