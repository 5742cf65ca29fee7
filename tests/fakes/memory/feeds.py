"""`feedq.control.store.feeds.Feeds` in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from feedq.control.store import history
from feedq.control.store.feeds import FeedChange, Feeds, Outcome, no_feed
from feedq.core.differences import difference
from feedq.core.lease import Move, Owner
from feedq.core.model import (
    ChangedCursor,
    Event,
    Feed,
    FeedSpec,
    FeedView,
    Identity,
    Lease,
    LeaseState,
    Reason,
    TargetState,
    Version,
    require_version,
)
from feedq.core.placement.base import Transfer
from feedq.errors import Conflict, FeedqError, NotFound
from feedq.telemetry.logs import EventKind
from tests.fakes.memory import counts
from tests.fakes.memory.history import folded
from tests.fakes.memory.tables import MemoryDatabase, statement
from tests.fakes.standing import standing


class MemoryFeeds(Feeds):
    """Desired state."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    @statement
    def change(self, changes: Sequence[FeedChange]) -> list[Version | FeedqError]:
        found = [self._changed(one) for one in changes]
        return [one.version if isinstance(one, Feed) else one for one in found]

    def _changed(self, change: FeedChange) -> Feed | FeedqError:
        tables = self._db.tables
        before = self._live_or_none(change.name)
        if change.kind is EventKind.FEED_ADDED and change.spec is not None:
            if before is not None:
                return Conflict(f"feed {change.name!r} exists already")
            return self._added(change, change.spec)
        if before is None:
            return no_feed(change.name)
        try:
            require_version(f"feed {change.name!r}", before.version, change.expected)
        except FeedqError as error:
            return error
        after = _after(before, change)
        if after == before:
            return after
        if after.removed_at is not None:
            after = replace(after, removed_at=self._db.now())
            del tables.names[change.name]
        return self._touch(after, change.kind, generation=after.generation, **change.told())

    def _added(self, change: FeedChange, spec: FeedSpec) -> Feed:
        now = self._db.now()
        identity = Identity(uuid4(), self._db.installation)
        feed = Feed(self._db.next_feed_id(), spec, 1, now, now, identity, catalog=change.catalog)
        self._db.tables.names[spec.name] = feed.id
        reason = Reason.PAUSED if spec.target_state is TargetState.PAUSED else Reason.NEW
        self._db.tables.leases[feed.id] = Lease(feed.id, reason=reason)
        added = self._touch(feed, change.kind, generation=1)
        self._db.tables.dirty.discard(feed.id)
        return added

    @statement
    def cursor_changed(self, name: str, change: ChangedCursor) -> None:
        leases, feed = self._db.tables.leases, self._live(name)
        if feed.id in leases:
            leases[feed.id] = replace(leases[feed.id], cursor=change.after)
        cursors = {"before": json.dumps(change.before), "after": json.dumps(change.after)}
        anew = _restarted(feed)
        self._touch(anew, EventKind.CURSOR_CHANGED, generation=anew.generation, verb=change.verb, **cursors)

    @statement
    def move(self, targets: Sequence[tuple[str, UUID]], *, stop_within_s: float) -> list[FeedqError | None]:
        return [self._moved(name, target, stop_within_s=stop_within_s) for name, target in targets]

    def _moved(self, name: str, target: UUID, *, stop_within_s: float) -> FeedqError | None:
        feed = self._live_or_none(name)
        if feed is None:
            return no_feed(name)
        if (lease := self._db.tables.leases.get(feed.id)) is None:
            return Outcome(name, refusal="unleased").error()
        if (refusal := _refused(feed, lease, target)) is not None:
            return Outcome(name, refusal=refusal, reason=lease.reason).error()
        _move(self._db, feed, lease, target, stop_within_s=stop_within_s)
        worker = self._db.tables.workers.get(target)
        to = str(target) if worker is None else worker.name
        self._db.record(EventKind.FEED_MOVED, feed_id=feed.id, to=to)
        return None

    @statement
    def tell(self, name: str, kind: EventKind, detail: Mapping[str, Any], *, before: Version) -> None:
        self._db.record(kind, feed_id=self._live(name, before).id, **detail)

    @statement
    def dead_letters_gone(
        self, name: str, kind: EventKind, detail: Mapping[str, Any], *, gone: int, are_left: bool
    ) -> None:
        feed = self._live(name)
        lease = self._db.tables.leases[feed.id]
        there = lease.dead_letters - gone
        there = there if are_left else min(there, 0)
        self._db.tables.leases[feed.id] = replace(lease, dead_letters=there)
        if any(detail.values()):
            self._db.record(kind, feed_id=feed.id, **detail)

    @statement
    def get(self, name: str) -> Feed:
        return self._named(name)

    @statement
    def view(self, name: str) -> FeedView:
        return self._view(self._named(name))

    @statement
    def views(self, *, tenant: str | None = None, worker: str | None = None) -> list[FeedView]:
        views = [
            self._view(feed)
            for feed in sorted(self._db.tables.feeds.values(), key=lambda f: (f.name, f.id))
            if tenant is None or feed.spec.tenant == tenant
        ]
        return [v for v in views if worker is None or v.worker == worker]

    @statement
    def declared(
        self, *, names: Collection[str] | None = None, tenant: str | None = None, catalog: str | None = None
    ) -> list[Feed]:
        chosen = [
            feed
            for feed in self._db.tables.feeds.values()
            if feed.removed_at is None and (names is None or feed.name in names)
            if tenant in (None, feed.spec.tenant) and catalog in (None, feed.catalog)
        ]
        return sorted(chosen, key=lambda f: f.name)

    @statement
    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        feed = self._named(name)
        # Told as they come, and folded when they are asked for.
        mine = folded(event for event in self._db.tables.events if event.feed_id == feed.id)
        return mine[::-1][: min(limit, history.EVENTS_PER_FEED)]

    def _live(self, name: str, expected: Version | None = None) -> Feed:
        if (feed := self._live_or_none(name)) is None:
            raise no_feed(name)
        require_version(f"feed {name!r}", feed.version, expected)
        return feed

    def _live_or_none(self, name: str) -> Feed | None:
        return self._db.tables.feeds.get(self._db.tables.names.get(name, 0))

    def _named(self, name: str) -> Feed:
        """The live feed of that name, else the one last removed whose rows are still there."""
        try:
            return self._live(name)
        except NotFound:
            removed = [f for f in self._db.tables.feeds.values() if f.name == name]
            if not removed:
                raise
            return max(removed, key=lambda f: f.id)

    def _touch(self, feed: Feed, kind: EventKind, **detail: Any) -> Feed:
        feed = replace(feed, updated_at=self._db.now())
        self._db.tables.feeds[feed.id] = feed
        self._db.tables.dirty.add(feed.id)
        self._db.record(kind, feed_id=feed.id, **detail)
        self._db.wake()
        return feed

    def _view(self, feed: Feed) -> FeedView:
        lease = self._db.tables.leases.get(feed.id, Lease(feed.id))
        worker = self._db.tables.workers[lease.worker_id] if lease.worker_id else None
        owner = None
        if worker is not None:
            owner = Owner(worker.name, worker.load.loop_lag_s, worker.heartbeat_at, worker.expires_at)
        found = standing(feed, lease, owner, now=self._db.now())
        return FeedView(feed, lease, None if owner is None else owner.name, found.status, found.because)


