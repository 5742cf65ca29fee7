"""`feedq.store.base.Fleet` and `ReconcilePass` in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from feedq.lease import Edit, Move, Quiet, is_dispatch_overdue, may_start, on_edit, transition
from feedq.model import Assignment, Feed, Lease, LeaseState, Reason, WorkerState
from feedq.placement import Candidate, Waiting
from feedq.store.base import ReconcilePass, Suspect
from feedq.telemetry import EventKind
from feedq.testing.memory.tables import MemoryDatabase, statement


class MemoryFleet:
    """One pass at a time; an exception inside it rolls everything back."""

    def __init__(self, database: MemoryDatabase, *, retention_days: int) -> None:
        self._db = database
        self._retention_days = retention_days

    @contextmanager
    def reconcile_pass(self) -> Iterator[ReconcilePass | None]:
        db = self._db
        db.require()
        if db.pass_open:
            yield None
            return
        before = db.tables.copy()
        db.pass_open = True
        try:
            yield MemoryPass(db, retention_days=self._retention_days)
            db.commit()
            db.tables.pass_at = db.now()
        except BaseException:
            db.tables = before
            raise
        finally:
            db.pass_open = False
        db.answer()

    @statement
    def wake(self) -> None:
        self._db.wake()


class MemoryPass:
    """One transaction: `MemoryFleet` takes it back as a whole when it fails."""

    def __init__(self, database: MemoryDatabase, *, retention_days: int) -> None:
        self._db = database
        self._retention_days = retention_days
        self.now = database.now()

    @statement
    def quiet(self, *, ttl_s: float) -> Quiet:
        since = self._db.tables.alive_since
        # The first to come back after an outage may be this pass, before any heartbeat could renew.
        if self.now - self._db.tables.alive_at > timedelta(seconds=ttl_s / 2):
            since = self.now
        return Quiet(self._db.started_at, since)

    @statement
    def suspects(self) -> list[Suspect]:
        return [
            Suspect(w, bool(self._db.sessions.get(w.id)))
            for w in self._db.tables.workers.values()
            if w.state is not WorkerState.GONE and (w.expires_at < self.now or w.suspected_at is not None)
        ]

    @statement
    def bury(self, worker_ids: Sequence[UUID]) -> int:
        workers = self._db.tables.workers
        for worker_id in worker_ids:
            if workers[worker_id].state is not WorkerState.GONE:
                workers[worker_id] = replace(workers[worker_id], state=WorkerState.GONE)
                self._db.record(EventKind.WORKER_GONE, worker_id=worker_id)
        return self._db.free(worker_ids, Move.LOSE_WORKER, Reason.WORKER_GONE)

    @statement
    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        tables = self._db.tables
        return [
            (tables.feeds[feed_id], tables.leases.setdefault(feed_id, Lease(feed_id)))
            for feed_id in sorted(tables.dirty)[:limit]
        ]

    @statement
    def apply_edits(self, edits: Sequence[tuple[int, Edit]]) -> None:
        tables = self._db.tables
        for feed_id, edit in edits:
            tables.dirty.discard(feed_id)
            lease = tables.leases[feed_id]
            match edit.move:
                case Move.WITHDRAW:
                    # This marks a removed feed dirty again: it is idle now and goes with the next pass.
                    self._db.set_idle(lease, Move.WITHDRAW, reason=edit.reason)
                case Move.ASK_TO_STOP:
                    self._ask_to_stop(lease, edit.reason)
                case None if edit.purge:
                    del tables.feeds[feed_id], tables.leases[feed_id]
                case None if edit.reason is not None:
                    self._rename(lease, edit.reason)

    @statement
    def overdue(self, *, timeout_s: float) -> list[UUID]:
        late = [
            lease
            for lease in self._db.tables.leases.values()
            if is_dispatch_overdue(lease, now=self.now, timeout_s=timeout_s)
        ]
        for lease in late:
            self._db.set_idle(lease, Move.WITHDRAW, reason=Reason.RELEASED)
            self._record(EventKind.LEASE_OVERDUE, lease)
        return [lease.worker_id for lease in late if lease.worker_id is not None]

    @statement
    def waiting(self, *, limit: int) -> list[Waiting]:
        feeds, leases = self._db.tables.feeds, self._db.tables.leases
        ending = {
            feeds[lease.feed_id].name
            for lease in leases.values()
            if lease.state is LeaseState.STOPPING and feeds[lease.feed_id].removed_at is not None
        }
        ready = [
            lease
            for _, lease in sorted(leases.items())
            if may_start(feeds[lease.feed_id], lease, now=self.now)
            and feeds[lease.feed_id].name not in ending
        ]
        return [Waiting(x.feed_id, feeds[x.feed_id].spec.weight, x.reason) for x in ready[:limit]]

    @statement
    def candidates(self) -> list[Candidate]:
        candidates = []
        for w in self._db.tables.workers.values():
            if w.state is WorkerState.ACTIVE and w.expires_at > self.now and w.suspected_at is None:
                held = [x.feed_id for x in self._db.tables.leases.values() if x.worker_id == w.id]
                load = sum(self._db.tables.feeds[feed_id].spec.weight for feed_id in held)
                candidates.append(
                    Candidate(w.id, w.queue, w.capacity, len(held), load, w.started_at, w.labels)
                )
        return candidates

    @statement
    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        assignments = []
        for feed_id, worker_id in sorted(pairs):
            lease, worker = self._db.tables.leases[feed_id], self._db.tables.workers[worker_id]
            if lease.state is not LeaseState.IDLE or worker.state is not WorkerState.ACTIVE:
                continue
            assigned = replace(
                lease,
                state=transition(lease.state, Move.ASSIGN),
                epoch=lease.epoch + 1,
                worker_id=worker_id,
                assigned_at=self._db.now(),
                retry_at=None,
                reason=None,
            )
            self._db.tables.leases[feed_id] = assigned
            self._record(EventKind.LEASE_ASSIGNED, assigned)
            assignments.append(Assignment(feed_id, assigned.epoch, worker_id, worker.queue))
        return assignments

    @statement
    def explain(self, unplaced: Sequence[tuple[int, Reason]]) -> None:
        for feed_id, reason in unplaced:
            self._rename(self._db.tables.leases[feed_id], reason)

    @statement
    def sweep(self) -> int:
        tables = self._db.tables
        repaired = 0
        for feed in tables.feeds.values():
            lease = tables.leases.get(feed.id)
            if feed.id not in tables.dirty and (lease is None or self._is_mismatched(feed, lease)):
                tables.dirty.add(feed.id)
                repaired += 1
        gone = {w.id for w in tables.workers.values() if w.state is WorkerState.GONE}
        repaired += self._db.free(gone, Move.LOSE_WORKER, Reason.WORKER_GONE)
        oldest = self.now - timedelta(days=self._retention_days)
        tables.events = [event for event in tables.events if event.at >= oldest]
        tables.swept_at = self._db.now()
        return repaired

    @statement
    def sweep_is_due(self, *, interval_s: float) -> bool:
        swept_at = self._db.tables.swept_at
        return swept_at is None or swept_at <= self.now - timedelta(seconds=interval_s)

    def _is_mismatched(self, feed: Feed, lease: Lease) -> bool:
        edit = on_edit(feed, lease)
        if lease.state is LeaseState.IDLE:
            # Backoff and failures are what an edit would clear; a sweep is no edit.
            held_back = lease.reason in (Reason.BACKOFF, Reason.FAILED)
            is_renamed = edit.reason not in (None, lease.reason)
            return edit.purge or lease.reason is None or (is_renamed and not held_back)
        return edit.move is not None

    def _rename(self, lease: Lease, reason: Reason) -> None:
        if lease.state is LeaseState.IDLE:
            attempts = 0 if reason is Reason.NEW else lease.attempts
            renamed = replace(lease, reason=reason, retry_at=None, attempts=attempts)
            self._db.tables.leases[lease.feed_id] = renamed

    def _ask_to_stop(self, lease: Lease, reason: Reason | None) -> None:
        stopping = replace(lease, state=transition(lease.state, Move.ASK_TO_STOP), reason=reason)
        self._db.tables.leases[lease.feed_id] = stopping
        self._record(EventKind.STOP_REQUESTED, stopping, reason=reason.value if reason else "")
        assert lease.worker_id is not None
        self._db.ring([lease.worker_id])

    def _record(self, kind: EventKind, lease: Lease, **detail: str) -> None:
        self._db.record(kind, feed_id=lease.feed_id, worker_id=lease.worker_id, epoch=lease.epoch, **detail)
