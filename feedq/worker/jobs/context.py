"""The context of a run: what the code of a job may ask of it by `feedq.run_context`.

A run ends for its worker in three ways that the job does not choose: its time-out, a cancellation, or the loss
of the worker's lease. Python cannot stop a thread, so the job is told, and has to ask for it: by
`RunContext.is_cancelled` between two steps, or by waiting with `RunContext.wait`. Whatever a job does beyond
that counts for nothing: its run has ended, and its end is not heard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from math import inf
from threading import TIMEOUT_MAX, Event
from time import monotonic
from typing import TYPE_CHECKING

from feedq.core.schedule.model import ClaimedRun, RunKind
from feedq.errors import InvalidInput, RunCancelled

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

TIMED_OUT = "its time is up"


class RunContext:
    """The context of one attempt at a run, as its job sees it. Thread-safe, but for `session`."""

    def __init__(self, run: ClaimedRun) -> None:
        self._run = run
        self._ends_at = inf if run.remaining_s is None else monotonic() + run.remaining_s
        self._cancelled = Event()
        self._why: str | None = None
        self._session: Session | None = None

    @property
    def schedule(self) -> str:
        """The name of the schedule."""
        return self._run.schedule

    @property
    def key(self) -> str:
        """The run key, unique in its schedule: the tick in UTC, ``2026-11-22T10:00:00Z``, or what the trigger
        said: ``trigger:invoice-4711``."""
        return self._run.key

    @property
    def correlation_id(self) -> str:
        """``schedule/key``: the same for every attempt, and as ``run`` in each log line that the job writes."""
        return self._run.correlation_id

    @property
    def kind(self) -> RunKind:
        return self._run.kind

    @property
    def task(self) -> str:
        """The name of the Celery task."""
        return self._run.job.task

    @property
    def tick_at(self) -> datetime:
        """The tick, an aware moment in UTC: what the run is *for*, however late it starts."""
        return self._run.tick_at

    @property
    def due_at(self) -> datetime:
        """The moment at which this attempt fell due: the tick with its jitter, or the end of the wait before a
        retry."""
        return self._run.due_at

    @property
    def attempt(self) -> int:
        """The number of this attempt, 1 for the first one."""
        return self._run.attempt

    @property
    def fence(self) -> int:
        """A number that grows with every claim in the cluster: give it to other systems that can compare it, and
        have them refuse a smaller one."""
        return self._run.fence

    @property
    def remaining_s(self) -> float | None:
        """The seconds until the time-out, never less than 0; None without one."""
        return None if self._ends_at == inf else max(0.0, self._ends_at - monotonic())

    @property
    def session(self) -> Session:
        """The session of a `transactional` job, on the control database: what is written with it commits together
        with the success of the run, or not at all. Do not commit or roll back by yourself.

        Raises:
            InvalidInput: the schedule's semantics are others.
        """
        if self._session is None:
            raise InvalidInput(
                f"run {self.correlation_id}: only a job with `semantics: transactional` has a session; declare "
                "the schedule so, or open a session of your own"
            )
        return self._session

    @property
    def is_cancelled(self) -> bool:
        """Whether the job should stop: cancelled, timed out, or taken away from this worker."""
        return self._cancelled.is_set() or self.is_overdue

    @property
    def why(self) -> str | None:
        """The reason why the run is cancelled; None while it is not."""
        return self._why or (TIMED_OUT if self.is_overdue else None)

    def raise_if_cancelled(self) -> None:
        """Raises `feedq.errors.RunCancelled` when the job should stop."""
        if self.is_cancelled:
            raise RunCancelled(f"run {self.correlation_id}: {self.why}")

    def wait(self, seconds: float) -> bool:
        """Sleep so long, or until the job should stop, whichever comes first. Returns whether it should."""
        until = min(monotonic() + seconds, self._ends_at)
        while not self._cancelled.is_set() and (left_s := until - monotonic()) > 0:
            self._cancelled.wait(min(left_s, TIMEOUT_MAX))
        return self.is_cancelled

    # -- for whoever runs it -------------------------------------------------------------------------

    @property
    def ends_at(self) -> float:
        """The moment at which its time is up, on the monotonic clock; infinity without a time-out."""
        return self._ends_at

    @property
    def is_overdue(self) -> bool:
        return monotonic() >= self._ends_at

    def cancel(self, why: str) -> None:
        """Tell the job to stop. The first reason stands."""
        self._why = self._why or why
        self._cancelled.set()

    @contextmanager
    def within(self, session: Session) -> Iterator[None]:
        """Have this session for the length of the block."""
        self._session = session
        try:
            yield
        finally:
            self._session = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be what `run_context` returns for the length of the block, in this thread."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[RunContext | None] = ContextVar("feedq_run", default=None)


def run_context() -> RunContext:
    """The run that the calling code belongs to.

    A thread that a job starts by itself belongs to none, unless it is given the context
    (`contextvars.copy_context`).

    Raises:
        InvalidInput: called outside of a run.
    """
    context = _current.get()
    if context is None:
        raise InvalidInput(
            "feedq.run_context() was called outside of a run: only a task that a feedq schedule runs has one, and "
            "only in the thread that it was called in"
        )
    return context
