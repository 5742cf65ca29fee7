"""Schedules and job queues as people declare them: their keys, what may be wrong, and the way back.

A manifest, the command line and JSON Schema all follow from these models. Nothing here connects anywhere:
whether a worker knows the task shows when it is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator

from feedq.core.schedule.arguments import secret_problem
from feedq.core.schedule.cron import parse
from feedq.core.schedule.model import (
    BEAT_PREFIX,
    DEFAULT_QUEUE,
    PRIORITY_MAX,
    Beat,
    CatchUp,
    Cron,
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
from feedq.core.schedule.ticks import DATES_MAX, date_problems
from feedq.core.values import (
    DEFAULT_ZONE,
    NAME_MAX,
    Bound,
    Entry,
    Flag,
    Labels,
    Listed,
    Moment,
    Name,
    Number,
    Problem,
    Seconds,
    Text,
    Word,
    Wrong,
    Zone,
    json_problems,
    read_each,
)
from feedq.errors import InvalidInput

TIMING_KEYS = {
    "cron": ("cron", "zone"),
    "every": ("every", "anchor", "zone"),
    "at": ("at", "zone"),
}
"""Exactly one of these is given; and what goes with it."""
ZONED_KEYS = ("anchor", "start", "end", "exclude")
"""What a zone means something to beside an interval."""
_JOB = {
    **{key: key for key in ("task", "kwargs", "semantics", "queue", "priority")},
    "timeout": "timeout_s",
    "selector.required": "selector",
}
_RETRIES = {"limit": "limit", "first": "first_s", "factor": "factor", "max": "max_s"}
_POLICIES = {
    **{key: key for key in ("overlap", "buffer_max", "resume", "pause_on_failure")},
    "start": "start_at",
    "end": "end_at",
    "jitter": "jitter_s",
    "start_deadline": "start_deadline_s",
    "misfire_after": "misfire_after_s",
    "catch_up.policy": "catch_up",
    "catch_up.window": "catch_up_window_s",
    "catch_up.max": "catch_up_max",
    "keep.runs": "keep_runs",
    "keep.days": "keep_days",
}
"""Which field of a `Job`, of its `Retries` and of a `ScheduleSpec` each key says, where it says just that."""
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

Value = TypeVar("Value")


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


def _no_twice(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _check_dates(dates: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := date_problems(dates):
        raise Wrong([("", what) for what in wrong])
    return dates


def _plain_json(value: Any) -> Any:
    if wrong := list(json_problems(value, secret_problem)):
        raise Wrong(wrong)
    return value


class RetriesEntry(Entry):
    """How failed and timed-out attempts are repeated."""

    shorthand = "limit"

    limit: Annotated[int, Number(0, 1_000)] = 0
    """How often a run that failed or timed out is repeated."""
    first: Annotated[float, Seconds()] = 10.0
    """Wait before the first repetition."""
    factor: Annotated[float, Number(1, 100)] = 2.0
    """Each wait is longer by this."""
    max: Annotated[float, Seconds()] = 600.0
    """The longest wait."""


class CatchUpEntry(Entry):
    """What becomes of ticks that nobody fired in time."""

    shorthand = "policy"

    policy: Word[CatchUp] = CatchUp.LATEST
    """Ticks that nobody fired in time."""
    window: Annotated[float, Seconds()] = 86_400.0
    """None older are made up for."""
    max: Annotated[int, Number(1, ROWS_MAX)] = 100
    """With `all`: no more than this are made up for."""


class KeepEntry(Entry):
    """How much history is kept of a schedule."""

    shorthand = "runs"

    runs: Annotated[int | None, Number(1, KEEP_RUNS_MAX, or_none=True)] = None
    """Keep so many runs of history, the newest; or `none`."""
    days: Annotated[int | None, Number(1, 3_660, or_none=True)] = None
    """Keep history for so many days, and not as long as all others (`FEEDQ_RUN_RETENTION_DAYS`); or `none`
    for that."""


class RequireEntry(Entry):
    """Which workers may run a schedule's job."""

    shorthand = "required"

    required: Annotated[Labels, AfterValidator(_few_labels)] = Field({})
    """Labels that a worker must have to run it."""


