"""Schedules and job queues as people declare them: one class each, from the manifest to the run.

The same class is the entry of a manifest, the body of a request, what the database holds as JSON
(`feedq.core.values.Entry.to_json`) and what a worker is given. Nothing here connects anywhere: whether a worker
knows the task shows when it is run.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from feedq.core.moments import DEFAULT_ZONE, Bound, Moment, Zone
from feedq.core.schedule.cron import parse
from feedq.core.values import (
    NAME_MAX,
    Entry,
    Flag,
    Labels,
    Listed,
    Name,
    Number,
    Problem,
    Seconds,
    Text,
    Word,
    Wrong,
    json_problems,
    read_each,
)
from feedq.errors import InvalidInput

DEFAULT_QUEUE = "default"
PRIORITY_MAX = 100
BEAT_PREFIX = "beat:"
"""Names of the schedules behind entries of ``beat_schedule.py`` begin so, and no others."""
TIMING_KEYS = {
    "cron": ("cron", "zone"),
    "every": ("every", "anchor", "zone"),
    "at": ("at", "zone"),
}
"""Exactly one of these is given; and what goes with it."""
ZONED_KEYS = ("anchor", "start", "end", "exclude")
"""What a zone means something to beside an interval."""
TIMES_MAX = 100
"""Cron expressions or moments of one schedule."""
EVERY_MIN_S = 0.1
"""Of an interval: each tick is a row in the database."""
LIMIT_MIN_S = 0.001
"""With none at all nothing could be in time."""
ROWS_MAX = 10_000
"""Runs of one schedule that may wait, and misfires that are made up for at once: rows of one transaction."""
KEEP_RUNS_MAX = 100_000
"""More would take long to count."""
LABELS_MAX = 100
CONCURRENCY_MAX = 2**31 - 1
"""As the column holds it."""
DATES_MAX = 2_000
"""Dates and ranges of one schedule."""
YEAR_END = 3000
"""Dates lie before this year, as all times that people declare do; so there are free days after all of them."""
_DAY = timedelta(days=1)
_DATES = re.compile(r"(?P<first>\d{4}-\d{2}-\d{2})(?:\.\.(?P<last>\d{4}-\d{2}-\d{2}))?", re.ASCII)
_SECRET = re.compile(
    r"(?:.*_)?(?:password|passwd|passphrase|pwd|secret|token|api_?key|access_?key|private_?key|secret_?key"
    r"|nkey_seed|credentials?|authorization|bearer|cookie)"
)
_NAME_CHARS = 64
"""Only the end of a name matters, and a name may be as long as all arguments together."""
_REFERENCE = re.compile(r"\$\{[^{}]+\}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Begins at the colon: with the scheme before it, a long text without any would take time by its square.
_URL_PASSWORD = re.compile(r"://[^\s/@:]*:(?P<password>[^\s/@]+)@")


class Semantics(StrEnum):
    """The meaning of a worker's death for the run that it had under way."""

    AT_MOST_ONCE = "at_most_once"
    """The run is `lost`: never run again by itself."""
    AT_LEAST_ONCE = "at_least_once"
    """The run is run again elsewhere, with the next attempt."""
    TRANSACTIONAL = "transactional"
    """As at least once; and what it writes through its session commits with its completion, or not at all."""


class Overlap(StrEnum):
    """The policy about a tick that falls due while an earlier run of its schedule has not ended."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    ALLOW_ALL = "allow_all"


class CatchUp(StrEnum):
    """The policy for ticks that were not fired in time (misfires)."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class ResumePolicy(StrEnum):
    """The policy about the ticks of a pause when it ends."""

    SKIP = "skip"
    """They never were: the schedule goes on with the next tick."""
    CATCH_UP = "catch_up"
    """They are misfires, and dealt with as the schedule's catch-up policy says."""


# -- schedules -----------------------------------------------------------------------------------------


def _few_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    if len(labels) > LABELS_MAX:
        raise ValueError(f"must be a mapping of at most {LABELS_MAX} labels of workers")
    wrong = [
        (key[:NAME_MAX], f"must be printable, of at most {NAME_MAX} characters")
        for key, value in labels.items()
        if not (0 < len(key) <= NAME_MAX and len(value) <= NAME_MAX and (key + value).isprintable())
    ]
    if wrong:
        raise Wrong(wrong)
    return labels


def _is_stored(info: ValidationInfo) -> bool:
    """Whether a value comes from the database. It was checked when it was declared: rules that have changed since
    do not hide it, and a page of schedules is read in no time."""
    return info.mode == "json"


