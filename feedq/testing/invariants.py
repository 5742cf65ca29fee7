"""What must hold of every lease on paper, whatever has happened: moves take nothing away before it has a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from feedq.model import Lease, LeaseState, Reason, WorkerState
from feedq.testing.memory.moves import counted_at
from feedq.testing.memory.tables import Tables


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
