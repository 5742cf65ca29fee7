"""`feedq.control.store.passes.Fleet` and `ReconcilePass` in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from feedq.control.store.passes import Fleet, ReconcilePass, SuspectWorker
from feedq.core.lease import Edit, Move, OutageGrace, as_of, on_edit, transition
from feedq.core.model import Assignment, Feed, Lease, LeaseState, Reason, WorkerState, WorkerTarget
from feedq.core.placement.base import NO_EXPERIENCE, EligibleWorker, Experience, Held, Transfer, WaitingFeed
from feedq.telemetry.event_names import EventKind
from tests.fakes.memory import counts
from tests.fakes.memory.decisions import is_dispatch_overdue, may_start
from tests.fakes.memory.tables import MemoryDatabase, statement

UNPLACED = (Reason.NO_CAPACITY, Reason.NO_MATCH)

WEIGHT_STEP = 0.1


class MemoryFleet(Fleet):
    """Makes one pass at a time; an exception inside it rolls everything back."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    @contextmanager
    def reconcile_pass(self, *, measured_load: float = 0.0) -> Iterator[ReconcilePass | None]:
        db = self._db
        db.require()
        if db.pass_open:
            yield None
            return
        db.pass_open = True
        try:
            with db.transaction():
                yield MemoryPass(db, measured_load=measured_load)
                workers = db.tables.workers.values()
                db.tables.pass_at = db.now()
                db.tables.active_workers = sum(
                    w.state is WorkerState.ACTIVE and w.capacity > 0 for w in workers
                )
        finally:
            db.pass_open = False
        db.answer()

    @statement
    def wake(self) -> None:
        self._db.wake()