class ScheduleEntry(Entry):
    """A schedule: a job, and when it is run."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in TIMING_KEYS]})
    noun = "schedule"

    name: Name
    """Unique. Up to 200 printable characters without spaces; not `beat:…`."""
    task: Name
    """Celery task that is run, by its name."""
    zone: Zone = DEFAULT_ZONE
    """Time zone of `cron`, of days in `exclude`, and of times without an offset."""
    cron: Annotated[tuple[Text, ...], Listed(TIMES_MAX, as_one=True)] = ()
    """Five fields such as `0 2 * * *`, or a name such as `@daily`. `H` stands for a value hashed from the
    schedule's name."""
    every: Annotated[float | None, Seconds(EVERY_MIN_S)] = None
    """An interval: `30s`, `5m`, `2h`, `1d`, or so many seconds."""
    at: Annotated[tuple[Moment, ...], Listed(TIMES_MAX, as_one=True)] = ()
    """Once, at a time such as `2026-12-01T08:00`."""
    anchor: Moment | None = None
    """The time that `every` counts from."""
    start: Bound = None
    """No tick before this time, or `none`."""
    end: Bound = None
    """No tick from this time on, or `none`."""
    exclude: Annotated[
        tuple[Text, ...],
        AfterValidator(_no_twice),
        AfterValidator(_check_dates),
        Listed(DATES_MAX, "dates", or_none=True),
    ] = ()
    """Days without a tick: `2026-12-24`, or a range such as `2026-12-24..2027-01-06`; or `none`."""
    args: Annotated[list[Any], AfterValidator(_plain_json)] = Field([])
    """Arguments of the task by position."""
    kwargs: Annotated[dict[Any, Any], AfterValidator(_plain_json)] = Field({})
    """Arguments by name."""
    semantics: Word[Semantics] = Semantics.AT_MOST_ONCE
    """Whether a run whose worker died is repeated."""
    timeout: Annotated[float | None, Seconds(LIMIT_MIN_S, or_none=True)] = 3600.0
    """Ends a run that takes longer; or `none`."""
    retries: RetriesEntry = RetriesEntry()
    """How failed runs are repeated; a number is its `limit`."""
    queue: Name = DEFAULT_QUEUE
    """Job queue, whose limits hold."""
    priority: Annotated[int, Number(-PRIORITY_MAX, PRIORITY_MAX)] = 0
    """From -100, last, to 100, first."""
    selector: RequireEntry = RequireEntry()
    """Which workers may run it."""
    jitter: Annotated[float, Seconds()] = 0.0
    """Each tick fires up to this much later."""
    start_deadline: Annotated[float | None, Seconds(LIMIT_MIN_S, or_none=True)] = None
    """A run not started this long after it was due is not started any more; or `none`."""
    overlap: Word[Overlap] = Overlap.SKIP
    """A tick while an earlier run has not ended."""
    buffer_max: Annotated[int, Number(1, ROWS_MAX)] = 100
    """With `buffer_all`: runs that may wait."""
    catch_up: CatchUpEntry = CatchUpEntry()
    """Ticks that nobody fired in time; a word is its `policy`."""
    misfire_after: Annotated[float, Seconds()] = 60.0
    """A tick fired later than this was missed."""
    resume: Word[ResumePolicy] = ResumePolicy.SKIP
    """What becomes of the ticks of a pause."""
    pause_on_failure: Annotated[int | None, Number(1, 1_000_000, or_none=True)] = None
    """So many runs in a row that failed, timed out or were lost pause the schedule; or `none`."""
    keep: KeepEntry = KeepEntry()
    """History kept of it; a number is its `runs`."""
    paused: Flag | None = None
    """Declare it, but do not fire it. Left out, a schedule that is there already keeps its own."""

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, expressions: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        wrong = []
        for expression in expressions:
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
                f"name: {BEAT_PREFIX}… is for entries of beat_schedule.py with feedq_once, and for nothing else; "
                "choose another name",
            )
        kinds = [kind for kind in TIMING_KEYS if kind in given]
        if len(kinds) != 1:
            what = "is missing" if not kinds else f"{' and '.join(kinds)} exclude each other"
            yield (kinds[-1] if kinds else "cron"), f"one of cron, every and at: {what}"
            return
        for key in sorted({key for keys in TIMING_KEYS.values() for key in keys} - {*TIMING_KEYS[kinds[0]]}):
            if key in given:
                yield key, f"{key}: means nothing beside {kinds[0]}"
        if kinds == ["every"] and "zone" in given and not any(key in given for key in ZONED_KEYS):
            yield "zone", "zone: means nothing to an interval without an anchor, start, end or exclude"

    @property
    def spec(self) -> ScheduleSpec:
        """The spec that the entry declares."""
        return ScheduleSpec(
            name=self.name,
            timing=self._timing,
            job=Job(
                args=tuple(self.args),
                retries=Retries(**_taken(self.retries, _RETRIES)),
                **_taken(self, _JOB),
            ),
            exclude=Exclusion(self.exclude, self.zone) if self.exclude else Exclusion(),
            paused=bool(self.paused),
            **_taken(self, _POLICIES),
        )

    @property
    def _timing(self) -> Timing:
        if self.cron:
            return Cron(_one_or_all(self.cron), self.zone)
        if self.at:
            return Once(_one_or_all(self.at))
        assert self.every is not None, "one of the three is there"
        return Every(self.every, self.anchor)


