"""What a worker does about runs: ticker and job slots of production, without their threads, on a fleet's clock.

A job takes as long as is drawn for it, and succeeds or fails. The ledger of a fleet knows what has really been
begun and how it ended, whatever the database was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from feedq.control.store.jobs.runs import RunStore
from feedq.core.clock import Clock
from feedq.core.schedule.model import ClaimedRun, RunState
from feedq.worker import duty
from feedq.worker.duty import Duty
from feedq.worker.jobs import context, slots, ticker
from feedq.worker.jobs.slots import Attempt, Slots
from feedq.worker.jobs.ticker import Ticker

if TYPE_CHECKING:
    from tests.fakes.worker import FakeWorker

SLOTS = 2
JOB_S = (0.2, 6.0)
FAILS = 0.2
"""How many of all attempts fail."""
_clocks: list[Clock] = []


@contextmanager
def on_fleet_clocks() -> Iterator[None]:
    """Within the block, slots and tickers go by the clock of whichever worker is having its turn."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (context, duty, slots, ticker):
            patch.setattr(module, "monotonic", lambda: _clocks[-1].monotonic())
        yield


@dataclass(slots=True)
class Ledger:
    """What was begun: each attempt by its run and fence."""

    begun: dict[int, list[int]] = field(default_factory=dict)
    """The fences under which a run was begun."""
    holders: dict[tuple[int, int], FakeJobs] = field(default_factory=dict)
    """Whose process has begun an attempt."""
    ended: dict[tuple[int, int], RunState] = field(default_factory=dict)
    """How the code of an attempt ended by itself."""
    early: list[str] = field(default_factory=list)
    """What was begun before its time."""


@dataclass(slots=True)
class _Job:
    attempt: Attempt
    work: Callable[[], None]
    ends_at: float


class FakeJobs:
    """The jobs of one worker process."""

    def __init__(self, worker: FakeWorker, runs: RunStore, ledger: Ledger, *, database: Clock) -> None:
        self._worker, self._ledger, self._clock, self._database = worker, ledger, worker.clock, database
        self.troubled_at = float("-inf")
        """When it was last in trouble, on the clock of the fleet; for ever once its process is dead."""
        self._jobs: list[_Job] = []
        _clocks[:] = [self._clock]
        rng = Random(worker.name)
        self._ticker = Ticker(runs, tell_us=lambda: self.slots.wake(), retention_days=30, rng=rng)
        self.slots = Slots(
            runs,
            self._call,
            count=SLOTS,
            session=lambda: worker.core.worker_id,
            is_trusted=worker.is_trusted,
            peers=lambda: self._ticker.peers,
            threads=self,  # type: ignore[arg-type]  # runs them one after another
            on_change=lambda: self._turn.wake(),
        )
        self.slots._rng = Random(worker.name)
        self._turn = Duty("jobs", self.slots.turn)

    def notified(self) -> None:
        self._ticker.firing.wake()
        self.slots.notified()

    def tick(self) -> None:
        _clocks[:] = [self._clock]
        now = self._clock.monotonic()
        for job in [job for job in self._jobs if job.ends_at <= now or job.attempt.context.is_cancelled]:
            self._jobs.remove(job)
            job.work()
        for each in (*self._ticker.duties, self._turn):
            each.attend()

    def run(self, work: Callable[[], None]) -> None:
        """What is to be done in a thread: the slots ask for it with the attempt."""
        attempt: Attempt = work.args[0]  # type: ignore[attr-defined]
        run = attempt.run
        takes_s = Random(f"{run.id}@{run.fence}").uniform(*JOB_S)
        self._jobs.append(_Job(attempt, work, self._clock.monotonic() + takes_s))
        self._ledger.begun.setdefault(run.id, []).append(run.fence)
        self._ledger.holders[run.id, run.fence] = self
        if run.due_at > self._database.now():
            self._ledger.early.append(f"run {run.id} is begun before its time")
        self._worker.say(f"begins run {run.id}@{run.fence} of {run.correlation_id}")

    def _call(self, run: ClaimedRun) -> None:
        context.run_context().raise_if_cancelled()
        fails = Random(f"the end of {run.id}@{run.fence}").random() < FAILS
        self._ledger.ended[run.id, run.fence] = RunState.FAILED if fails else RunState.SUCCEEDED
        self._worker.say(f"ends run {run.id}@{run.fence}: {'failed' if fails else 'succeeded'}")
        if fails:
            raise RuntimeError("drawn to fail")
