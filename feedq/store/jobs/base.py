"""What the control database can do about schedules and runs, as interfaces.

One implementation, `feedq.store.jobs.postgresql.PostgresJobs`: the guarantees are the database's own (unique
keys, row locks, its clock), so a store in memory would prove nothing about them. Every method is one or a few
short transactions, each of which leaves nothing half done. All of them block and may raise
`feedq.errors.Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from sqlalchemy.orm import Session

from feedq.schedule.model import (
    Calendar,
    ClaimedRun,
    Finish,
    Hint,
    Job,
    Queue,
    Run,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
    UnreadableSpec,
)


class ScheduleStore(Protocol):
    """Desired state. Edits look forward only: they reach no tick that has been fired, and fire none that is
    past. What needs a declaration that this release cannot read raises `Unreadable`; to edit, pause, purge and
    remove such a schedule, or to list it with others, does not."""

    def add(self, spec: ScheduleSpec) -> Schedule:
        """Its first tick is the first after now. Raises `Conflict` when a schedule of that name exists."""

    def edit(self, name: str, spec: ScheduleSpec) -> Schedule:
        """Replace the declaration; an unchanged one keeps generation and watermark. With another timing the
        watermark goes to the first tick after now. ``spec.paused`` pauses. Without it a pause ends that was
        declared, or that firing made because it could decide nothing; never one by hand or by failures. Raises
        `NotFound`."""

    def remove(self, name: str) -> Schedule:
        """With its waiting runs cancelled; a running one may end, and its history stays until retention. One
        declared anew under the name is another schedule. Raises `NotFound`."""

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> Schedule: ...

    def resume(self, name: str) -> Schedule:
        """Its failures in a row are forgotten."""

    def trigger(self, name: str, *, key: str | None = None, job: Job | None = None) -> Run:
        """A run now, even of a paused schedule, under its overlap policy: the run may come back as
        `SKIPPED_OVERLAP`. A key that was used before gives the run of then. ``job`` stands in for its own."""

    def backfill(self, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        """Runs for these ticks, one after another, at most `BACKFILL_MAX`. Returns how many were made and how
        many ticks had a run already."""

    def purge(self, name: str) -> int:
        """Cancel its waiting runs. Returns how many."""

    def cancel_run(self, run_id: int) -> Run:
        """Waiting or running; the worker of a running one is told. Raises `NotFound`, or `Conflict` when it has
        ended."""

    def once(self, entry: str, key: str, tick_at: datetime, job: Job) -> bool:
        """Enqueue a tick of a beat entry, unless that was done; False then. The schedule behind it,
        ``beat:entry``, is made as needed, and shown with all others. While that is paused nothing is enqueued."""

    def get(self, name: str) -> Schedule: ...

    def view(self, name: str) -> ScheduleView: ...

    def views(
        self, *, prefix: str = "", after: str = "", state: ScheduleState | None = None, limit: int = 1_000
    ) -> list[ScheduleView]:
        """By name, a page at a time: those whose name begins with ``prefix`` and comes after ``after``, in any
        ``state`` or in this. One that this release cannot read is among them, marked as `unreadable`."""

    def urgent(self, *, failing: Sequence[str] = (), limit: int) -> list[ScheduleView]:
        """Those to look at first: that fail, that failures have paused, that are late, that run; then the next to
        fire. However many there are, a few are read: of failures the newest, and those of the schedules that are
        named as ``failing``."""

    def unserved(self, names: Collection[str]) -> Mapping[str, str]:
        """Which of these schedules no worker can serve, because none knows the task or has the labels, each with
        a sentence that says so. None while no worker runs jobs."""

    def specs(self) -> dict[str, ScheduleSpec | UnreadableSpec]:
        """All declared ones by name, for `feedq apply`; without those behind beat entries."""

    def runs(
        self, name: str | None = None, *, states: Collection[RunState] = (), limit: int = 50
    ) -> list[Run]:
        """Newest first."""

    def run(self, run_id: int) -> Run: ...

    def counts(self, name: str) -> Mapping[RunState, int]:
        """Ticks and triggers by state, those within retention; a row that stands for many counts as many."""


class Queues(Protocol):
    """Limits of job queues."""

    def set(self, queue: Queue) -> None: ...

    def remove(self, name: str) -> None: ...

    def all(self) -> list[Queue]: ...

    def depths(self) -> Mapping[str, tuple[int, int]]:
        """Runs waiting and running, by queue."""


class Calendars(Protocol):
    """Days that schedules leave out."""

    def set(self, calendar: Calendar) -> int:
        """Declare a calendar, or change it. The schedules that leave it out are timed anew, from now on; a tick
        that is due keeps its place. Returns how many. Raises `InvalidInput`."""

    def remove(self, name: str) -> None:
        """Raises `NotFound`, `Conflict` when a schedule leaves it out."""

    def all(self) -> list[Calendar]:
        """By name."""

    def users(self) -> Mapping[str, int]:
        """How many schedules leave it out, by calendar; without those that none does."""


@dataclass(frozen=True, slots=True)
class Fired:
    """What one look at the due schedules did."""

    hints: Sequence[Hint]
    """Runs that may start now."""
    more: bool
    """Whether there was more to do than one look does."""
    next_in_s: float | None
    """Until the next tick of any schedule, on the database's clock; None when there is none."""
    is_idle: bool = False
    """Whether no schedule has a next tick and no run waits or runs: what changes that rings a worker."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker asks for when it has free slots."""

    worker_id: UUID
    limit: int
    segments: Sequence[int]
    """Its own: runs of these it takes at once, all others once they have waited ``steal_after_s``."""
    steal_after_s: float
    runs: Sequence[int] = ()
    """Runs that it was told of: taken whichever segment they are of."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a worker got, and when to ask again."""

    runs: Sequence[ClaimedRun]
    next_in_s: float | None
    """Until a run falls due that this worker could take, or until a rate lets one start; None when none is
    known."""