def _check_dates(dates: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if not _is_stored(info) and (wrong := date_problems(dates)):
        raise Wrong([("", what) for what in wrong])
    return tuple(dict.fromkeys(dates))


def _check_arguments(value: Any, info: ValidationInfo) -> Any:
    if not _is_stored(info) and (wrong := list(json_problems(value, secret_problem))):
        raise Wrong(wrong)
    return value


class Retries(Entry):
    """How failed and timed-out attempts are repeated."""

    shorthand = "limit"

    limit: Annotated[int, Number(0, 1_000)] = 0
    """Number of retries."""
    first: Annotated[float, Seconds()] = 10.0
    """Wait before the first retry."""
    factor: Annotated[float, Number(1, 100)] = 2.0
    """Factor by which each wait grows."""
    max: Annotated[float, Seconds()] = 600.0
    """Maximum wait."""

    def wait_s(self, *, attempt: int) -> float | None:
        """The seconds until the next attempt, after the ``attempt``-th (1 is the first) failed or timed out; None:
        the run is over."""
        assert attempt >= 1, attempt
        if attempt > self.limit:
            return None
        try:
            bound_s = self.first * self.factor ** (attempt - 1)
        except OverflowError:
            bound_s = inf if self.first > 0 else 0.0
        return min(self.max, bound_s)


class CatchUpSpec(Entry):
    """What happens to ticks that were not fired in time."""

    shorthand = "policy"

    policy: Word[CatchUp] = CatchUp.LATEST
    """Which missed ticks still fire."""
    window: Annotated[float, Seconds()] = 86_400.0
    """Older ticks do not fire."""
    max: Annotated[int, Number(1, ROWS_MAX)] = 100
    """With `all`: maximum number of ticks that fire."""


class KeptHistory(Entry):
    """How much history is kept of a schedule."""

    shorthand = "runs"

    runs: Annotated[int | None, Number(1, KEEP_RUNS_MAX, or_none=True)] = None
    """Number of newest runs to keep."""
    days: Annotated[int | None, Number(1, 3_660, or_none=True)] = None
    """Days to keep runs; `none` is `FEEDQ_RUN_RETENTION_DAYS`."""


class RequiredLabels(Entry):
    """Which workers may run a schedule's job."""

    shorthand = "required"

    required: Annotated[Labels, AfterValidator(_few_labels)] = Field({})
    """Labels that a worker must have."""


class ScheduleSpec(Entry):
    """A schedule: a job, and when it is run.

    A run has the schedule that it was made from, as its job, without what says when (`JOB_KEYS`). The schedule
    behind an entry of ``beat_schedule.py`` has no ticks of its own: the beat supplies them.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in TIMING_KEYS]})
    noun = "schedule"

    name: Name
    """Unique; up to 200 printable characters without spaces, not `beat:…`."""
    task: Name
    """Name of the Celery task to run."""
    zone: Zone = DEFAULT_ZONE
    """Time zone of `cron`, `exclude`, and times without an offset."""
    cron: Annotated[tuple[Text, ...], Listed(TIMES_MAX, as_one=True)] = ()
    """Cron expressions, such as `0 2 * * *` or `@daily`."""
    every: Annotated[float | None, Seconds(EVERY_MIN_S)] = None
    """Interval."""
    at: Annotated[tuple[Moment, ...], Listed(TIMES_MAX, as_one=True)] = ()
    """Single times, such as `2026-12-01T08:00`."""
    anchor: Moment | None = None
    """Time that `every` counts from."""
    start: Bound = None
    """No ticks before this time."""
    end: Bound = None
    """No ticks from this time on."""
    exclude: Annotated[
        tuple[Text, ...],
        AfterValidator(_check_dates),
        Listed(DATES_MAX, "dates", or_none=True),
    ] = ()
    """Days without ticks: `2026-12-24`, or `2026-12-24..2027-01-06` (both ends included)."""
    args: Annotated[list[Any], AfterValidator(_check_arguments)] = Field([])
    """Positional arguments of the task."""
    kwargs: Annotated[dict[Any, Any], AfterValidator(_check_arguments)] = Field({})
    """Keyword arguments of the task."""
    semantics: Word[Semantics] = Semantics.AT_MOST_ONCE
    """Whether a run is repeated after its worker died."""
    timeout: Annotated[float | None, Seconds(LIMIT_MIN_S, or_none=True)] = 3600.0
    """Time limit of a run."""
    retries: Retries = Retries.of({})
    """Retries of failed and timed-out runs; a number is the `limit`."""
    queue: Name = DEFAULT_QUEUE
    """Job queue, with its limits."""
    priority: Annotated[int, Number(-PRIORITY_MAX, PRIORITY_MAX)] = 0
    """Runs with a higher priority start first."""
    selector: RequiredLabels = RequiredLabels.of({})
    """Labels of the workers that may run it."""
    jitter: Annotated[float, Seconds()] = 0.0
    """Each tick fires up to this much later."""
    start_deadline: Annotated[float | None, Seconds(LIMIT_MIN_S, or_none=True)] = None
    """A run that has not started this long after it was due is not started."""
    overlap: Word[Overlap] = Overlap.SKIP
    """What happens to a tick while an earlier run has not ended."""
    buffer_max: Annotated[int, Number(1, ROWS_MAX)] = 100
    """With `buffer_all`: maximum number of waiting runs."""
    catch_up: CatchUpSpec = CatchUpSpec.of({})
    """Missed ticks; a word is the `policy`."""
    misfire_after: Annotated[float, Seconds()] = 60.0
    """A tick this late counts as missed."""
    resume: Word[ResumePolicy] = ResumePolicy.SKIP
    """What happens to the ticks of a pause."""
    pause_on_failure: Annotated[int | None, Number(1, 1_000_000, or_none=True)] = None
    """Pause the schedule after this many runs in a row failed, timed out or were lost."""
    keep: KeptHistory = KeptHistory.of({})
    """History to keep; a number is the `runs`."""
    paused: Flag | None = None
    """Whether it is paused. An existing schedule keeps its state by default."""

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, expressions: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        wrong = []
        for expression in () if _is_stored(info) else expressions:
            try:
                parse(expression, name=info.data.get("name", ""))
            except ValueError as error:
                which = f"{expression[:NAME_MAX]!r} " if len(expressions) > 1 else ""
                wrong.append(("", f"{which}{error}"))
        if wrong:
            raise Wrong(wrong)
        return expressions

    @field_validator("end")
    @classmethod
    def _check_end(cls, end: Any, info: ValidationInfo) -> Any:
        start = info.data.get("start")
        if end is not None and start is not None and end <= start:
            raise ValueError("must be later than the start")
        return end

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if str(given.get("name")).startswith(BEAT_PREFIX):
            yield (
                "name",
                f"name: {BEAT_PREFIX}… is reserved for entries of beat_schedule.py with feedq_once; choose "
                "another name",
            )
        kinds = [kind for kind in TIMING_KEYS if kind in given]
        if len(kinds) != 1:
            what = "is missing" if not kinds else f"{' and '.join(kinds)} cannot be combined"
            yield (kinds[-1] if kinds else "cron"), f"one of cron, every and at: {what}"
            return
        for key in sorted({key for keys in TIMING_KEYS.values() for key in keys} - {*TIMING_KEYS[kinds[0]]}):
            if key in given:
                yield key, f"{key}: has no effect with {kinds[0]}"
        if kinds == ["every"] and "zone" in given and not any(key in given for key in ZONED_KEYS):
            yield "zone", "zone: has no effect on an interval without an anchor, start, end or exclude"

    @model_validator(mode="after")
    def _without_idle_zone(self) -> ScheduleSpec:
        """Times are moments once they have been read: the zone is then nothing but that of cron and days."""
        if not (self.cron or self.exclude):
            vars(self)["zone"] = DEFAULT_ZONE
        return self

    def completed(self, before: ScheduleSpec | None) -> ScheduleSpec:
        paused = self.paused if self.paused is not None or before is None else before.paused
        return self.model_copy(update={"paused": paused or None})

    @property
    def is_of_beat(self) -> bool:
        return self.name.startswith(BEAT_PREFIX)


JOB_KEYS = (
    *("name", "task", "args", "kwargs", "semantics", "timeout", "retries", "queue", "priority", "selector"),
)
"""The keys of a schedule that say what is run, and how: a run has a copy of these."""
NOT_OF_JOB = tuple(key for key in ScheduleSpec.model_fields if key not in JOB_KEYS)


def job_of(
    name: str, task: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> ScheduleSpec:
    """What is run, as an entry of the beat brings it, not checked."""
    return ScheduleSpec.of({"name": name, "task": task, "args": list(args), "kwargs": dict(kwargs or {})})


def checked_job(spec: ScheduleSpec) -> ScheduleSpec:
    """A schedule of which what is run, and how, is right, whatever it says of when. Raises `InvalidInput`."""
    found = read_each(ScheduleSpec, spec.plain())
    if isinstance(found, list):
        raise InvalidInput(f"schedule {spec.name!r}: {'; '.join(what for _, what in found)}")
    return found


# -- queues --------------------------------------------------------------------------------------------


class Queue(Entry):
    """Limits of a job queue; a queue without any needs no declaration."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["rate_per_s"]}, {"required": ["concurrency"]}]}
    )
    noun = "queue"

    name: Name
    """Name that schedules give as their `queue`."""
    rate_per_s: Annotated[float | None, Number(0, 1_000_000, over=True)] = None
    """Average number of runs that may start per second."""
    burst: Annotated[float, Number(1, 1_000_000)] = 1.0
    """Runs that may start at once after a pause."""
    concurrency: Annotated[int | None, Number(1, CONCURRENCY_MAX)] = None
    """Maximum number of runs at a time, on all workers."""

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if "rate_per_s" not in given and "concurrency" not in given:
            yield (
                "name",
                f"name: {given.get('name')!r} has neither rate_per_s nor concurrency, hence no limit",
            )


