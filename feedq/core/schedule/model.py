"""The values of schedules, runs and job queues. Nothing here decides anything.

A *schedule* says which job is to be run and when. Each moment at which it falls due is a *tick*; each tick ends
in exactly one counted state. A *run* is one tick, one trigger or one tick of a backfill on its way through the
cluster: one row, whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import AwareDatetime, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""What is stored is read as it is: neither a text nor a truth value is a number, and nothing is ignored."""

STEAL_AFTER_S = 1.0
"""A due run is started by any worker with a free slot once its own has not for this long: it is dead, or busy."""
AGEING_S = 1.0
"""The seconds of waiting that make up for a point of priority."""

DEFAULT_QUEUE = "default"
BACKFILL_MAX = 10_000
"""Ticks of one backfill."""
PRIORITY_MAX = 100
BEAT_PREFIX = "beat:"
"""Names of the schedules behind entries of ``beat_schedule.py`` begin so, and no others."""


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
    """The policy about ticks that nobody fired in time (misfires)."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class ResumePolicy(StrEnum):
    """The policy about the ticks of a pause when it ends."""

    SKIP = "skip"
    """They never were: the schedule goes on with the next tick."""
    CATCH_UP = "catch_up"
    """They are misfires, and dealt with as the schedule's catch-up policy says."""


class ScheduleState(StrEnum):
    """The state of a schedule: whether it fires. A paused one keeps its watermark."""

    ACTIVE = "active"
    PAUSED = "paused"


class RunState(StrEnum):
    """The states of a run. The first two are on the way, all others final; see `feedq.core.schedule.outcome`."""

    WAITING = "waiting"
    """Not started: it is due now, or at `due_at`."""
    RUNNING = "running"
    """Claimed by a worker, under a fence."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    SKIPPED_OVERLAP = "skipped_overlap"
    MISSED_DEADLINE = "missed_deadline"
    MISSED_CATCHUP = "missed_catchup"

    @property
    def is_final(self) -> bool:
        return self not in (RunState.WAITING, RunState.RUNNING)


class RunKind(StrEnum):
    """The origin of a run."""

    TICK = "tick"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    BEAT = "beat"
    """A tick of an entry of ``beat_schedule.py`` that asked to be sent once (``feedq_once``)."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields, or a name such as ``@daily``; ``H`` stands for a value hashed from the schedule's name."""

    __pydantic_config__: ClassVar = STRICT

    expression: Annotated[str | tuple[str, ...], Field(alias="cron")]
    """Several: a tick whenever one of them has one."""
    zone: str = "UTC"

    @property
    def expressions(self) -> tuple[str, ...]:
        return (self.expression,) if isinstance(self.expression, str) else self.expression


@dataclass(frozen=True, slots=True)
class Every:
    """A timing of every so many seconds since ``anchor``: whole multiples, whatever a run takes."""

    __pydantic_config__: ClassVar = STRICT

    every_s: float
    anchor: AwareDatetime | None = None
    """The start; None: the epoch of Unix, so that every 60 s is on the minute."""


@dataclass(frozen=True, slots=True)
class Once:
    """A timing of one moment, or of several, and never again."""

    __pydantic_config__: ClassVar = STRICT

    at: AwareDatetime | tuple[AwareDatetime, ...]

    @property
    def moments(self) -> tuple[datetime, ...]:
        return (self.at,) if isinstance(self.at, datetime) else self.at


@dataclass(frozen=True, slots=True)
class Beat:
    """The timing of a schedule behind an entry of ``beat_schedule.py``: it has no ticks of its own, the beat
    brings them."""

    __pydantic_config__: ClassVar = STRICT

    beat: Literal[True] = True


Timing = Cron | Every | Once | Beat


@dataclass(frozen=True, slots=True)
class Retries:
    """Failed and timed-out attempts are repeated this often, waiting longer each time."""

    __pydantic_config__: ClassVar = STRICT

    limit: int = 0
    first_s: float = 10.0
    factor: float = 2.0
    max_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    """The job that is run: a Celery task by its name, with JSON arguments; and how."""

    __pydantic_config__: ClassVar = STRICT

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    semantics: Semantics = Semantics.AT_MOST_ONCE
    timeout_s: float | None = 3600.0
    retries: Retries = Retries()
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    """From -100, last, to 100, first. Waiting makes up for it: see `AGEING_S`."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a worker must have to run it."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Days on which a schedule has no ticks: see `feedq.core.schedule.ticks`."""

    __pydantic_config__: ClassVar = STRICT

    dates: tuple[str, ...] = ()
    """Such as ``2026-12-24`` or ``2026-12-24..2027-01-06``."""
    zone: str = "UTC"
    """The zone on whose clock a day begins and ends."""

    def __bool__(self) -> bool:
        return bool(self.dates)


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """A schedule as people declare it."""

    name: str
    timing: Timing
    job: Job
    jitter_s: float = 0.0
    """Each tick fires up to this much later, always before the next one; the same on whichever node."""
    start_deadline_s: float | None = None
    """A run not started this long after it was due is not started any more."""
    overlap: Overlap = Overlap.SKIP
    buffer_max: int = 100
    """The most runs that may wait with `Overlap.BUFFER_ALL`; a tick beyond them is skipped."""
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_window_s: float = 86_400.0
    """Misfires older than this are not made up for."""
    catch_up_max: int = 100
    """The most misfires that are made up for with `CatchUp.ALL`, the latest of them."""
    misfire_after_s: float = 60.0
    """A tick fired this much late is no misfire yet."""
    resume: ResumePolicy = ResumePolicy.SKIP
    pause_on_failure: int | None = None
    """The number of runs in a row that failed, timed out or were lost that pauses the schedule."""
    paused: bool = False
    start_at: AwareDatetime | None = None
    """The moment before which it has no ticks."""
    end_at: AwareDatetime | None = None
    """The moment from which on it has no ticks."""
    exclude: Exclusion = Exclusion()
    keep_runs: int | None = None
    """The number of runs of history that are kept, the newest; None: as many as there are."""
    keep_days: int | None = None
    """The days that history is kept; None: as all of the installation's, ``FEEDQ_RUN_RETENTION_DAYS``."""


