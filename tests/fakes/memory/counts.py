"""What a pass asks about workers and what they hold: who may be given feeds, what may move, and the move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from math import exp
from urllib.parse import urlsplit
from uuid import UUID

from feedq.core.lease import RATE_TIME_S, Move
from feedq.core.model import (
    Feed,
    FeedSpec,
    Lease,
    LeaseState,
    Reason,
    TargetState,
    Worker,
    WorkerState,
    WorkerTarget,
)
from feedq.core.placement.base import NO_EXPERIENCE, EligibleWorker, Experience, Held, Transfer, lags
from feedq.settings import DEFAULT_SINK
from feedq.telemetry.event_names import EventKind
from tests.fakes.memory.decisions import is_reapable
from tests.fakes.memory.tables import MemoryDatabase, counted_at

WEIGHT_MIN = 0.01
OWNED = (LeaseState.ASSIGNED, LeaseState.RUNNING, LeaseState.STOPPING)


def is_heard_from(worker: Worker, now: datetime) -> bool:
    return worker.state is WorkerState.ACTIVE and worker.expires_at > now and worker.suspected_at is None


def is_serving(worker: Worker, now: datetime) -> bool:
    return is_heard_from(worker, now) and worker.target_state is WorkerTarget.SERVING


def sink_of(spec: FeedSpec) -> str:
    return str(spec.sink.get("name") or DEFAULT_SINK).lower()


def remote_of(spec: FeedSpec) -> str:
    return urlsplit(str(spec.source.get("url") or "")).netloc.lower() or str(
        spec.source.get("command") or spec.name
    )


def experiences(db: MemoryDatabase, *, proven: bool) -> dict[str, Experience]:
    """As `feedq.control.store.assigning.experiences`."""
    feeds = db.tables.feeds
    failed: dict[str, dict[str, datetime]] = {}
    for x in db.tables.in_state(*LeaseState):
        landed_at = x.last_record_at if x.state is LeaseState.RUNNING and x.connected else None
        for name, at in x.avoid.items():
            if not proven or (landed_at is not None and landed_at > at):
                there = failed.setdefault(remote_of(feeds[x.feed_id].spec), {})
                there[name] = max(at, there.get(name, at))
    landed: dict[str, dict[str, datetime]] = {}
    for x in db.tables.in_state(LeaseState.RUNNING):
        if not x.connected or x.last_record_at is None or x.running_since is None:
            continue
        remote = remote_of(feeds[x.feed_id].spec)
        if remote in failed and x.last_record_at > x.running_since:
            assert x.worker_id is not None
            name, here = db.tables.workers[x.worker_id].name, landed.setdefault(remote, {})
            here[name] = max(x.running_since, here.get(name, x.running_since))
    return {remote: Experience(workers, landed.get(remote, {})) for remote, workers in failed.items()}


def candidates(db: MemoryDatabase, now: datetime, tenants: Collection[str]) -> list[EligibleWorker]:
    found = []
    serving = (w for w in db.tables.workers.values() if is_serving(w, now) and w.capacity)
    for w in sorted(serving, key=lambda w: w.id.int):
        mine = [lease for lease in db.tables.leases.values() if counted_at(lease) == w.id]
        its_tenants = Counter(db.tables.feeds[lease.feed_id].spec.tenant for lease in mine)
        counts = {tenant: its_tenants[tenant] for tenant in tenants if its_tenants[tenant]}
        load = sum(lease.weight for lease in mine)
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
    drained = [
        w.id
        for w in db.tables.workers.values()
        if w.target_state is WorkerTarget.DRAINED and is_heard_from(w, now)
    ]
    held = {worker_id: len(db.tables.held(worker_id, *OWNED)) for worker_id in drained}
    return {worker_id: number for worker_id, number in held.items() if number}


def movable(db: MemoryDatabase, worker_ids: Collection[UUID], *, limit: int, measured: float) -> list[Held]:
    known = experiences(db, proven=False)
    found = []
    for worker_id in worker_ids:
        running = sorted(db.tables.held(worker_id, LeaseState.RUNNING), key=_has_run_since)
        found += running[: max(1, limit // len(worker_ids))]
    feeds = db.tables.feeds
    return [
        _held(feed, lease, known, effective_weight(db, feed, lease, measured=measured))
        for lease in sorted(found, key=_has_run_since)
        if (feed := feeds[lease.feed_id]).removed_at is None
        and feed.spec.target_state is not TargetState.PAUSED
    ]


def _has_run_since(lease: Lease) -> datetime:
    assert lease.running_since is not None
    return lease.running_since


def _held(feed: Feed, lease: Lease, known: Mapping[str, Experience], weight: float) -> Held:
    assert lease.worker_id is not None
    spec, own = feed.spec, tuple(lease.avoid.items())
    others = known.get(remote_of(spec), NO_EXPERIENCE)
    return Held(
        feed.id,
        lease.worker_id,
        weight,
        spec.tenant,
        spec.selector,
        others.avoided(own),
        sink_of(spec),
        others.reached(own),
    )


def hand_over(db: MemoryDatabase, one: Transfer, *, stop_within_s: float) -> bool:
    """Asks the owner to let go, and promises the feed to the target; False when it is no longer its to give."""
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
    late = [x for x in db.tables.in_state(LeaseState.STOPPING) if is_reapable(x, now=db.now())]
    for lease in late:
        db.set_idle(lease, Move.REAP, reason=Reason.REAPED, retry_at=None)
        db.record(EventKind.LEASE_REAPED, feed_id=lease.feed_id, worker_id=lease.worker_id, epoch=lease.epoch)
    return len(late)


def promise_to_successors(db: MemoryDatabase, now: datetime) -> None:
    kept = [lease for lease in db.tables.in_state(LeaseState.IDLE) if lease.held_for is not None]
    if not kept:
        return
    successors: dict[str, Worker] = {}
    for worker in sorted(db.tables.workers.values(), key=lambda w: w.started_at):
        if is_serving(worker, now):
            successors[worker.name] = worker
    room = {c.worker_id: c.capacity - c.feeds for c in candidates(db, now, ())}
    for lease in kept:
        if lease.held_for not in successors:
            continue
        successor = successors[lease.held_for]
        room[successor.id] -= 1
        promised_to = successor.id if room[successor.id] >= 0 else None
        db.tables.leases[lease.feed_id] = replace(
            lease, held_for=None, retry_at=None, promised_to=promised_to
        )


def effective_weight(db: MemoryDatabase, feed: Feed, lease: Lease, *, measured: float) -> float:
    """Computes what a feed weighs now: see `feedq.control.store.assigning`."""
    if not measured or lease.reported_at is None:
        return feed.spec.weight
    workers = [w for w in db.tables.workers.values() if w.state is not WorkerState.GONE]
    feeds = max(1, len(db.tables.in_state(*OWNED)))
    mean_rows = sum(w.load.rows_per_s for w in workers) / feeds
    mean_bytes = sum(w.load.bytes_per_s for w in workers) / feeds
    if not (mean_rows or mean_bytes):
        return feed.spec.weight
    silent_s = (db.now() - lease.reported_at).total_seconds()
    fade = exp(-min(max(silent_s / RATE_TIME_S - 1, 0), 20))
    rows = lease.rows_per_s / mean_rows if mean_rows else lease.bytes_per_s / mean_bytes
    size = lease.bytes_per_s / mean_bytes if mean_bytes else lease.rows_per_s / mean_rows
    return max(WEIGHT_MIN, round((1 - measured) * feed.spec.weight + measured * fade * (rows + size) / 2, 2))
