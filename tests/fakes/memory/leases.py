"""`feedq.control.store.leases.Leases` in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from feedq.control.store.leases import Followed, Leases
from feedq.core.lease import Move, smoothed, states_before, transition
from feedq.core.model import (
    JSON,
    Claim,
    FeedKey,
    Lease,
    LeaseState,
    Progress,
    Reason,
    Release,
    Reported,
    StopRequest,
    Worker,
    WorkerState,
)
from feedq.telemetry.event_names import EventKind
from tests.fakes.memory.decisions import (
    avoided_after,
    can_run,
    is_after_loss,
    is_kept_for_successor,
    is_known_failure,
    is_new_here,
)
from tests.fakes.memory.tables import MemoryDatabase, statement


class MemoryLeases(Leases):
    """The owner's side: each statement matches feed, epoch and worker, or does nothing."""

    def __init__(self, database: MemoryDatabase, *, restart_hold_s: float = 0.0) -> None:
        self._db = database
        self._restart_hold_s = restart_hold_s

    @statement
    def claim(self, worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        tables = self._db.tables
        worker = tables.workers.get(worker_id)
        claims = []
        for key in keys:
            lease = self._db.matched(worker_id, key, Move.CLAIM)
            if lease is None or worker is None or worker.state is not WorkerState.ACTIVE:
                continue
            feed = tables.feeds[lease.feed_id]
            tables.leases[feed.id] = replace(
                lease,
                state=transition(lease.state, Move.CLAIM),
                generation=feed.generation,
                running_since=self._db.now(),
                connected=False,
                stalled=False,
            )
            has_failed = lease.reason is Reason.FAILED
            if not has_failed:
                self._record(EventKind.LEASE_CLAIMED, key, worker_id)
            claims.append(
                Claim(
                    feed,
                    lease.epoch,
                    lease.attempts,
                    lease.failures,
                    lease.quarantined,
                    lease.blamed,
                    is_new_here(lease, worker),
                    has_failed,
                    is_after_loss(lease, worker, self._lost_owner(lease), now=self._db.now()),
                )
            )
        return claims

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
    def release(self, worker_id: UUID, releases: Sequence[Release]) -> list[FeedKey]:
        now = self._db.now()
        matched, is_news = [], False
        for r in releases:
            lease = self._db.matched(worker_id, r.key, Move.RELEASE)
            if lease is None:
                continue
            worker = self._db.tables.workers[worker_id]
            held = is_kept_for_successor(lease, r, worker, hold_s=self._restart_hold_s)
            delay_s = self._restart_hold_s if held else r.retry_in_s
            reason = Reason.HELD if held else r.reason
            self._db.set_idle(
                lease,
                Move.RELEASE,
                reason=reason,
                retry_at=now + timedelta(seconds=delay_s) if delay_s > 0 or reason is Reason.FAILED else None,
                avoid=avoided_after(lease, r, worker=worker.name, now=now),
                held_for=worker.name if held else None,
                attempts=r.attempts,
                last_error=lease.last_error if r.error is None else r.error,
                last_error_at=lease.last_error_at if r.error is None else now,
            )
            if r.blame is not None:
                self._db.blame(r.feed_id, worker_id, r.blame, said=f"{r.blame.cause}: {r.blame.said}")
            if not is_known_failure(lease, r):
                said = {} if r.error is None else {"error": r.error}
                self._record(EventKind.LEASE_RELEASED, r.key, worker_id, reason=reason.value, **said)
                is_news = True
            matched.append(r.key)
        if is_news:
            self._db.wake()
        return matched

    @statement
    def report(self, worker_id: UUID, progress: Sequence[Progress]) -> Reported:
        now = self._db.now()
        matched = []
        for p in progress:
            # Whoever may release may report: running and stopping alike.
            lease = self._db.matched(worker_id, p.key, Move.RELEASE)
            if lease is None:
                continue
            heard_at = None if p.last_record_ago_s is None else now - timedelta(seconds=p.last_record_ago_s)
            since = max(filter(None, (lease.reported_at, lease.running_since)), default=now)
            elapsed_s = (now - since).total_seconds()
            is_first = lease.reported_at is None
            has_arrived = lease.moved_at is not None and lease.state is LeaseState.RUNNING and p.connected
            if has_arrived:
                self._db.wake()  # others may move now
            is_mended = can_run(lease, p)
            if is_mended and p.records:
                self._record(EventKind.FEED_MENDED, p.key, worker_id)
            if p.rewind is not None:
                detail = {"from": p.rewind.left_at, "to": p.rewind.found_at}
                self._record(EventKind.SINK_REWOUND, p.key, worker_id, sink=p.rewind.sink, **detail)
            # On one on which it failed before: then it was not the worker that could not reach its source.
            had_failed_here = p.records > 0 and self._db.tables.workers[worker_id].name in lease.avoid
            self._db.tables.leases[p.feed_id] = replace(
                lease,
                records_total=lease.records_total + p.records,
                bytes_total=lease.bytes_total + p.bytes,
                dead_letters_total=lease.dead_letters_total + p.dead_letters,
                dead_letters=max(lease.dead_letters + p.dead_letters, 0),
                last_record_at=max(filter(None, (heard_at, lease.last_record_at)), default=None),
                rows_per_s=smoothed(
                    lease.rows_per_s, count=p.records, elapsed_s=elapsed_s, is_first=is_first
                ),
                bytes_per_s=smoothed(
                    lease.bytes_per_s, count=p.bytes, elapsed_s=elapsed_s, is_first=is_first
                ),
                dead_per_s=smoothed(
                    lease.dead_per_s, count=p.dead_letters, elapsed_s=elapsed_s, is_first=is_first
                ),
                dead_letter_error=p.dead_letter_error or lease.dead_letter_error,
                dead_letter_at=now if p.dead_letters else lease.dead_letter_at,
                sink_error=p.sink_error,
                failures=p.failures,
                avoid={} if had_failed_here else lease.avoid,
                reason=None if is_mended else lease.reason,
                reported_at=now,
                cursor=p.cursor,
                moved_at=None if has_arrived else lease.moved_at,
                connected=p.connected,
                stalled=p.stalled,
                attempts=p.attempts,
                last_error=lease.last_error if p.error is None else p.error,
                last_error_at=lease.last_error_at if p.error is None else now,
            )
            matched.append(p.key)
        return Reported(matched, [])

    @statement
    def assigned(self, worker_id: UUID, *, limit: int) -> list[FeedKey]:
        assigned = self._db.tables.held(worker_id, LeaseState.ASSIGNED)
        return [(lease.feed_id, lease.epoch) for lease in assigned[:limit]]

    @statement
    def stop_requests(self, worker_id: UUID) -> list[StopRequest]:
        stopping = self._db.tables.held(worker_id, LeaseState.STOPPING)
        return [StopRequest(x.feed_id, x.epoch, x.reason or Reason.RELEASED) for x in stopping]

    @statement
    def held(self, worker_id: UUID) -> list[FeedKey]:
        held = self._db.tables.held(worker_id, *states_before(Move.RELEASE))
        return [(lease.feed_id, lease.epoch) for lease in held]

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

    def _lost_owner(self, lease: Lease) -> Worker | None:
        return None if lease.lost_worker is None else self._db.tables.workers.get(lease.lost_worker)

    def _record(self, kind: EventKind, key: FeedKey, worker_id: UUID, **detail: JSON) -> None:
        self._db.record(kind, feed_id=key[0], worker_id=worker_id, epoch=key[1], **detail)
