"""`feedq.control.store.feeds.Feeds` in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from feedq.control.store import history
from feedq.control.store.feeds import FeedChange, Feeds, made, movable, no_feed, taken
from feedq.core import lease as policy
from feedq.core.lease import Move
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
from feedq.core.selection import Selection
from feedq.errors import FeedqError, NotFound
from feedq.telemetry.logs import EventKind
from tests.fakes.memory import counts
from tests.fakes.memory.history import folded
from tests.fakes.memory.listing import chosen_of
from tests.fakes.memory.tables import MemoryDatabase, statement


class MemoryFeeds(Feeds):
    """Desired state."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    @statement
    def change(self, changes: Sequence[FeedChange]) -> list[Feed | FeedqError]:
        return list(map(self._changed, changes))

    def _changed(self, change: FeedChange) -> Feed | FeedqError:
        tables = self._db.tables
        before = self._live_or_none(change.name)
        if change.kind is EventKind.FEED_ADDED and change.spec is not None:
            return taken(change.name) if before else self._added(change, change.spec.completed(None))
        try:
            after = change.of(before)
        except FeedqError as error:
            return error
        if after == before:
            return after
        if after.removed_at is not None:
            after = replace(after, removed_at=self._db.now())
            del tables.names[change.name]
        return self._touch(after, change.kind, **change.told(before, after))

    def _added(self, change: FeedChange, spec: FeedSpec) -> Feed:
        now = self._db.now()
        identity = Identity(uuid4(), self._db.installation)
        feed = Feed(self._db.next_feed_id(), spec, 1, now, now, identity, catalog=change.catalog)
        self._db.tables.names[spec.name] = feed.id
        reason = Reason.PAUSED if spec.target_state is TargetState.PAUSED else Reason.NEW
        self._db.tables.leases[feed.id] = Lease(feed.id, reason=reason)
        added = self._touch(feed, change.kind, **change.told(None, feed))
        self._db.tables.dirty.discard(feed.id)
        return added

    @statement
    def cursor_changed(self, name: str, change: ChangedCursor) -> Feed:
        leases, feed_id = self._db.tables.leases, self._db.tables.names.get(name)
        if feed_id in leases:
            leases[feed_id] = replace(leases[feed_id], cursor=change.after)
        cursors = {"before": json.dumps(change.before), "after": json.dumps(change.after)}
        detail = {"verb": change.verb, **cursors}
        return made(self._changed(FeedChange(EventKind.CURSOR_CHANGED, name, detail=detail)))

    @statement
    def move(self, targets: Sequence[tuple[str, UUID]], *, stop_within_s: float) -> list[FeedqError | None]:
        return [self._moved(name, target, stop_within_s=stop_within_s) for name, target in targets]

    def _moved(self, name: str, target: UUID, *, stop_within_s: float) -> FeedqError | None:
        try:
            feed, lease = movable(name, self._live_or_none(name), self._db.tables.leases, target)
        except FeedqError as error:
            return error
        _move(self._db, feed, lease, target, stop_within_s=stop_within_s)
        worker = self._db.tables.workers.get(target)
        to = str(target) if worker is None else worker.name
        self._db.record(EventKind.FEED_MOVED, feed_id=feed.id, to=to)
        return None

    @statement
    def tell(
        self, name: str, kind: EventKind, detail: Mapping[str, Any], *, before: Version | None = None
    ) -> None:
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

    def selected(
        self,
        selection: Selection,
        *,
        limit: int | None = None,
    ) -> list[FeedView]:
        return chosen_of(selection, self.views())[:limit]

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
            owner = policy.Owner(worker.name, worker.load.loop_lag_s, worker.heartbeat_at, worker.expires_at)
        found = policy.standing(feed, lease, owner, now=self._db.now())
        return FeedView(feed, lease, None if owner is None else owner.name, found.status, found.because)


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
