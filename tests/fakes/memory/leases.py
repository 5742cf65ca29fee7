"""`feedq.store.base.Leases` in memory, beyond what workers ask of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from feedq.lease import Move
from feedq.model import Claim, FeedKey, LeaseState, Reason, WorkerState
from feedq.store.base import Followed
from feedq.telemetry import EventKind
from tests.fakes.memory.database import statement
from tests.fakes.memory.owner import SimulatedLeases


class MemoryLeases(SimulatedLeases):
    """The owner's side."""

    @statement
    def claimed(self, worker_id: UUID, key: FeedKey) -> Claim | None:
        lease = self._db.tables.leases.get(key[0])
        if lease is None or lease.epoch != key[1] or lease.worker_id != worker_id:
            return None
        if lease.state is not LeaseState.RUNNING:
            return None
        feed = self._db.tables.feeds[lease.feed_id]
        return Claim(feed, lease.epoch, lease.attempts, lease.failures, lease.quarantined, lease.blamed)

    @statement
    def running_of(self, tenants: Collection[str]) -> dict[str, int]:
        running = Counter(
            self._db.tables.feeds[lease.feed_id].spec.tenant
            for lease in self._db.tables.leases.values()
            if lease.state is LeaseState.RUNNING
        )
        return {tenant: running[tenant] for tenant in tenants}

    @statement
    def follow(self, key: FeedKey) -> Followed | None:
        lease = self._db.tables.leases.get(key[0])
        if lease is None or lease.epoch != key[1] or lease.worker_id is None:
            return None
        worker = self._db.tables.workers[lease.worker_id]
        if worker.state is WorkerState.GONE:
            return None
        stopping = (lease.reason or Reason.RELEASED) if lease.state is LeaseState.STOPPING else None
        remaining_s = (worker.expires_at - max(self._db.now(), worker.heartbeat_at)).total_seconds()
        return Followed(worker.id, worker.state, stopping, remaining_s)

    @statement
    def raise_epoch(self, worker_id: UUID, key: FeedKey, *, above: int) -> FeedKey | None:
        lease = self._db.matched(worker_id, key, Move.ASK_TO_STOP)  # running, that is
        if lease is None:
            return None
        raised = replace(lease, epoch=max(lease.epoch, above) + 1)
        self._db.tables.leases[lease.feed_id] = raised
        self._record(EventKind.LEASE_RAISED, (raised.feed_id, raised.epoch), worker_id)
        return (raised.feed_id, raised.epoch)
