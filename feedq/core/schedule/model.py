"""Schedules and runs as the database has them. Nothing here decides anything.

A *schedule* says which job is to be run and when. Each moment at which it falls due is a *tick*; each tick ends
in exactly one counted state. A *run* is one tick, one trigger or one tick of a backfill on its way through the
cluster: one row, whatever becomes of it.

A run waits, is claimed by a worker under a fence, and ends; or it waits again, for another attempt. The moves from
state to state are functions of the database (`feedq/control/sql/runs.sql` and `ends.sql`). An attempt is its
worker's as long as the worker lives and the fence stands: until then nobody else ends it, however long it takes,
but who cancels it on purpose. So a run ends once, whoever was killed, frozen or cut off when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from feedq.core.schedule.spec import Queue, ScheduleSpec

BACKFILL_MAX = 10_000
"""Ticks of one backfill."""


class ScheduleState(StrEnum):
    """The state of a schedule: whether it fires. A paused one keeps its watermark."""

    ACTIVE = "active"
    PAUSED = "paused"


class RunState(StrEnum):
    """The states of a run. The first three are on the way, all others final."""

    BUFFERED = "buffered"
    """Its schedule runs one at a time, and another has the turn."""
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
        return self not in UNFINISHED


UNFINISHED = (RunState.BUFFERED, RunState.WAITING, RunState.RUNNING)
"""The states from which a run can be cancelled."""


class RunKind(StrEnum):
    """The origin of a run."""

    TICK = "tick"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    BEAT = "beat"
    """A tick of an entry of ``beat_schedule.py`` that asked to be sent once (``feedq_once``)."""


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
    """A run, one row of history or on its way, as people may see it: without the arguments of its job."""

    id: int
    schedule: str
    key: str
    """Unique in its schedule: the tick's time, or ``trigger:`` and what the trigger said."""
    correlation_id: str
    """``schedule/key``, as it stands in logs."""
    kind: RunKind
    tick_at: datetime
    ticks: int
    """How many ticks this row stands for: more than one only where many were missed in a row."""
    due_at: datetime
    state: RunState
    reason: str | None
    """Passwords in URLs are masked."""
    attempt: int
    fence: int
    worker_id: UUID | None
    worker: str | None
    started_at: datetime | None
    deadline_at: datetime | None
    ended_at: datetime | None
    task: str
    queue: str
    lag_s: float | None
    """How long after it was due it began; null until it has."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be made, as `feedq_1.make_runs` is given it."""

    schedule_id: int
    kind: RunKind
    key: str
    tick_at: datetime
    due_at: datetime
    state: RunState
    """`WAITING` or `BUFFERED`; or already final: `MISSED_CATCHUP`, `SKIPPED_OVERLAP`, `MISSED_DEADLINE` (nobody
    fired it before its start deadline), or `CANCELLED` (by a later tick of the same scan)."""
    reason: str | None = None
    start_by: datetime | None = None
    ticks: int = 1
    """How many ticks it stands for, if some in a row were left out for one reason."""
    last_tick_at: datetime | None = None
    """None for a single tick."""
    folds: bool = False
    """Whether it is counted in the newest row of its schedule, if that is of the same kind."""


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
    job: ScheduleSpec
    """The schedule that it was made from, without what says when."""
    remaining_s: float | None
    """The seconds until its time-out, when it was claimed."""
    waited_s: float = 0.0
    """The seconds from when it fell due until it was claimed, on the database's clock."""
    losses: int = 0
    """How many of the attempts before ended with their worker, or with nothing kept: these use up no retries."""

    @property
    def correlation_id(self) -> str:
        return f"{self.schedule}/{self.key}"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an attempt, as its worker reports it."""

    run_id: int
    fence: int
    state: RunState
    """`SUCCEEDED`, `FAILED`, `TIMED_OUT` or `CANCELLED`; `LOST` when nothing of it was kept, though its worker
    lives (it is judged as if the worker had gone); or `WAITING`, from a worker that is stopping and has not
    begun it (it goes back as it was)."""
    reason: str | None = None
    retry_in_s: float | None = None
    """For one that failed or timed out: the seconds until its next attempt; None: it is over."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of the ends that a worker reported. All others were rejected: their runs had been taken away."""

    ended: Sequence[int]
    """Ids of runs."""
    busy: Sequence[int]
    """Runs that somebody has locked: their ends are to be told again."""


@dataclass(frozen=True, slots=True)
class Fired:
    """The result of one scan of the due schedules."""

    runs: int
    """How many runs were made that are to be run now, or when it is their turn."""
    more: bool
    """Whether there was more to do than one scan does."""
    next_in_s: float | None
    """The seconds until the next tick of any schedule, on the database's clock; None when there is none."""
    is_idle: bool = False
    """Whether no schedule has a next tick and no run waits or runs: what changes that notifies a worker."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The request of a worker with free slots for runs."""

    worker_id: UUID
    limit: int
    """Its free slots."""
    slots: int = 0
    """All of its slots."""
    fleet_slots: int = 0
    """The slots of all workers. A worker that knows of no other takes as much as it has room for."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The runs that a worker got, and when to ask again."""

    runs: Sequence[ClaimedRun]
    next_in_s: float | None
    """The seconds until a run falls due that this worker could take, or until a rate lets one start; None when
    none is known."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """A job queue with its limits, if it has some, and how many of its runs wait and run."""

    name: str
    limits: Queue | None
    waiting: int
    running: int


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
