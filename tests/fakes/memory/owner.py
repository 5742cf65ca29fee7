"""What a worker does to the rows in memory, and what people do to feeds: one transaction each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from feedq.errors import Conflict, NotFound
from feedq.event_names import EventKind
from feedq.lease import Move, first_reason, smoothed, states_before, transition
from feedq.model import (
    JSON,
    Claim,
    Feed,
    FeedKey,
    FeedSpec,
    Heartbeat,
    Identity,
    Lease,
    LeaseState,
    Load,
    NewWorker,
    Progress,
    Reason,
    Release,
    StopRequest,
    Version,
    Worker,
    WorkerState,
    WorkerTarget,
)
from feedq.store.base import require_version
from feedq.store.workers import TARGET_EVENTS
from tests.fakes.memory.database import SimulatedDatabase, changed, statement
from tests.fakes.memory.decisions import (
    avoided_after,
    can_run,
    is_after_loss,
    is_kept_for_successor,
    is_known_failure,
    is_new_here,
)


class SimulatedFeeds:
    """Holds the desired state: feeds come and go."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._db = database

    @statement
    def add(self, spec: FeedSpec) -> Feed:
        self._refuse_taken(spec.name)
        now = self._db.now()
        identity = Identity(uuid4(), self._db.installation)
        feed = Feed(self._db.next_feed_id(), spec, 1, now, now, identity)
        self._db.tables.names[spec.name] = feed.id
        self._db.tables.leases[feed.id] = Lease(feed.id, reason=first_reason(feed.spec))
        added = self._touch(feed, EventKind.FEED_ADDED)
        self._db.tables.dirty.discard(feed.id)
        return added

    @statement
    def remove(self, name: str, *, expected: Version | None = None) -> Feed:
        removed = replace(self._live(name, expected), removed_at=self._db.now())
        del self._db.tables.names[name]
        return self._touch(removed, EventKind.FEED_REMOVED)

    def _live(self, name: str, expected: Version | None = None) -> Feed:
        feed_id = self._db.tables.names.get(name)
        if feed_id is None:
            raise NotFound(f"no feed named {name!r}; `feedq feed list` shows them all")
        feed = self._db.tables.feeds[feed_id]
        require_version(f"feed {name!r}", feed.version, expected)
        return feed

    def _refuse_taken(self, name: str) -> None:
        if name in self._db.tables.names:
            raise Conflict(f"feed {name!r} exists already; `feedq feed edit` changes it")

    def _touch(self, feed: Feed, kind: EventKind, **detail: Any) -> Feed:
        feed = replace(feed, updated_at=self._db.now())
        self._db.tables.feeds[feed.id] = feed
        if feed.id in self._db.tables.leases:
            self._db.tables.leases.touch(feed.id)
        self._db.tables.dirty.add(feed.id)
        self._db.record(kind, feed_id=feed.id, generation=feed.generation, **detail)
        self._db.wake()
        return feed


class SimulatedLeases:
    """Plays the statements of owners, each of which matches feed, epoch and worker, or does nothing."""

    def __init__(self, database: SimulatedDatabase, *, restart_hold_s: float = 0.0) -> None:
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
            tables.leases[feed.id] = changed(
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

    def _lost_owner(self, lease: Lease) -> Worker | None:
        return None if lease.lost_worker is None else self._db.tables.workers.get(lease.lost_worker)

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
    def report(self, worker_id: UUID, progress: Sequence[Progress]) -> list[FeedKey]:
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
            self._db.tables.leases[p.feed_id] = changed(
                lease,
                records_total=lease.records_total + p.records,
                bytes_total=lease.bytes_total + p.bytes,
                dead_letters_total=lease.dead_letters_total + p.dead_letters,
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
        return matched

    @statement
    def assigned(self, worker_id: UUID, *, limit: int) -> list[FeedKey]:
        assigned = self._db.tables.leases.held(worker_id, LeaseState.ASSIGNED)
        return [(lease.feed_id, lease.epoch) for lease in assigned[:limit]]

    @statement
    def stop_requests(self, worker_id: UUID) -> list[StopRequest]:
        stopping = self._db.tables.leases.held(worker_id, LeaseState.STOPPING)
        return [StopRequest(x.feed_id, x.epoch, x.reason or Reason.RELEASED) for x in stopping]

    @statement
    def held(self, worker_id: UUID) -> list[FeedKey]:
        held = self._db.tables.leases.held(worker_id, *states_before(Move.RELEASE))
        return [(lease.feed_id, lease.epoch) for lease in held]

    def _record(self, kind: EventKind, key: FeedKey, worker_id: UUID, **detail: JSON) -> None:
        self._db.record(kind, feed_id=key[0], worker_id=worker_id, epoch=key[1], **detail)


class SimulatedWorkers:
    """Plays the statements about worker sessions."""

    def __init__(self, database: SimulatedDatabase) -> None:
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

    def _alive(self, worker_id: UUID) -> Worker | None:
        worker = self._db.tables.workers.get(worker_id)
        return None if worker is None or worker.state is WorkerState.GONE else worker


def renew(db: SimulatedDatabase, worker_id: UUID, load: Load, ttl_s: float) -> Heartbeat | None:
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
    leases = db.tables.leases
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
        leases.number_held(worker_id, LeaseState.STOPPING) > 0,
        leases.number_held(worker_id, LeaseState.ASSIGNED) > 0,
        pass_age_s,
        db.tables.active_workers,
        tuple(sorted(up)),
        tuple(sorted(untried)),
    )