class MemoryPass(ReconcilePass):
    """Plays a pass as one transaction."""

    def __init__(self, database: MemoryDatabase, *, measured_load: float) -> None:
        self._db = database
        self._measured = measured_load
        self.now = database.now()
        pass_at, swept_at = database.tables.pass_at, database.tables.swept_at
        database.tables.swept_at = swept_at and min(swept_at, self.now)
        if pass_at is not None and pass_at > self.now:
            self._shorten_delays(pass_at - self.now)

    def _shorten_delays(self, by: timedelta) -> None:
        """Shortens delays after the clock was put back: see `feedq.control.store.passes`."""
        tables, now = self._db.tables, self.now
        for lease in list(tables.leases.values()):
            tables.leases[lease.feed_id] = replace(
                lease,
                retry_at=lease.retry_at - by if lease.retry_at and lease.retry_at > now else lease.retry_at,
                stop_by=lease.stop_by - by if lease.stop_by and lease.stop_by > now else lease.stop_by,
                assigned_at=lease.assigned_at and min(lease.assigned_at, now),
                moved_at=lease.moved_at and min(lease.moved_at, now),
            )

    @statement
    def outage_grace(self, *, ttl_s: float) -> OutageGrace:
        # The first to come back after an outage may be this pass, before any heartbeat could renew.
        return OutageGrace(self._db.service_since(ttl_s / 2))

    @statement
    def suspects(self) -> list[SuspectWorker]:
        workers = self._db.tables.workers
        workers.update(
            {
                w.id: as_of(w, self.now)
                for w in workers.values()
                if w.state is not WorkerState.GONE and max(w.started_at, w.heartbeat_at) > self.now
            }
        )
        return [
            SuspectWorker(w, bool(self._db.sessions.get(w.id)))
            for w in workers.values()
            if w.state is not WorkerState.GONE and (w.expires_at < self.now or w.suspected_at is not None)
        ]

    @statement
    def expire_workers(self, worker_ids: Sequence[UUID]) -> int:
        workers = self._db.tables.workers
        for worker_id in worker_ids:
            if workers[worker_id].state is not WorkerState.GONE:
                workers[worker_id] = replace(workers[worker_id], state=WorkerState.GONE)
                self._db.record(EventKind.WORKER_GONE, worker_id=worker_id)
        return self._db.free(worker_ids, Move.LOSE_WORKER, Reason.WORKER_GONE)

    @statement
    def accept_new(self, *, limit: int) -> int:
        new = {
            feed.id
            for feed, lease in self.dirty(limit=limit)
            if lease.state is LeaseState.IDLE and on_edit(feed, lease) == Edit(None)
        }
        self._db.tables.dirty -= new
        return len(new)

    @statement
    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        tables = self._db.tables
        ids = sorted(tables.dirty)[:limit]
        for feed_id in ids:
            if feed_id not in tables.leases:
                tables.leases[feed_id] = Lease(feed_id)
        return [(tables.feeds[feed_id], tables.leases[feed_id]) for feed_id in ids]

    @statement
    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        tables = self._db.tables
        for feed_id, edit in edits:
            tables.dirty.discard(feed_id)
            lease = tables.leases[feed_id]
            match edit.move:
                case Move.WITHDRAW:
                    # This marks a removed feed dirty again: it is idle now and goes with the next pass.
                    self._db.set_idle(lease, Move.WITHDRAW, reason=edit.reason)
                case Move.ASK_TO_STOP:
                    self._db.ask_to_stop(lease, edit.reason, stop_within_s=stop_within_s)
                case None if edit.purge:
                    del tables.feeds[feed_id], tables.leases[feed_id]
                case None if edit.reason is not None:
                    self._rename(lease, edit.reason)

    @statement
    def quarantined(self) -> list[Lease]:
        return [lease for lease in self._db.tables.in_state(LeaseState.RUNNING) if lease.quarantined]

    @statement
    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        for lease in leases:
            reason = Reason.QUARANTINED if lease.quarantined else Reason.RELEASED
            self._db.ask_to_stop(lease, reason, stop_within_s=stop_within_s)
            if not lease.quarantined:
                self._record(EventKind.FEED_PARDONED, lease)

    @statement
    def overdue(self, *, timeout_s: float) -> list[UUID]:
        assigned = self._db.tables.in_state(LeaseState.ASSIGNED)
        late = [x for x in assigned if is_dispatch_overdue(x, now=self.now, timeout_s=timeout_s)]
        for lease in late:
            self._db.set_idle(lease, Move.WITHDRAW, reason=Reason.RELEASED)
            self._record(EventKind.LEASE_OVERDUE, lease)
        return [lease.worker_id for lease in late if lease.worker_id is not None]

    @statement
    def end_backfills(self) -> int:
        return 0  # there are none

    def reap(self) -> int:
        return counts.reap(self._db)

    @statement
    def waiting(self, *, limit: int) -> list[WaitingFeed]:
        counts.promise_to_successors(self._db, self.now)
        tables = self._db.tables
        stopping = (tables.feeds[lease.feed_id] for lease in tables.in_state(LeaseState.STOPPING))
        ending = {feed.name for feed in stopping if feed.removed_at is not None}
        ready = [
            lease
            for lease in tables.in_state(LeaseState.IDLE)
            if may_start(feed := tables.feeds[lease.feed_id], lease, now=self.now) and feed.name not in ending
        ]
        known = counts.experiences(self._db, proven=True)
        return [self._waiting(lease, known) for lease in self._in_turn(ready, limit)]

    def _in_turn(self, ready: Sequence[Lease], limit: int) -> list[Lease]:
        """Puts what is new first; then those without a place, from where the last pass ended."""
        tables = self._db.tables
        unplaced = [x for x in ready if x.reason in UNPLACED]
        page = [x for x in ready if x.reason not in UNPLACED][:limit]
        left = limit - len(page)
        if left > 0:
            after = tables.waiting_after
            turn = [x for x in unplaced if x.feed_id > after] + [x for x in unplaced if x.feed_id <= after]
            page += turn[:left]
            tables.waiting_after = turn[left - 1].feed_id if len(turn) >= left else 0
        return sorted(page, key=lambda lease: lease.feed_id)

    def _waiting(self, lease: Lease, known: Mapping[str, Experience]) -> WaitingFeed:
        feed = self._db.tables.feeds[lease.feed_id]
        weight = counts.effective_weight(self._db, feed, lease, measured=self._measured)
        spec = feed.spec
        return WaitingFeed(
            feed.id,
            weight,
            lease.reason,
            spec.tenant,
            spec.selector,
            lease.promised_to,
            known.get(counts.remote_of(spec), NO_EXPERIENCE).avoided(tuple(lease.avoid.items())),
            counts.sink_of(spec),
        )

    @statement
    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        return counts.candidates(self._db, self.now, tenants)

    @statement
    def leaving(self) -> dict[UUID, int]:
        return counts.leaving(self._db, self.now)

    @statement
    def moves_under_way(self, *, within_s: float) -> dict[UUID, int]:
        return counts.under_way(self._db, since=self.now - timedelta(seconds=within_s))

    @statement
    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        return counts.movable(self._db, worker_ids, limit=limit, measured=self._measured)

    @statement
    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        return sum(counts.hand_over(self._db, one, stop_within_s=stop_within_s) for one in transfers)

    @property
    def evened_out(self) -> str | None:
        return self._db.tables.evened_out

    @evened_out.setter
    def evened_out(self, fingerprint: str | None) -> None:
        self._db.tables.evened_out = fingerprint

    @statement
    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        assignments = []
        for feed_id, worker_id in sorted(pairs):
            lease, worker = self._db.tables.leases[feed_id], self._db.tables.workers[worker_id]
            if lease.state is not LeaseState.IDLE or worker.state is not WorkerState.ACTIVE:
                continue
            if worker.target_state is not WorkerTarget.SERVING:
                continue
            feed = self._db.tables.feeds[feed_id]
            assigned = replace(
                lease,
                state=transition(lease.state, Move.ASSIGN),
                epoch=lease.epoch + 1,
                worker_id=worker_id,
                assigned_at=self._db.now(),
                retry_at=None,
                reason=Reason.FAILED if lease.reason is Reason.FAILED else None,
                weight=counts.effective_weight(self._db, feed, lease, measured=self._measured),
                promised_to=None,
                held_for=None,
                stop_by=None,
            )
            self._db.tables.leases[feed_id] = assigned
            if assigned.reason is None:
                self._record(EventKind.LEASE_ASSIGNED, assigned)
            assignments.append(Assignment(feed_id, assigned.epoch, worker_id, worker.queue))
        self._db.notify(sorted({assignment.worker_id for assignment in assignments}))
        return assignments

    @statement
    def explain(self, unplaced: Sequence[tuple[int, Reason]]) -> None:
        for feed_id, reason in unplaced:
            self._rename(self._db.tables.leases[feed_id], reason)

    @statement
    def sweep(self) -> int:
        tables = self._db.tables
        repaired = 0
        self._weigh_all()
        for feed in tables.feeds.values():
            lease = tables.leases.get(feed.id)
            if feed.id not in tables.dirty and (lease is None or self._is_mismatched(feed, lease)):
                tables.dirty.add(feed.id)
                repaired += 1
        gone = {w.id for w in tables.workers.values() if w.state is WorkerState.GONE}
        repaired += self._db.free(gone, Move.LOSE_WORKER, Reason.WORKER_GONE)
        self._db.trim_history()
        tables.swept_at = self._db.now()
        return repaired

    def _weigh_all(self) -> None:
        tables = self._db.tables
        for lease in list(tables.leases.values()):
            if lease.worker_id is None or lease.feed_id in tables.dirty:
                continue
            feed = tables.feeds[lease.feed_id]
            weight = counts.effective_weight(self._db, feed, lease, measured=self._measured)
            if abs(weight - lease.weight) > (WEIGHT_STEP * lease.weight if self._measured else 1e-9):
                tables.leases[lease.feed_id] = replace(lease, weight=weight)

    @statement
    def held_for_successors(self) -> int:
        return sum(lease.held_for is not None for lease in self._db.tables.leases.values())

    @statement
    def sweep_is_due(self, *, interval_s: float) -> bool:
        swept_at = self._db.tables.swept_at
        return swept_at is None or swept_at <= self.now - timedelta(seconds=interval_s)

    def _is_mismatched(self, feed: Feed, lease: Lease) -> bool:
        edit = on_edit(feed, lease)
        if lease.state is LeaseState.IDLE:
            # Backoff and failures are what an edit would clear; a sweep is no edit.
            held_back = lease.reason is Reason.BACKOFF or (
                lease.reason is Reason.FAILED and lease.retry_at is not None
            )
            is_renamed = edit.reason not in (None, lease.reason)
            return edit.purge or lease.reason is None or (is_renamed and not held_back)
        return edit.move is not None

    def _rename(self, lease: Lease, reason: Reason) -> None:
        if lease.state is LeaseState.IDLE:
            attempts = 0 if reason is Reason.NEW else lease.attempts
            # Without a place a promise is void: its worker takes no feeds, or not this one.
            keeps_promise = reason in (Reason.NEW, Reason.SETTLING)
            renamed = replace(
                lease,
                reason=reason,
                retry_at=None,
                held_for=None,
                promised_to=lease.promised_to if keeps_promise else None,
                moved_at=lease.moved_at if keeps_promise else None,
                attempts=attempts,
                avoid={} if reason is Reason.NEW else lease.avoid,
            )
            self._db.tables.leases[lease.feed_id] = renamed

    def _record(self, kind: EventKind, lease: Lease, **detail: str) -> None:
        self._db.record(kind, feed_id=lease.feed_id, worker_id=lease.worker_id, epoch=lease.epoch, **detail)