def schedule_entry(spec: ScheduleSpec) -> ScheduleEntry:
    """The entry that declares a schedule."""
    zone = spec.exclude.zone if spec.exclude else DEFAULT_ZONE
    keys = {"name": spec.name, "zone": zone, "exclude": spec.exclude.dates, "paused": spec.paused or None}
    keys |= _plain_timing(spec.timing) | _plain_job(spec.job) | _said(spec, _POLICIES)
    return ScheduleEntry.of(keys)


def plain_schedule(spec: ScheduleSpec) -> dict[str, Any]:
    """A schedule as it stands in a manifest; what is at its default is left out."""
    return schedule_entry(spec).plain()


def job_problems(job: Job, *, name: str = "job") -> list[str]:
    """Return what is wrong with a job alone, as a trigger or an entry of the beat brings one, and with the
    name."""
    found = read_each(ScheduleEntry, ScheduleEntry.of({"name": name, **_plain_job(job)}).plain())
    return [what for _, what in found] if isinstance(found, list) else []


def job_with(spec: ScheduleSpec, *, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Job:
    """The job of a schedule with arguments that stand in for those declared. Raises `InvalidInput`."""
    job = spec.job if kwargs is None else replace(spec.job, kwargs=kwargs)
    job = job if args is None else replace(job, args=tuple(args))
    if wrong := job_problems(job):
        raise InvalidInput(f"schedule {spec.name!r}: {'; '.join(wrong)}")
    return job


def _plain_timing(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron() as cron:
            return {"cron": cron.expressions, "zone": cron.zone}
        case Every(every_s, anchor):
            return {"every": every_s, "anchor": anchor}
        case Once() as once:
            return {"at": once.moments}
        case Beat():
            # The beat's own; nobody declares it.
            return {}


def _plain_job(job: Job) -> dict[str, Any]:
    return {"args": list(job.args), "retries": _said(job.retries, _RETRIES), **_said(job, _JOB)}


def _taken(entry: Entry, fields: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a value that these keys of a declaration say."""
    return {field: attrgetter(key)(entry) for key, field in fields.items()}


def _said(value: object, fields: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a declaration that say these fields of a value."""
    keys: dict[str, Any] = {}
    for key, field in fields.items():
        outer, dot, inner = key.partition(".")
        (keys.setdefault(outer, {}) if dot else keys)[inner or outer] = getattr(value, field)
    return keys


def _one_or_all(values: tuple[Value, ...]) -> Value | tuple[Value, ...]:
    """A list of one is as good as the one."""
    return values[0] if len(values) == 1 else values


# -- queues --------------------------------------------------------------------------------------------


class QueueEntry(Entry):
    """Limits of a job queue; a queue without any needs no declaration."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["rate_per_s"]}, {"required": ["concurrency"]}]}
    )
    noun = "queue"

    name: Name
    """The name that schedules give as their `queue`."""
    rate_per_s: Annotated[float | None, Number(0, 1_000_000, over=True)] = None
    """Runs that may start a second, on average."""
    burst: Annotated[float, Number(1, 1_000_000)] = 1.0
    """Runs that may start at once after a pause."""
    concurrency: Annotated[int | None, Number(1, CONCURRENCY_MAX)] = None
    """Runs at a time on all workers."""

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if "rate_per_s" not in given and "concurrency" not in given:
            yield (
                "name",
                f"name: {given.get('name')!r} has neither rate_per_s nor concurrency, hence no limit",
            )

    @property
    def spec(self) -> Queue:
        return Queue(**dict(self))


def queue_entry(queue: Queue) -> QueueEntry:
    return QueueEntry.of(asdict(queue))


def plain_queue(queue: Queue) -> dict[str, Any]:
    return queue_entry(queue).plain()