# -- days that are left out ----------------------------------------------------------------------------


def first_free(texts: tuple[str, ...], day: date) -> date:
    """Return the first day, from this one on, that these dates do not leave out."""
    spans = _spans(texts)
    place = bisect_right(spans, (day, date.max)) - 1
    return spans[place][1] + _DAY if place >= 0 and day <= spans[place][1] else day


def date_problems(texts: Sequence[str]) -> list[str]:
    """Return what is wrong with a list of dates."""
    problems = []
    for text in texts:
        try:
            _read(text)
        except ValueError as error:
            problems.append(str(error))
    return problems


@lru_cache(maxsize=1_000)
def _spans(texts: tuple[str, ...]) -> list[tuple[date, date]]:
    """The first and last days that are left out in a row, in order."""
    joined: list[tuple[date, date]] = []
    for first, last in sorted(map(_read, texts)):
        if joined and first <= joined[-1][1] + _DAY:
            first, last = joined[-1][0], max(joined.pop()[1], last)
        joined.append((first, last))
    return joined


def _read(text: str) -> tuple[date, date]:
    found = _DATES.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a date; write 2026-12-24, or a range such as 2026-12-24..2027-01-06"
        )
    try:
        first, last = (date.fromisoformat(said) for said in (found["first"], found["last"] or found["first"]))
    except ValueError:
        raise ValueError(f"{text!r}: there is no such day; check the month and the day") from None
    if last < first:
        raise ValueError(f"{text!r} ends before it begins; write the earlier date first")
    if last.year >= YEAR_END:
        raise ValueError(f"{text!r} must lie before the year {YEAR_END}")
    return first, last


