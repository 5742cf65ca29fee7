"""`feedq.store.base.Workers` in memory, beyond what workers ask of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from feedq.model import Heartbeat, LeaseState, Load, Loss, WorkerState, WorkerView
from feedq.telemetry import EventKind
from tests.fakes.memory.database import statement
from tests.fakes.memory.owner import SimulatedWorkers, renew


class MemoryWorkers(SimulatedWorkers):
    """Worker sessions."""

    @statement
    def heartbeat(self, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
        return renew(self._db, worker_id, load, ttl_s)

    @statement
    def views(self, *, gone: bool = False) -> list[WorkerView]:
        leases = self._db.tables.leases.values()
        return [
            WorkerView(
                w,
                sum(lease.worker_id == w.id for lease in leases),
                (self._db.now() - w.heartbeat_at).total_seconds(),
                sum(
                    lease.promised_to == w.id and lease.state in (LeaseState.IDLE, LeaseState.STOPPING)
                    for lease in leases
                ),
                sum(lease.weight for lease in leases if lease.worker_id == w.id),
            )
            for w in sorted(self._db.tables.workers.values(), key=lambda w: (w.name, w.started_at))
            if gone or w.state is not WorkerState.GONE
        ]

    @statement
    def report_loss(self, worker_id: UUID, loss: Loss) -> bool:
        worker = self._db.tables.workers.get(worker_id)
        if worker is None or worker.loss is not None:
            return False
        said = f"{loss.cause}: {loss.said}"
        self._db.tables.workers[worker_id] = replace(worker, loss=said)
        self._db.record(EventKind.WORKER_LOST, worker_id=worker_id, cause=loss.cause, why=said)
        if loss.feed_id is not None:
            self._db.blame(loss.feed_id, worker_id, loss, said=f"worker {worker.name} was lost: {said}")
        return True

    @statement
    def gone_among(self, worker_ids: Collection[UUID]) -> set[UUID]:
        return {worker_id for worker_id in worker_ids if self._alive(worker_id) is None}