@dataclass(frozen=True, slots=True)
class JobWorker:
    """A live worker that runs jobs."""

    id: UUID
    name: str
    queue: str
    """The broker queue of its own."""
    slots: int


class Runs(Protocol):
    """Firing, claiming and finishing."""

    def fire_due(self, *, limit: int) -> Fired:
        """Fire what is due of at most ``limit`` schedules: in one transaction the ticks become rows and each
        watermark moves on. Any number of nodes may do this at once; they share the work. Idle, it reads one
        index and writes nothing."""

    def claim(self, offer: Offer) -> Granted:
        """Take runs to run, each under a new fence and in state running, before any of their code runs. Run
        ids, attempts, deadlines, overlap, rate and concurrency are judged here."""

    def finish(self, worker_id: UUID, finishes: Sequence[Finish]) -> list[int]:
        """End attempts, or have them repeated. Returns the ids that matched their fence; the others had been
        taken away, which is written down as an event `run_finish_rejected`."""

    def transact(self, worker_id: UUID, run: ClaimedRun) -> AbstractContextManager[Session]:
        """A session for a `transactional` job. Leaving the block commits what it wrote together with the success
        of the run, in one transaction; raises `RunTakenAway` and commits nothing when the fence has passed,
        which is written down as by `finish`. An exception within rolls back and passes through: the caller
        finishes the run as failed. Raises `JobSessionLost` when the session was cut off, or could not be had:
        nothing was kept, and the caller finishes the run as lost."""

    def held(self, worker_id: UUID) -> Mapping[int, int]:
        """What the database thinks this worker runs: run id → fence. A claim whose answer was lost is found
        here."""

    def due(self, offer: Offer) -> list[Hint]:
        """What `claim` would look at, and nothing taken: for pools that run jobs only when a message says so."""

    def taken_away(self, worker_id: UUID, fences: Mapping[int, int]) -> set[int]:
        """Which of these runs (id → fence) are no longer this worker's."""

    def overdue(self, worker_id: UUID, *, by_s: float) -> Mapping[int, int]:
        """Runs of this worker whose time was up ``by_s`` ago, and of whose end it has not told: run id → fence.
        Only their worker may end them."""

    def take_over(self, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
        """Make runs (id → fence) of a session of this process that was declared gone this session's, as far as
        nobody has taken them away. Returns those that are."""

    def expire(self, *, limit: int) -> int:
        """Free the runs of workers that are gone: lost, or waiting again, as their semantics say. A run of a
        worker that lives, or may be about to say so, is left alone, however late. Returns how many."""

    def workers(self) -> list[JobWorker]:
        """Those that are serving, by name. `feedq.schedule.spread` says which segments each has."""

    def trim(self, *, older_than_days: int, limit: int) -> int:
        """Delete ended runs of this age, or as their schedules keep them, and removed schedules with none left.
        Returns how many runs; ``limit`` or more when there are others."""


class JobStore(Protocol):
    """All of it, on one control database."""

    @property
    def schedules(self) -> ScheduleStore: ...
    @property
    def calendars(self) -> Calendars: ...
    @property
    def queues(self) -> Queues: ...
    @property
    def runs(self) -> Runs: ...


Wake = Callable[[], None]
BACKFILL_MAX = 10_000
"""Ticks of one backfill."""