def _after(before: Feed, change: FeedChange) -> Feed:
    """The feed as it becomes."""
    spec = before.spec
    match change.kind:
        case EventKind.FEED_REMOVED:
            return replace(before, removed_at=before.updated_at)
        case EventKind.FEED_PAUSED:
            spec = spec.model_copy(update={"target_state": TargetState.PAUSED})
        case EventKind.FEED_RESUMED:
            spec = spec.model_copy(update={"target_state": TargetState.RUNNING})
        case EventKind.FEED_EDITED if change.spec is not None:
            spec = change.spec
        case _:
            return _restarted(before)
    return replace(_restarted(before), spec=spec) if difference(before.spec, spec) else before


def _restarted(feed: Feed) -> Feed:
    return replace(feed, generation=feed.generation + 1, stream_generation=feed.generation + 1)


def _refused(feed: Feed, lease: Lease, target: UUID) -> str | None:
    """Why it cannot be moved, in one word."""
    if feed.spec.target_state is TargetState.PAUSED:
        return "paused"
    match lease.state:
        case LeaseState.IDLE if lease.reason is Reason.FAILED:
            return "failed"
        case LeaseState.ASSIGNED | LeaseState.RUNNING if lease.worker_id == target:
            return "there"
        case LeaseState.STOPPING if lease.reason not in (Reason.EDITED, Reason.MOVED, Reason.DRAINED):
            return "stopping"
    return None


def _move(db: MemoryDatabase, feed: Feed, lease: Lease, target: UUID, *, stop_within_s: float) -> None:
    """Does what a person asks for."""
    if lease.state is LeaseState.RUNNING:
        assert lease.worker_id is not None
        counts.hand_over(db, Transfer(feed.id, lease.worker_id, target), stop_within_s=stop_within_s)
        return
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
