"""`feedq.control.store.workers.Workers` in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from feedq.control.store.workers import Workers
from feedq.core.lease import Move
from feedq.core.model import (
    Heartbeat,
    LeaseState,
    Load,
    Loss,
    NewWorker,
    Reason,
    Worker,
    WorkerState,
    WorkerTarget,
    WorkerView,
)
from feedq.telemetry.event_names import EventKind
from tests.fakes.memory.tables import MemoryDatabase, statement

TARGET_EVENTS = {
    WorkerTarget.SERVING: EventKind.WORKER_UNCORDONED,
    WorkerTarget.CORDONED: EventKind.WORKER_CORDONED,
    WorkerTarget.DRAINED: EventKind.WORKER_DRAINING,
}
"""What history calls it when a person wants this of a worker."""


class MemoryWorkers(Workers):
    """Worker sessions."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    @statement
    def register(self, new: NewWorker, *, ttl_s: float) -> Worker:
        assert new.id not in self._db.tables.workers, "a session registers once"
        now = self._db.now()
        worker = Worker(
            id=new.id,
            name=new.name,
            queue=new.queue,
            capacity=new.capacity,
            host=new.host,
            pid=new.pid,
            version=new.version,
            labels=new.labels,
            state=WorkerState.ACTIVE,
            lock_key=self._db.next_lock_key(),
            started_at=now,
            heartbeat_at=now,
            expires_at=now + timedelta(seconds=ttl_s),
            job_slots=new.job_slots,
        )
        self._db.tables.workers[new.id] = worker
        self._db.registered[new.name] += 1
        self._db.stamp_alive(ttl_s / 2)
        self._db.record(EventKind.WORKER_JOINED, worker_id=new.id)
        self._db.wake()
        return worker

    @statement
    def heartbeat(self, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
        return renew(self._db, worker_id, load, ttl_s)

    @statement
    def drain(self, worker_id: UUID) -> bool:
        worker = self._alive(worker_id)
        if worker is None:
            return False
        self._db.tables.workers[worker_id] = replace(worker, state=WorkerState.DRAINING)
        self._db.free({worker_id}, Move.WITHDRAW, Reason.DRAINED)
        self._db.record(EventKind.WORKER_DRAINING, worker_id=worker_id)
        self._db.wake()
        return True

    @statement
    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
        worker = self._alive(worker_id)
        if worker is None:
            return False
        self._db.tables.workers[worker_id] = replace(worker, target_state=target)
        if worker.target_state is not target:
            self._db.record(TARGET_EVENTS[target], worker_id=worker_id)
        if target is not WorkerTarget.SERVING:
            # Not claimed yet: nobody streams it, so it may go elsewhere at once.
            drained = target is WorkerTarget.DRAINED
            self._db.free({worker_id}, Move.WITHDRAW, Reason.DRAINED if drained else Reason.RELEASED)
        self._db.wake()
        return True

    @statement
    def leave(self, worker_id: UUID) -> None:
        worker = self._alive(worker_id)
        if worker is None:
            return
        self._db.tables.workers[worker_id] = replace(worker, state=WorkerState.GONE)
        self._db.free({worker_id}, Move.LOSE_WORKER, Reason.RELEASED)
        self._db.record(EventKind.WORKER_LEFT, worker_id=worker_id)
        self._db.wake()

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

    def _alive(self, worker_id: UUID) -> Worker | None:
        worker = self._db.tables.workers.get(worker_id)
        return None if worker is None or worker.state is WorkerState.GONE else worker


def renew(db: MemoryDatabase, worker_id: UUID, load: Load, ttl_s: float) -> Heartbeat | None:
    """Plays the heartbeat statement. None: the worker was declared gone."""
    db.stamp_alive(ttl_s / 2)
    worker = db.tables.workers.get(worker_id)
    if worker is None or worker.state is WorkerState.GONE:
        return None
    db.tables.workers[worker_id] = replace(
        worker,
        heartbeat_at=db.now(),
        expires_at=db.now() + timedelta(seconds=ttl_s),
        suspected_at=None,
        load=load,
    )
    pass_at = db.tables.pass_at
    others = [
        w.load
        for w in (db.tables.workers.values() if load.sinks_down else ())
        if w.id != worker_id
        and w.state is WorkerState.ACTIVE
        and w.target_state is WorkerTarget.SERVING
        and w.capacity > 0
        and w.expires_at > db.now()
    ]
    up = {sink for sink in load.sinks_down if any(sink in o.sinks_up for o in others)}
    untried = {sink for sink in load.sinks_down if any(sink not in o.sinks_down for o in others)} - up
    pass_age_s = None if pass_at is None else (db.now() - pass_at).total_seconds()
    return Heartbeat(
        worker.state,
        bool(db.tables.held(worker_id, LeaseState.STOPPING)),
        bool(db.tables.held(worker_id, LeaseState.ASSIGNED)),
        pass_age_s,
        db.tables.active_workers,
        tuple(sorted(up)),
        tuple(sorted(untried)),
    )
