"""`feedq.control.store.feeds.Feeds` in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from feedq.control.store import history
from feedq.control.store.feeds import Feeds
from feedq.core import lease as policy
from feedq.core.lease import Move, first_reason, objection_to_move
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
from feedq.errors import Conflict, NotFound
from feedq.telemetry.logs import EventKind
from tests.fakes.memory import counts
from tests.fakes.memory.history import folded
from tests.fakes.memory.tables import MemoryDatabase, statement


class MemoryFeeds(Feeds):
    """Desired state."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    @contextmanager
    def together(self) -> Iterator[MemoryFeeds]:
        with self._db.transaction():
            yield self

    @statement
    def add(self, spec: FeedSpec) -> Feed:
        spec = spec.completed(None)
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
    def edit(self, name: str, spec: FeedSpec, *, expected: Version | None = None) -> Feed:
        current = self._live(name, expected)
        spec = spec.completed(current.spec)
        if spec == current.spec:
            return current
        if spec.name != name:
            self._refuse_taken(spec.name)
            self._db.tables.names[spec.name] = self._db.tables.names.pop(name)
        changed = [key for key, value in spec if value != getattr(current.spec, key)]
        feed = replace(current, spec=spec, generation=current.generation + 1)
        return self._touch(feed, EventKind.FEED_EDITED, changed=changed)

    @statement
    def set_target(self, name: str, target: TargetState, *, expected: Version | None = None) -> Feed:
        current = self._live(name, expected)
        if current.spec.target_state is target:
            return current
        spec = current.spec.model_copy(update={"target_state": target})
        kind = EventKind.FEED_PAUSED if target is TargetState.PAUSED else EventKind.FEED_RESUMED
        return self._touch(replace(current, spec=spec, generation=current.generation + 1), kind)

    @statement
    def restart(self, name: str, *, expected: Version | None = None) -> Feed:
        current = self._live(name, expected)
        return self._touch(replace(current, generation=current.generation + 1), EventKind.FEED_RESTARTED)

    @statement
    def remove(self, name: str, *, expected: Version | None = None) -> Feed:
        removed = replace(self._live(name, expected), removed_at=self._db.now())
        del self._db.tables.names[name]
        return self._touch(removed, EventKind.FEED_REMOVED)

    @statement
    def cursor_changed(self, name: str, change: ChangedCursor) -> Feed:
        current = self._live(name)
        leases = self._db.tables.leases
        if current.id in leases:
            leases[current.id] = replace(leases[current.id], cursor=change.after)
        what = {
            "verb": change.verb,
            "before": json.dumps(change.before),
            "after": json.dumps(change.after),
        }
        bumped = replace(current, generation=current.generation + 1)
        return self._touch(bumped, EventKind.CURSOR_CHANGED, **what)

    @statement
    def move(self, name: str, target: UUID, *, stop_within_s: float) -> None:
        feed = self._live(name)
        lease = self._db.tables.leases.get(feed.id)
        if lease is None:
            raise Conflict(f"feed {name!r} has no lease at the moment; the next sweep makes one")
        objection = _move(self._db, feed, lease, target, stop_within_s=stop_within_s)
        if objection is not None:
            raise Conflict(f"feed {name!r} {objection}")
        worker = self._db.tables.workers.get(target)
        to = str(target) if worker is None else worker.name
        self._db.record(EventKind.FEED_MOVED, feed_id=feed.id, to=to)

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
        return list(filter(selection.chooses, self.views()))[:limit]

    @statement
    def count(self) -> int:
        return len(self._db.tables.names)

    @statement
    def declared(
        self,
        *,
        tenant: str | None = None,
        names: Sequence[str] | None = None,
        after: str = "",
        limit: int = 1_000,
    ) -> list[Feed]:
        chosen = [
            feed
            for feed in self._db.tables.feeds.values()
            if feed.removed_at is None and feed.name > after and tenant in (None, feed.spec.tenant)
            if names is None or feed.name in names
        ]
        return sorted(chosen, key=lambda f: f.name)[:limit]

    @statement
    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        feed = self._named(name)
        # Told as they come, and folded when they are asked for.
        mine = folded(event for event in self._db.tables.events if event.feed_id == feed.id)
        return mine[::-1][: min(limit, history.EVENTS_PER_FEED)]

    def _live(self, name: str, expected: Version | None = None) -> Feed:
        feed_id = self._db.tables.names.get(name)
        if feed_id is None:
            raise NotFound(f"no feed named {name!r}; `feedq feed list` shows them all")
        feed = self._db.tables.feeds[feed_id]
        require_version(f"feed {name!r}", feed.version, expected)
        return feed

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
        if name in self._db.tables.names:
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


def _move(db: MemoryDatabase, feed: Feed, lease: Lease, target: UUID, *, stop_within_s: float) -> str | None:
    """What a person asks for; what is in its way, if anything is."""
    objection = objection_to_move(feed, lease, target)
    if objection is not None:
        return objection
    if lease.state is LeaseState.RUNNING:
        assert lease.worker_id is not None
        counts.hand_over(db, Transfer(feed.id, lease.worker_id, target), stop_within_s=stop_within_s)
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
