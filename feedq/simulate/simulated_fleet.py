"""Feeds and workers on paper, and what may happen to a lease between them.

The counts of a worker are kept as the control database keeps them: what it was given and what is promised to it,
less what it was asked to hand over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from feedq.lease import Move, transition
from feedq.model import LeaseState, Reason, Selector, WorkerState, WorkerTarget
from feedq.placement.base import EligibleWorker, Held, Rules, WaitingFeed
from feedq.simulate.dialling import Dial, Dialler
from feedq.simulate.record import Recorder

BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Midnight of the simulation; policies want a date."""


def moment(ms: int) -> datetime:
    return BEGINNING + timedelta(milliseconds=ms)


@dataclass(slots=True, eq=False)
class SimulatedFeed:
    """A feed with its lease."""

    id: int
    weight: float
    tenant: str
    host: str
    selector: Selector
    down_since: int
    down_phase: int
    state: LeaseState = LeaseState.IDLE
    reason: Reason | None = Reason.NEW
    epoch: int = 0
    owner: SimulatedWorker | None = None
    promised_to: SimulatedWorker | None = None
    attempts: int = 0
    dial: Dial | None = None
    """While it waits for its turn to connect."""
    after_loss: bool = False
    """Whether its last owner was lost, and it has not been in line for its turn since."""
    connected: bool = False
    removed: bool = False
    home: str = ""
    """Name of the worker that it was given to last."""
    moves: int = 0
    held: Held | None = None
    """What placement knows of it while it is where it is; made once, for it is asked for many times."""

    def as_held(self, worker_id: UUID) -> Held:
        self.held = Held(self.id, worker_id, self.weight, self.tenant, self.selector)
        return self.held


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker session."""

    id: UUID
    name: str
    capacity: int
    labels: Mapping[str, str]
    started_at: int
    beats_at: int
    """When, within its interval, it sends its heartbeat."""
    dialler: Dialler
    state: WorkerState = WorkerState.ACTIVE
    target: WorkerTarget = WorkerTarget.SERVING
    is_up: bool = True
    """Whether its process runs; the control plane only learns of it."""
    feeds: int = 0
    load: float = 0.0
    tenants: Counter[str] = field(default_factory=Counter)
    leases: dict[int, SimulatedFeed] = field(default_factory=dict)
    """Feeds that it owns, by id; the one that it has had longest first."""

    def count(self, feed: SimulatedFeed, sign: int) -> None:
        self.feeds += sign
        self.load += sign * feed.weight
        if feed.tenant:
            self.tenants[feed.tenant] += sign

    @property
    def serves(self) -> bool:
        return self.state is WorkerState.ACTIVE and self.target is WorkerTarget.SERVING

    def as_candidate(self) -> EligibleWorker:
        return EligibleWorker(
            self.id,
            self.name,
            self.name,
            self.capacity,
            self.feeds,
            self.load,
            moment(self.started_at),
            self.labels,
            self.tenants,
        )


class SimulatedFleet:
    """All of them, and the transitions."""

    def __init__(self, recorder: Recorder, rules: Rules) -> None:
        self._recorder = recorder
        self.rules = rules
        self.feeds: list[SimulatedFeed] = []
        self.sessions: dict[UUID, SimulatedWorker] = {}
        """Every worker session that has not ended, the last of a name included."""
        self.waiting: dict[int, SimulatedFeed] = {}
        """Idle feeds that may be placed now."""
        self._moved_at: dict[int, int] = {}
        """When feeds were asked to move that are not connected at their new worker yet, by id."""
        self._active = 0
        self._held: dict[str, dict[int, SimulatedFeed]] = {}
        """Feeds that are kept for the successor of a worker, by its name."""
        self.changes = 0
        """Counts whatever may change the next decision."""

    # -- what there is -------------------------------------------------------------------------------

    @property
    def active_workers(self) -> int:
        """As workers hear it, to know their part of a pace; 1 at least."""
        return max(1, self._active)

    def up(self) -> list[SimulatedWorker]:
        """Workers whose process runs and is not about to end."""
        return [w for w in self.sessions.values() if w.is_up and w.state is WorkerState.ACTIVE]

    def candidates(self) -> list[EligibleWorker]:
        return [w.as_candidate() for w in self.sessions.values() if w.serves]

    @property
    def held(self) -> int:
        """Feeds that are kept for the successor of a worker."""
        return sum(len(feeds) for feeds in self._held.values())

    def under_way(self, *, since: int) -> Counter[UUID]:
        """Feeds that were asked to move since then and have not arrived, by the worker that they go to."""
        moving = (self.feeds[feed_id] for feed_id, at in self._moved_at.items() if at > since)
        goals = (feed.promised_to or feed.owner for feed in moving)
        return Counter(goal.id for goal in goals if goal is not None)

    def next_waiting(self, limit: int) -> list[WaitingFeed]:
        page: list[WaitingFeed] = []
        for feed in self.waiting.values():
            if len(page) == limit:
                break
            promised = None if feed.promised_to is None else feed.promised_to.id
            page.append(WaitingFeed(feed.id, feed.weight, feed.reason, feed.tenant, feed.selector, promised))
        return page

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        """Running feeds of these workers, shared evenly by them, the one that has run there longest first."""
        found: list[Held] = []
        each = max(1, limit // max(1, len(worker_ids)))
        for worker_id in worker_ids:
            worker = self.sessions[worker_id]
            running = (f for f in worker.leases.values() if f.state is LeaseState.RUNNING)
            found += [
                feed.held or feed.as_held(worker_id) for feed, _ in zip(running, range(each), strict=False)
            ]
        return found

    # -- leases --------------------------------------------------------------------------------------

    def declare(self, feeds: Sequence[SimulatedFeed]) -> None:
        self.feeds += feeds
        self.waiting |= {feed.id: feed for feed in feeds}
        self._recorder.feeds_declared(len(feeds))
        self.changes += 1

    def assign(self, feed: SimulatedFeed, worker: SimulatedWorker) -> None:
        feed.state = transition(feed.state, Move.ASSIGN)
        del self.waiting[feed.id]
        if feed.promised_to is not None:
            feed.promised_to.count(feed, -1)
            feed.promised_to = None
        feed.epoch += 1
        feed.owner, feed.reason = worker, None
        worker.leases[feed.id] = feed
        worker.count(feed, 1)
        self._recorder.given(feed, worker.name)
        feed.home = worker.name
        self.changes += 1

    def claim(self, feed: SimulatedFeed) -> None:
        feed.state = transition(feed.state, Move.CLAIM)
        self.changes += 1

    def promise(self, feed: SimulatedFeed, target: SimulatedWorker, *, now: int) -> None:
        """Ask the owner to let go of it, for another worker."""
        assert feed.owner is not None
        feed.state = transition(feed.state, Move.ASK_TO_STOP)
        feed.reason, feed.promised_to = Reason.MOVED, target
        feed.owner.count(feed, -1)
        target.count(feed, 1)
        self._moved_at[feed.id] = now
        self.changes += 1

    def ask_to_stop(self, feed: SimulatedFeed) -> None:
        """For good: it is removed."""
        feed.state = transition(feed.state, Move.ASK_TO_STOP)

    def let_go(self, feed: SimulatedFeed, move: Move, reason: Reason) -> None:
        """The owner released it, or is gone. Whether it waits for a place now is for the caller to say."""
        owner = feed.owner
        assert owner is not None
        if feed.state is not LeaseState.STOPPING or feed.promised_to is None:
            owner.count(feed, -1)
            self._moved_at.pop(feed.id, None)
        feed.state = transition(feed.state, move)
        feed.owner, feed.reason, feed.held = None, reason, None
        feed.after_loss = reason is Reason.WORKER_GONE
        del owner.leases[feed.id]
        self.changes += 1

    def wait(self, feed: SimulatedFeed) -> None:
        """It may be placed from now on."""
        if feed.state is LeaseState.IDLE and not feed.removed:
            self.waiting.setdefault(feed.id, feed)
            self.changes += 1

    def forget(self, feed: SimulatedFeed, *, now: int) -> None:
        """It is removed, and nobody has it any more."""
        self._moved_at.pop(feed.id, None)
        self.waiting.pop(feed.id, None)
        self.end_hold(feed)
        if feed.promised_to is not None:
            feed.promised_to.count(feed, -1)
            feed.promised_to = None
        self._recorder.feed_forgotten(feed, now)
        self.changes += 1

    def connect(self, feed: SimulatedFeed, *, now: int) -> None:
        if not feed.connected:
            feed.connected = True
            self._recorder.feed_up(feed, now)

    def is_moving(self, feed: SimulatedFeed) -> bool:
        """Whether it was asked to move, and nobody knows yet that it has arrived."""
        return feed.id in self._moved_at

    def arrive(self, feed: SimulatedFeed) -> None:
        """The control plane hears that a feed that moved is connected."""
        if self._moved_at.pop(feed.id, None) is not None:
            self.changes += 1

    def disconnect(self, feed: SimulatedFeed, *, now: int) -> None:
        if feed.connected:
            feed.connected = False
            self._recorder.feed_down(feed, now)

    def note_change(self) -> None:
        """Something that the counts do not show may change the next decision."""
        self.changes += 1

    # -- workers -------------------------------------------------------------------------------------

    def register(self, worker: SimulatedWorker) -> None:
        """A new session is there; what was held for one of its name is promised to it."""
        self.sessions[worker.id] = worker
        self._active += 1
        self.changes += 1
        for feed in self._held.pop(worker.name, {}).values():
            feed.promised_to = worker
            worker.count(feed, 1)
            self.wait(feed)

    def drain(self, worker: SimulatedWorker) -> None:
        """It is about to end, and said so."""
        worker.state = WorkerState.DRAINING
        self._active -= 1
        self.changes += 1

    def end(self, worker: SimulatedWorker) -> None:
        """The control plane knows that it is gone."""
        if worker.state is WorkerState.ACTIVE:
            self._active -= 1
        worker.state = WorkerState.GONE
        del self.sessions[worker.id]
        self.changes += 1

    def hold(self, feed: SimulatedFeed, name: str) -> None:
        """Keep an idle feed for the successor of the worker of this name."""
        feed.reason = Reason.HELD
        self._held.setdefault(name, {})[feed.id] = feed

    def end_hold(self, feed: SimulatedFeed) -> None:
        """Nobody came for it: anybody may have it."""
        for held in self._held.values():
            held.pop(feed.id, None)