@dataclass(frozen=True, slots=True)
class UnreadableSpec:
    """Stands in for a declaration that this release cannot read."""

    why: str
    paused: bool
    """Whether it was declared as paused."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A declared schedule, with where it stands."""

    id: int
    spec: ScheduleSpec
    state: ScheduleState
    paused_until: datetime | None
    pause_reason: str | None
    generation: int
    next_tick_at: datetime | None
    """The watermark: the first tick that has not been fired. It only grows, and None is the end of all ticks."""
    next_fire_at: datetime | None
    """The moment of that tick with its jitter."""
    failures: int
    """Runs in a row that did not succeed."""
    created_at: datetime
    updated_at: datetime
    unreadable: str | None = None
    """Why this release cannot read the declaration; `spec` then says no more than is sure. None when it can."""

    @property
    def version(self) -> tuple[int, int]:
        return self.id, self.generation


@dataclass(frozen=True, slots=True)
class Run:
    """A run: one row of history, or on its way."""

    id: int
    schedule_id: int
    schedule: str
    kind: RunKind
    key: str
    """Unique in its schedule: the tick's time, or ``trigger:`` and what the trigger said. The correlation id in
    logs is ``schedule/key``."""
    tick_at: datetime
    ticks: int
    """How many ticks this row stands for: more than one only where many were missed in a row."""
    due_at: datetime
    state: RunState
    reason: str | None
    attempt: int
    fence: int
    worker_id: UUID | None
    worker: str | None
    started_at: datetime | None
    deadline_at: datetime | None
    ended_at: datetime | None
    job: Job


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that a worker may run, and nobody else, as long as its fence stands."""

    id: int
    fence: int
    attempt: int
    schedule: str
    key: str
    kind: RunKind
    tick_at: datetime
    due_at: datetime
    job: Job
    remaining_s: float | None
    """The seconds until its time-out, when it was claimed."""
    waited_s: float = 0.0
    """The seconds from when it fell due until it was claimed, on the database's clock."""

    @property
    def correlation_id(self) -> str:
        return f"{self.schedule}/{self.key}"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an attempt, as its worker tells it."""

    run_id: int
    fence: int
    state: RunState
    """`SUCCEEDED`, `FAILED`, `TIMED_OUT` or `CANCELLED`; `LOST` when nothing of it was kept, though its worker
    lives (it is judged as if the worker had gone); or `WAITING`, from a worker that is stopping and has not
    begun it (it goes back as it was)."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fired:
    """The result of one scan of the due schedules."""

    segments: Sequence[int]
    """The segment of each run that was made and may start now."""
    more: bool
    """Whether there was more to do than one scan does."""
    next_in_s: float | None
    """The seconds until the next tick of any schedule, on the database's clock; None when there is none."""
    is_idle: bool = False
    """Whether no schedule has a next tick and no run waits or runs: what changes that notifies a worker."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of a worker with free slots: what it asks for."""

    worker_id: UUID
    limit: int
    segments: Sequence[int]
    """The worker's own segments: runs of these it takes at once, all others once they have waited
    ``steal_after_s``."""
    steal_after_s: float = STEAL_AFTER_S


@dataclass(frozen=True, slots=True)
class Granted:
    """The runs that a worker got, and when to ask again."""

    runs: Sequence[ClaimedRun]
    next_in_s: float | None
    """The seconds until a run falls due that this worker could take, or until a rate lets one start; None when
    none is known."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Limits of a job queue; a queue without any needs no declaration."""

    name: str
    rate_per_s: float | None = None
    burst: float = 1.0
    concurrency: int | None = None


QueueDepth = tuple[Queue, int, int]
"""A queue with its limits, and how many of its runs wait and run."""


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule with what it is doing, for lists."""

    schedule: Schedule
    last: Run | None
    """The newest run that does not wait: it has begun, or was decided."""
    waiting: int
    running: int
    unserved: str | None = None
    """Why no worker can run it, if it was asked for one schedule."""
