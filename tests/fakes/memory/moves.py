"""What the passes of `MemoryStore` need for moves: counts of what workers hold, what may move, and the move
itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from math import exp
from urllib.parse import urlsplit
from uuid import UUID

from feedq.lease import RATE_TIME_S, Move, objection_to_move
from feedq.model import Feed, FeedSpec, Lease, LeaseState, Reason, Worker, WorkerState, WorkerTarget
from feedq.placement.base import NO_EXPERIENCE, EligibleWorker, Experience, Held, Transfer, lags
from feedq.settings import DEFAULT_SINK
from feedq.store.assigning import WEIGHT_MIN
from feedq.telemetry import EventKind
from tests.fakes.memory.decisions import is_reapable
from tests.fakes.memory.tables import MemoryDatabase


def is_heard_from(worker: Worker, now: datetime) -> bool:
    return worker.state is WorkerState.ACTIVE and worker.expires_at > now and worker.suspected_at is None


def is_serving(worker: Worker, now: datetime) -> bool:
    return is_heard_from(worker, now) and worker.target_state is WorkerTarget.SERVING


def counted_at(lease: Lease) -> UUID | None:
    """The worker that a lease counts for: the one that it is promised to, else the one that has it."""
    if lease.promised_to is not None and lease.state in (LeaseState.IDLE, LeaseState.STOPPING):
        return lease.promised_to
    return lease.worker_id


def sink_of(spec: FeedSpec) -> str:
    return str(spec.sink.get("name") or DEFAULT_SINK).lower()


def remote_of(spec: FeedSpec) -> str:
    return urlsplit(str(spec.source.get("url") or "")).netloc.lower() or str(
        spec.source.get("command") or spec.name
    )


def experiences(db: MemoryDatabase, *, proven: bool) -> dict[str, Experience]:
    """As `feedq.store.assigning.experiences`."""
    failed: dict[str, dict[str, datetime]] = {}
    landed: dict[str, dict[str, datetime]] = {}
    for x in db.tables.leases.values():
        remote = remote_of(db.tables.feeds[x.feed_id].spec)
        landed_at = x.last_record_at if x.state is LeaseState.RUNNING and x.connected else None
        for name, at in x.avoid.items():
            if not proven or (landed_at is not None and landed_at > at):
                there = failed.setdefault(remote, {})
                there[name] = max(at, there.get(name, at))
        if landed_at is not None and x.running_since is not None and landed_at > x.running_since:
            assert x.worker_id is not None
            name, here = db.tables.workers[x.worker_id].name, landed.setdefault(remote, {})
            here[name] = max(x.running_since, here.get(name, x.running_since))
    return {remote: Experience(workers, landed.get(remote, {})) for remote, workers in failed.items()}


def candidates(db: MemoryDatabase, now: datetime, tenants: Collection[str]) -> list[EligibleWorker]:
    leases = db.tables.leases.values()
    found = []
    for w in sorted(db.tables.workers.values(), key=lambda w: w.id):
        if not is_serving(w, now) or not w.capacity:
            continue
        mine = [x for x in leases if counted_at(x) == w.id]
        its_tenants = Counter(db.tables.feeds[x.feed_id].spec.tenant for x in mine)
        counts = {tenant: its_tenants[tenant] for tenant in tenants if its_tenants[tenant]}
        load = float(sum(x.weight for x in mine))
        found.append(
            EligibleWorker(
                w.id,
                w.name,
                w.queue,
                w.capacity,
                len(mine),
                load,
                w.started_at,
                w.labels,
                counts,
                frozenset(map(str.lower, w.load.sinks_down)),
                lags(
                    loop_lag_s=w.load.loop_lag_s,
                    silent_s=(now - w.heartbeat_at).total_seconds(),
                    ttl_s=(w.expires_at - w.heartbeat_at).total_seconds(),
                ),
            )
        )
    return found


def under_way(db: MemoryDatabase, *, since: datetime) -> dict[UUID, int]:
    moved = [x for x in db.tables.leases.values() if x.moved_at is not None and x.moved_at > since]
    return Counter(target for x in moved if (target := x.promised_to or x.worker_id) is not None)


def leaving(db: MemoryDatabase, now: datetime) -> dict[UUID, int]:
    holding = Counter(x.worker_id for x in db.tables.leases.values() if x.worker_id is not None)
    return {
        w.id: holding[w.id]
        for w in db.tables.workers.values()
        if is_heard_from(w, now) and w.target_state is WorkerTarget.DRAINED and holding[w.id]
    }


def movable(
    db: MemoryDatabase, now: datetime, worker_ids: Collection[UUID], *, limit: int, measured: float
) -> list[Held]:
    found: list[tuple[datetime, Held]] = []
    known = experiences(db, proven=False)
    for worker_id in worker_ids:
        mine = sorted(
            (
                (x.running_since or now, x.feed_id, x)
                for x in db.tables.leases.values()
                if x.worker_id == worker_id and x.state is LeaseState.RUNNING
            ),
            key=lambda one: one[:2],
        )
        for since, feed_id, x in mine[: max(1, limit // len(worker_ids))]:
            feed = db.tables.feeds[feed_id]
            if feed.removed_at is None and feed.spec.target_state is feed.spec.target_state.RUNNING:
                weight = effective_weight(db, feed, x, measured=measured)
                spec, own = feed.spec, tuple(x.avoid.items())
                others = known.get(remote_of(spec), NO_EXPERIENCE)
                held = Held(
                    feed_id,
                    worker_id,
                    weight,
                    spec.tenant,
                    spec.selector,
                    others.avoided(own),
                    sink_of(spec),
                    others.reached(own),
                )
                found.append((since, held))
    return [held for _, held in sorted(found, key=lambda one: (one[0], one[1].feed_id))]


def hand_over(db: MemoryDatabase, one: Transfer, *, stop_within_s: float) -> bool:
    """Ask the owner to let go, and promise the feed to the target; False when it is no longer its to give."""
    lease, source = db.tables.leases.get(one.feed_id), db.tables.workers.get(one.source)
    target = db.tables.workers.get(one.target)
    if lease is None or source is None or target is None or source.state is WorkerState.GONE:
        return False
    if lease.state is not LeaseState.RUNNING or lease.worker_id != one.source:
        return False
    reason = Reason.DRAINED if source.target_state is WorkerTarget.DRAINED else Reason.MOVED
    db.ask_to_stop(lease, reason, stop_within_s=stop_within_s, promised_to=target.id, to=target.name)
    return True


def reap(db: MemoryDatabase) -> int:
    late = [x for x in db.tables.leases.values() if is_reapable(x, now=db.now())]
    for lease in late:
        db.set_idle(lease, Move.REAP, reason=Reason.REAPED, retry_at=None)
        db.record(EventKind.LEASE_REAPED, feed_id=lease.feed_id, worker_id=lease.worker_id, epoch=lease.epoch)
    return len(late)


def move(db: MemoryDatabase, feed: Feed, lease: Lease, target: UUID, *, stop_within_s: float) -> str | None:
    """What a person asks for; what is in its way, if anything is."""
    objection = objection_to_move(feed, lease, target)
    if objection is not None:
        return objection
    if lease.state is LeaseState.RUNNING:
        assert lease.worker_id is not None
        hand_over(db, Transfer(feed.id, lease.worker_id, target), stop_within_s=stop_within_s)
        return None
    if lease.state is LeaseState.ASSIGNED:
        db.record(
            EventKind.LEASE_FREED,
            feed_id=feed.id,
            worker_id=lease.worker_id,
            epoch=lease.epoch,
            reason=Reason.MOVED.value,
        )
        lease = db.set_idle(lease, Move.WITHDRAW, reason=Reason.MOVED)
    if lease.state is LeaseState.IDLE and (lease.held_for is not None or lease.retry_at is None):
        lease = replace(lease, reason=Reason.MOVED, retry_at=None)
    db.tables.leases[feed.id] = replace(lease, promised_to=target, held_for=None)
    db.wake()
    return None


def promise_to_successors(db: MemoryDatabase, now: datetime) -> None:
    successors: dict[str, Worker] = {}
    for worker in sorted(db.tables.workers.values(), key=lambda w: w.started_at):
        if is_serving(worker, now):
            successors[worker.name] = worker
    room = {c.worker_id: c.capacity - c.feeds for c in candidates(db, now, ())}
    for feed_id, lease in sorted(db.tables.leases.items()):
        if lease.state is not LeaseState.IDLE or lease.held_for not in successors:
            continue
        successor = successors[lease.held_for]
        room[successor.id] -= 1
        promised_to = successor.id if room[successor.id] >= 0 else None
        db.tables.leases[feed_id] = replace(lease, held_for=None, retry_at=None, promised_to=promised_to)


def effective_weight(db: MemoryDatabase, feed: Feed, lease: Lease, *, measured: float) -> float:
    """What a feed weighs now: see `feedq.store.assigning`."""
    workers = [w for w in db.tables.workers.values() if w.state is not WorkerState.GONE]
    feeds = max(1, sum(x.worker_id is not None for x in db.tables.leases.values()))
    mean_rows = sum(w.load.rows_per_s for w in workers) / feeds
    mean_bytes = sum(w.load.bytes_per_s for w in workers) / feeds
    if not measured or lease.reported_at is None or not (mean_rows or mean_bytes):
        return feed.spec.weight
    silent_s = (db.now() - lease.reported_at).total_seconds()
    fade = exp(-min(max(silent_s / RATE_TIME_S - 1, 0), 20))
    rows = lease.rows_per_s / mean_rows if mean_rows else lease.bytes_per_s / mean_bytes
    size = lease.bytes_per_s / mean_bytes if mean_bytes else lease.rows_per_s / mean_rows
    return max(WEIGHT_MIN, round((1 - measured) * feed.spec.weight + measured * fade * (rows + size) / 2, 2))
