"""`feedq.store.base.Feeds` in memory."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from feedq import lease as policy
from feedq.errors import Conflict, NotFound
from feedq.model import Event, Feed, FeedSpec, FeedView, Identity, Lease, TargetState
from feedq.store.history import HistoryKept
from feedq.telemetry import EventKind
from tests.fakes.memory.history import folded
from tests.fakes.memory.moves import move
from tests.fakes.memory.tables import MemoryDatabase, statement


class MemoryFeeds:
    """Desired state."""

    def __init__(self, database: MemoryDatabase, *, keep: HistoryKept) -> None:
        self._db = database
        self._keep = keep

    @statement
    def add(self, spec: FeedSpec) -> Feed:
        self._refuse_taken(spec.name)
        now = self._db.now()
        identity = Identity(uuid4(), self._db.installation)
        feed = Feed(self._db.next_feed_id(), spec, 1, now, now, identity=identity)
        self._db.tables.leases[feed.id] = Lease(feed.id, reason=policy.first_reason(feed))
        added = self._touch(feed, EventKind.FEED_ADDED)
        self._db.tables.dirty.discard(feed.id)
        return added

    @statement
    def edit(self, name: str, spec: FeedSpec) -> Feed:
        current = self._live(name)
        if spec == current.spec:
            return current
        if spec.name != name:
            self._refuse_taken(spec.name)
        changed = [
            f.name
            for f in dataclasses.fields(FeedSpec)
            if getattr(spec, f.name) != getattr(current.spec, f.name)
        ]
        feed = replace(current, spec=spec, generation=current.generation + 1)
        return self._touch(feed, EventKind.FEED_EDITED, changed=changed)

    @statement
    def set_target(self, name: str, target: TargetState) -> Feed:
        current = self._live(name)
        if current.spec.target_state is target:
            return current
        spec = replace(current.spec, target_state=target)
        kind = EventKind.FEED_PAUSED if target is TargetState.PAUSED else EventKind.FEED_RESUMED
        return self._touch(replace(current, spec=spec, generation=current.generation + 1), kind)

    @statement
    def restart(self, name: str) -> Feed:
        current = self._live(name)
        return self._touch(replace(current, generation=current.generation + 1), EventKind.FEED_RESTARTED)

    @statement
    def remove(self, name: str) -> Feed:
        return self._touch(replace(self._live(name), removed_at=self._db.now()), EventKind.FEED_REMOVED)

    @statement
    def move(self, name: str, target: UUID, *, stop_within_s: float) -> None:
        feed = self._live(name)
        lease = self._db.tables.leases.get(feed.id)
        if lease is None:
            raise Conflict(f"feed {name!r} has no lease at the moment; the next sweep makes one")
        objection = move(self._db, feed, lease, target, stop_within_s=stop_within_s)
        if objection is not None:
            raise Conflict(f"feed {name!r} {objection}")

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
    def declared(self, *, tenant: str | None = None, after: str = "", limit: int = 1_000) -> list[Feed]:
        chosen = [
            feed
            for feed in self._db.tables.feeds.values()
            if feed.removed_at is None and feed.name > after and tenant in (None, feed.spec.tenant)
        ]
        return sorted(chosen, key=lambda f: f.name)[:limit]

    @statement
    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        feed = self._named(name)
        # Told as they come, and folded when they are asked for.
        mine = folded(event for event in self._db.tables.events if event.feed_id == feed.id)
        return mine[::-1][: min(limit, self._keep.per_feed)]

    def _live(self, name: str) -> Feed:
        for feed in self._db.tables.feeds.values():
            if feed.name == name and feed.removed_at is None:
                return feed
        raise NotFound(f"no feed named {name!r}; `feedq feed list` shows them all")

    def _named(self, name: str) -> Feed:
        """The live feed of that name, else the one last removed whose rows are still there."""
        try:
            return self._live(name)
        except NotFound:
            removed = [f for f in self._db.tables.feeds.values() if f.name == name]
            if not removed:
                raise
            return max(removed, key=lambda f: f.id)

    def _refuse_taken(self, name: str) -> None:
        if any(f.name == name and f.removed_at is None for f in self._db.tables.feeds.values()):
            raise Conflict(f"feed {name!r} exists already; `feedq feed edit` changes it")

    def _touch(self, feed: Feed, kind: EventKind, **detail: Any) -> Feed:
        feed = replace(feed, updated_at=self._db.now())
        self._db.tables.feeds[feed.id] = feed
        self._db.tables.dirty.add(feed.id)
        self._db.record(kind, feed_id=feed.id, generation=feed.generation, **detail)
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