# -- arguments that are secrets ------------------------------------------------------------------------
#
# Arguments are stored with the schedule, copied with each run and shown to whoever may see it. So a value under a
# name such as ``password`` is refused, unless it is a reference such as ``${NAME}``. No message repeats a value.


def names_secret(key: str) -> bool:
    """Return whether the name of an argument gives it away as a secret: ``password``, ``db_token``,
    ``apiKey``."""
    words = _CAMEL.sub("_", key[-_NAME_CHARS:]).replace("-", "_").lower()
    return _SECRET.fullmatch(words) is not None


def is_secret(key: str, value: Any) -> bool:
    """Whether a value is a secret that its name gives away: no reference, and not empty."""
    is_reference = isinstance(value, str) and _REFERENCE.fullmatch(value) is not None
    return not (is_reference or value in (None, "") or isinstance(value, bool)) and names_secret(key)


def secret_problem(keys: tuple[Any, ...], value: Any) -> str | None:
    """Return what is wrong with a value under these keys, if it must not be stored as it stands."""
    if any(isinstance(key, str) and is_secret(key, value) for key in keys):
        return (
            "would be stored and shown in plain text; write a reference such as ${NAME} instead, "
            "or have the job read it from its environment"
        )
    if isinstance(value, str):
        passwords = [found["password"] for found in _URL_PASSWORD.finditer(value)]
        if not all(_REFERENCE.fullmatch(password) for password in passwords):
            return (
                "holds a password in a URL; write a reference such as ${NAME} in its place, "
                "or have the job read it from its environment"
            )
    return None
