"""Runs in memory, for tests of what a worker does with them: a `RunStore` without the policies.

Fences, sessions and the conditions of each statement are as in the database; what is due, and when, the test says.
It can be away, and it can lose an answer after having done what it was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import RLock
from typing import Any
from uuid import UUID, uuid4

from feedq.control.store.jobs.runs import RunStore
from feedq.core.schedule.model import (
    ClaimedRun,
    Finish,
    Finished,
    Fired,
    Granted,
    Offer,
    RunKind,
    RunState,
)
from feedq.core.schedule.spec import ScheduleSpec
from feedq.errors import RunTakenAway, Unavailable
from tests.schedules import job_spec

AT = datetime(2026, 11, 22, 10, tzinfo=UTC)
ME = UUID(int=1)


@dataclass(slots=True)
class Row:
    """One run."""

    id: int
    job: ScheduleSpec
    state: RunState = RunState.WAITING
    fence: int = 0
    worker_id: UUID | None = None
    attempt: int = 1
    reason: str | None = None
    written: list[str] = field(default_factory=list)
    """What was committed with its success."""


class FakeSession:
    """Of a transactional job: keeps what it is told until the commit."""

    def __init__(self) -> None:
        self.written: list[str] = []


class MemoryRuns(RunStore):
    """Thread-safe."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.rows: dict[int, Row] = {}
        self.asked: Counter[str] = Counter()
        self.offers: list[Offer] = []
        self.is_away = False
        self.loses_answer_of: str | None = None
        """The method whose next answer gets lost."""
        self.fleet = (1, 2)
        """How many workers there are, and their slots."""
        self.next_in_s: float | None = None
        self.fires: list[Fired] = []
        """What the next looks find."""
        self.rejected: list[Finish] = []
        self.remaining_s: float | None = None
        self.cannot_end: set[int] = set()
        """Runs whose end cannot be stored, for a reason that nobody has thought of."""
        self.busy: set[int] = set()
        """Runs that somebody has locked."""
        self._fence = 100

    def add(self, run_id: int, task: str = "task", **job: Any) -> Row:
        with self.lock:
            row = self.rows[run_id] = Row(run_id, job_spec(task=task, **job))
            return row

    def states(self) -> dict[int, str]:
        with self.lock:
            return {row.id: row.state.value for row in self.rows.values()}

    def take_away(self, run_id: int) -> None:
        with self.lock:
            self.rows[run_id].state = RunState.CANCELLED

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        with self.lock:
            self.asked[name] += 1
            if self.is_away:
                raise Unavailable("for the test")
            yield
            if self.loses_answer_of == name:
                self.loses_answer_of = None
                raise Unavailable(f"the answer of {name} is lost, for the test")

    # -- RunStore ------------------------------------------------------------------------------------

    def fire_due(self, *, limit: int) -> Fired:
        with self._asked("fire_due"):
            return self.fires.pop(0) if self.fires else Fired(0, False, self.next_in_s)

    def claim(self, offer: Offer) -> Granted:
        with self._asked("claim"):
            self.offers.append(offer)
            waiting = [row for row in self.rows.values() if row.state is RunState.WAITING]
            takes = waiting[: offer.limit]
            return Granted([self._claimed(row, offer.worker_id) for row in takes], self.next_in_s)

    def _claimed(self, row: Row, worker_id: UUID) -> ClaimedRun:
        self._fence += 1
        row.state, row.worker_id, row.fence = RunState.RUNNING, worker_id, self._fence
        remaining_s = self.remaining_s if self.remaining_s is not None else row.job.timeout
        return ClaimedRun(
            row.id,
            row.fence,
            row.attempt,
            "s",
            f"k{row.id}",
            RunKind.TICK,
            AT,
            AT,
            row.job,
            remaining_s,
            0.25,
        )

    def finish(self, worker_id: UUID, finishes: Sequence[Finish]) -> Finished:
        with self._asked("finish"):
            matched = []
            for finish in finishes:
                if finish.run_id in self.busy:
                    continue
                row = self.rows[finish.run_id]
                if finish.run_id in self.cannot_end:
                    raise ValueError("for the test")
                if (row.fence, row.worker_id, row.state) != (finish.fence, worker_id, RunState.RUNNING):
                    self.rejected.append(finish)
                    continue
                row.state, row.reason = finish.state, finish.reason
                matched.append(row.id)
            return Finished(matched, sorted(self.busy))

    @contextmanager
    def transact(self, worker_id: UUID, run: ClaimedRun) -> Iterator[Any]:
        session = FakeSession()
        yield session
        with self._asked("commit"):
            row = self.rows[run.id]
            if (row.fence, row.worker_id, row.state) != (run.fence, worker_id, RunState.RUNNING):
                raise RunTakenAway("for the test")
            row.state, row.written = RunState.SUCCEEDED, session.written

    def held(self, worker_id: UUID) -> Mapping[int, int]:
        with self._asked("held"):
            return {
                row.id: row.fence
                for row in self.rows.values()
                if row.worker_id == worker_id and row.state is RunState.RUNNING
            }

    def take_over(self, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
        with self._asked("take_over"):
            found = [row for i in fences if (row := self.rows[i]).worker_id == was and row.fence == fences[i]]
            kept = [row for row in found if row.state is RunState.RUNNING]
            for row in kept:
                row.worker_id = worker_id
            return {row.id for row in kept}

    def taken_away(self, worker_id: UUID, fences: Mapping[int, int]) -> set[int]:
        with self._asked("taken_away"):
            held = {row.id: row.fence for row in self.rows.values() if row.state is RunState.RUNNING}
            return {run_id for run_id, fence in fences.items() if held.get(run_id) != fence}

    def expire(self, *, limit: int) -> int:
        with self._asked("expire"):
            return 0

    def workers(self) -> tuple[int, int]:
        with self._asked("workers"):
            return self.fleet

    def trim(self, *, older_than_days: int, limit: int) -> int:
        with self._asked("trim"):
            return 0


def claimed(
    job: ScheduleSpec | None = None, *, remaining_s: float | None = 60.0, run_id: int = 1
) -> ClaimedRun:
    """A run that was claimed."""
    job = job or job_spec(task="task")
    return ClaimedRun(run_id, 7, 1, "acme/report", "k1", RunKind.TICK, AT, AT, job, remaining_s)


def new_session() -> UUID:
    return uuid4()
