"""What must hold on paper whatever has happened: of leases, of workers, and of the rows that landed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from feedq.core.model import Lease, LeaseState, Reason, WorkerState
from tests.fakes.memory.tables import Tables, counted_at


def problems_of_move(lease: Lease) -> Iterator[str]:
    """A feed is not taken from its owner before it has a place, and nobody is waited for without end."""
    is_stopping = lease.state is LeaseState.STOPPING
    if is_stopping and lease.reason in (Reason.MOVED, Reason.DRAINED) and lease.promised_to is None:
        yield f"feed {lease.feed_id} is taken away and has no place to go"
    if is_stopping != (lease.stop_by is not None):
        yield f"feed {lease.feed_id} is {lease.state} until {lease.stop_by}"
    has_rest = lease.state is LeaseState.IDLE and lease.reason in (Reason.PAUSED, Reason.FAILED)
    if lease.promised_to is not None and has_rest:
        yield f"feed {lease.feed_id} ({lease.reason}) is promised to somebody"


def overfull_workers(tables: Tables) -> Iterator[str]:
    """What is on its way out does not count: it may overlap for a moment with what comes in its place."""
    counts = Counter(map(counted_at, tables.leases.values()))
    for worker in tables.workers.values():
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
