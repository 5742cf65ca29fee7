"""What must hold on paper whatever has happened: of leases, of workers, and of the rows that landed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from feedq.core.model import LeaseState, Reason, WorkerState
from feedq.core.schedule.model import UNFINISHED


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as it stands in its table."""

    feed_id: int
    state: LeaseState
    worker_id: UUID | None
    epoch: int
    reason: Reason | None
    promised_to: UUID | None
    due_at: datetime | None
    goes_on: bool
    """Whether the feed is to run, as the latest pass has seen it."""

    @property
    def counted_at(self) -> UUID | None:
        """The worker that it counts for: the one that it is promised to, else the one that has it."""
        if self.promised_to is not None and self.state in (LeaseState.IDLE, LeaseState.STOPPING):
            return self.promised_to
        return self.worker_id


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker session as it stands in its table."""

    id: UUID
    name: str
    state: WorkerState
    capacity: int


class RunRow(NamedTuple):
    """A run as it stands in its table."""

    id: int
    schedule_id: int
    kind: str
    state: str
    fence: int
    losses: int
    ticks: int
    reason: str | None

    @property
    def has_ended(self) -> bool:
        return self.state not in UNFINISHED


def problems_of_move(lease: LeaseRow) -> Iterator[str]:
    """A feed is not taken from its owner before it has a place, and nobody is waited for without end."""
    is_stopping = lease.state is LeaseState.STOPPING
    if is_stopping and lease.reason in (Reason.MOVED, Reason.DRAINED) and lease.promised_to is None:
        yield f"feed {lease.feed_id} is taken away and has no place to go"
    # Of a feed that is to go nowhere nobody takes the place of the owner, which is waited for as long as it lives.
    has_time = lease.state is LeaseState.ASSIGNED or (is_stopping and lease.goes_on)
    if lease.due_at is None if has_time else lease.state is LeaseState.RUNNING and lease.due_at is not None:
        yield f"feed {lease.feed_id} is {lease.state} until {lease.due_at}"
    has_rest = lease.state is LeaseState.IDLE and lease.reason in (Reason.PAUSED, Reason.FAILED)
    if lease.promised_to is not None and has_rest:
        yield f"feed {lease.feed_id} ({lease.reason}) is promised to somebody"


def overfull_workers(leases: Iterable[LeaseRow], workers: Iterable[WorkerRow]) -> Iterator[str]:
    """What is on its way out does not count: it may overlap for a moment with what comes in its place."""
    counts = Counter(lease.counted_at for lease in leases)
    for worker in workers:
        count = counts[worker.id]
        if worker.state is not WorkerState.GONE and count > worker.capacity:
            yield f"worker {worker.name} has been given {count} feeds and can hold {worker.capacity}"


def problems_of_rows(feed_id: int, rows: Sequence[int], *, seen: int) -> Iterator[str]:
    """Of those after the first ``seen``, which have been looked at before."""
    if list(rows[seen:]) != list(range(seen + 1, len(rows) + 1)):
        yield f"feed {feed_id} landed {summary(rows)}: lost, doubled or out of order"


def summary(rows: Sequence[int]) -> str:
    """Rows as the runs of consecutive numbers they consist of, the last few of them."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return " ".join(f"{first}-{last}" for first, last in runs[-5:])
