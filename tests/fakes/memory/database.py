"""The rows of the control database in memory, with what is counted of them, and the transitions of a lease."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID, uuid4

from feedq.clock import Clock
from feedq.event_names import EventKind
from feedq.lease import VERDICT_S, Move, on_loss, states_before, transition
from feedq.model import Feed, FeedKey, Lease, LeaseState, Loss, Reason, TargetState, Worker
from feedq.placement.base import Held
from tests.fakes.memory.decisions import awaits_verdict, service_since

P = ParamSpec("P")
R = TypeVar("R")


MovableFeed: TypeAlias = tuple[datetime, Held | None]
"""Since when a feed runs, and what placement is told of it; None when it is not to run any more."""


def counted_at(lease: Lease) -> UUID | None:
    """Finds the worker that a lease counts for: the one that it is promised to, else the one that has it."""
    if lease.promised_to is not None and lease.state in (LeaseState.IDLE, LeaseState.STOPPING):
        return lease.promised_to
    return lease.worker_id


_COLUMNS = tuple(column.name for column in fields(Lease))
_VALUES = attrgetter(*_COLUMNS)
_PLACES = {name: place for place, name in enumerate(_COLUMNS)}


def changed(lease: Lease, **columns: Any) -> Lease:
    """A lease with other values in some columns. It has dozens of them: `dataclasses.replace` takes twice as
    long."""
    values = list(_VALUES(lease))
    for name, value in columns.items():
        values[_PLACES[name]] = value
    return Lease(*values)


class LeaseTable(dict[int, Lease]):
    """Holds leases by feed id. What statements look for is kept at hand, so that none has to look through all."""

    def __init__(self, leases: Mapping[int, Lease] | None = None) -> None:
        super().__init__()
        self._held: dict[tuple[UUID | None, LeaseState], dict[int, MovableFeed | None]] = defaultdict(dict)
        self.in_state: dict[LeaseState, set[int]] = {state: set() for state in LeaseState}
        self.counted: dict[UUID, set[int]] = defaultdict(set)
        """The feeds that count for a worker."""
        self.load: dict[UUID, float] = defaultdict(float)
        """Sum of the weights of these."""
        self.delayed: set[int] = set()
        """Idle feeds that wait for their `retry_at`."""
        self.kept: set[int] = set()
        """Feeds that wait for the successor of a worker."""
        self.moving: set[int] = set()
        self.avoiding: set[int] = set()
        self.quarantined: set[int] = set()
        for feed_id, lease in (leases or {}).items():
            self[feed_id] = lease

    def __setitem__(self, feed_id: int, lease: Lease) -> None:
        before = self.get(feed_id)
        super().__setitem__(feed_id, lease)
        if before is not None:
            if _counted_alike(before, lease):
                self.touch(feed_id)
                return
            self._forget(feed_id, before)
        self._held[lease.worker_id, lease.state][feed_id] = None
        self.in_state[lease.state].add(feed_id)
        if (worker_id := counted_at(lease)) is not None:
            self.counted[worker_id].add(feed_id)
            self.load[worker_id] += lease.weight
        for ids, belongs in self._sets(lease):
            if belongs:
                ids.add(feed_id)

    def __delitem__(self, feed_id: int) -> None:
        self._forget(feed_id, self[feed_id])
        super().__delitem__(feed_id)

    def held(self, worker_id: UUID, *states: LeaseState) -> list[Lease]:
        """Lists what this worker has in one of these states, by feed id."""
        ids = [feed_id for state in states for feed_id in self._held.get((worker_id, state), ())]
        return [self[feed_id] for feed_id in sorted(ids)]

    def running_on(self, worker_id: UUID) -> dict[int, MovableFeed | None]:
        """Ids of what runs on this worker, the one that has run there longest first, each with what was noted of
        it since it last changed: passes ask for thousands."""
        return self._held[worker_id, LeaseState.RUNNING]

    def touch(self, feed_id: int) -> None:
        """Forget what was noted of a feed."""
        lease = self[feed_id]
        self._held[lease.worker_id, lease.state][feed_id] = None

    def number_held(self, worker_id: UUID, *states: LeaseState) -> int:
        return sum(len(self._held.get((worker_id, state), ())) for state in states)

    def _forget(self, feed_id: int, lease: Lease) -> None:
        del self._held[lease.worker_id, lease.state][feed_id]
        self.in_state[lease.state].remove(feed_id)
        if (worker_id := counted_at(lease)) is not None:
            self.counted[worker_id].remove(feed_id)
            # Exactly nothing, and not what rounding has left of it.
            self.load[worker_id] = self.load[worker_id] - lease.weight if self.counted[worker_id] else 0.0
        for ids, belongs in self._sets(lease):
            if belongs:
                ids.remove(feed_id)

    def _sets(self, lease: Lease) -> tuple[tuple[set[int], bool], ...]:
        is_idle = lease.state is LeaseState.IDLE
        return (
            (self.delayed, is_idle and lease.retry_at is not None),
            (self.kept, lease.held_for is not None),
            (self.moving, lease.moved_at is not None),
            (self.avoiding, bool(lease.avoid)),
            (self.quarantined, lease.quarantined),
        )


def _counted_alike(before: Lease, after: Lease) -> bool:
    """Tells whether nothing has changed of what a `LeaseTable` keeps at hand."""
    return (
        before.state is after.state
        and before.worker_id == after.worker_id
        and before.promised_to == after.promised_to
        and before.weight == after.weight
        and before.quarantined == after.quarantined
        and before.held_for == after.held_for
        and (before.retry_at is None) == (after.retry_at is None)
        and (before.moved_at is None) == (after.moved_at is None)
        and bool(before.avoid) == bool(after.avoid)
    )


@dataclass(slots=True)
class Tables:
    """Holds all rows. Values are frozen."""

    alive_at: datetime
    alive_since: datetime
    server_started_at: datetime | None = None
    feeds: dict[int, Feed] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    leases: LeaseTable = field(default_factory=LeaseTable)
    names: dict[str, int] = field(default_factory=dict)
    """Ids of the feeds that are not being removed."""
    workers: dict[UUID, Worker] = field(default_factory=dict)
    pass_at: datetime | None = None
    swept_at: datetime | None = None
    evened_out: str | None = None
    waiting_after: int = 0
    active_workers: int = 1
    idle_counts: dict[Reason, int] = field(default_factory=dict)


class SimulatedDatabase:
    """Plays the server: rows, clock and sessions. Nothing fails here; what may, is for the tests to add."""

    tables: Tables

    def __init__(
        self,
        clock: Clock,
        *,
        on_wake: Callable[[], None] = lambda: None,
        on_notify: Callable[[UUID], None] = lambda worker_id: None,
    ) -> None:
        """``on_wake`` hears that a pass should run, ``on_notify`` that a worker is to ask for its orders."""
        self.clock = clock
        self.started_at = clock.now()
        self.tables = Tables(clock.now(), clock.now(), self.started_at)
        self.installation = uuid4()
        self.sessions: dict[UUID, set[object]] = {}
        self.session_locks: set[UUID] = set()
        """Workers that have held a session; before the first one its absence is no crash."""
        self.registered: Counter[str] = Counter()
        """Worker sessions that ever began, by the name of the worker."""
        self.pass_open = False
        self._on_wake, self._on_notify = on_wake, on_notify
        self._last_feed_id = 0
        self._last_lock_key = 0

    def now(self) -> datetime:
        return self.clock.now()

    def next_feed_id(self) -> int:
        self._last_feed_id += 1
        return self._last_feed_id

    def next_lock_key(self) -> int:
        self._last_lock_key += 1
        return self._last_lock_key

    # -- what may fail -------------------------------------------------------------------------------

    def require(self) -> None:
        """Begin a statement; raises `Unavailable` while the database is away."""

    def answer(self) -> None:
        """Send the answer of a statement that has taken effect; raises `Unavailable` if that is lost."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Carry out a pass, or nothing of it."""
        yield

    # -- what statements have in common --------------------------------------------------------------

    def record(
        self,
        kind: EventKind,
        *,
        feed_id: int | None = None,
        worker_id: UUID | None = None,
        epoch: int | None = None,
        **detail: Any,
    ) -> None:
        """Write a line of history, where that is kept."""

    def trim_history(self) -> None:
        """Forget what is too old of it."""

    def wake(self) -> None:
        self._on_wake()

    def notify(self, worker_ids: Iterable[UUID]) -> None:
        for worker_id in worker_ids:
            self._on_notify(worker_id)

    def stamp_alive(self, gap_s: float) -> None:
        """Notes that somebody was heard from; after a silence beyond ``gap_s`` the grace period starts anew."""
        self.tables.alive_since = self.service_since(gap_s)
        self.tables.alive_at = self.now()
        self.tables.server_started_at = self.started_at

    def service_since(self, gap_s: float) -> datetime:
        tables = self.tables
        has_restarted = tables.server_started_at != self.started_at
        return service_since(
            tables.alive_since, tables.alive_at, has_restarted=has_restarted, now=self.now(), gap_s=gap_s
        )

    def matched(self, worker_id: UUID, key: FeedKey, move: Move) -> Lease | None:
        """Finds the lease, if this worker holds it under this key and in a state that ``move`` starts from."""
        feed_id, epoch = key
        lease = self.tables.leases.get(feed_id)
        if lease is None or lease.epoch != epoch or lease.worker_id != worker_id:
            return None
        return lease if lease.state in states_before(move) else None

    def set_idle(self, lease: Lease, move: Move, **columns: Any) -> Lease:
        """Sets a lease back to idle: nobody owns it, and what was touched meanwhile is looked at again."""
        # What is on its way to another worker stays so when its owner lets go of it, or is no longer waited
        # for.
        keeps_promise = move in (Move.RELEASE, Move.REAP) and columns.get("reason") is not Reason.FAILED
        at_rest = {
            "worker_id": None,
            "connected": False,
            "stalled": False,
            "stop_by": None,
            "held_for": None,
            "promised_to": lease.promised_to if keeps_promise else None,
            "moved_at": lease.moved_at if keeps_promise and lease.promised_to is not None else None,
        }
        idle = changed(lease, state=transition(lease.state, move), **{**at_rest, **columns})
        self.tables.leases[lease.feed_id] = idle
        feed = self.tables.feeds[lease.feed_id]
        # A pause that was taken back before the owner let go, a failure of a declaration that has been
        # edited since, a removal: each was absorbed while the lease was held, and must not be forgotten.
        if (
            feed.removed_at is not None
            or feed.spec.target_state is not TargetState.RUNNING
            or lease.generation < feed.generation
        ):
            self.tables.dirty.add(lease.feed_id)
        return idle

    def blame(self, feed_id: int, worker_id: UUID, loss: Loss, *, said: str) -> None:
        """Hold the loss of a worker against a feed."""
        lease = self.tables.leases.get(feed_id)
        if lease is None:
            return
        verdict = on_loss(lease, is_certain=loss.is_certain, now=self.now())
        self.tables.leases[feed_id] = changed(
            lease,
            blamed=verdict.blamed,
            blamed_at=self.now(),
            blame=said,
            quarantined=verdict.quarantined,
        )
        if verdict.quarantined and not lease.quarantined:
            self.record(EventKind.FEED_QUARANTINED, feed_id=feed_id, worker_id=worker_id, why=said)
        self.wake()

    def ask_to_stop(
        self,
        lease: Lease,
        reason: Reason | None,
        *,
        stop_within_s: float,
        promised_to: UUID | None = None,
        **said: str,
    ) -> None:
        """Asks the owner to let go by then, and tells it."""
        self.tables.leases[lease.feed_id] = changed(
            lease,
            state=transition(lease.state, Move.ASK_TO_STOP),
            reason=reason,
            promised_to=promised_to,
            moved_at=self.now() if promised_to is not None else lease.moved_at,
            stop_by=self.now() + timedelta(seconds=stop_within_s),
        )
        self.record(
            EventKind.STOP_REQUESTED,
            feed_id=lease.feed_id,
            worker_id=lease.worker_id,
            epoch=lease.epoch,
            reason=reason.value if reason else "",
            **said,
        )
        assert lease.worker_id is not None
        self.notify([lease.worker_id])

    def free(self, worker_ids: Collection[UUID], move: Move, reason: Reason) -> int:
        """Sets back to idle everything that these workers hold in a state that ``move`` starts from."""
        leases, states = self.tables.leases, states_before(move)
        held = [lease for worker_id in worker_ids for lease in leases.held(worker_id, *states)]
        is_lost = reason is Reason.WORKER_GONE
        for lease in held:
            lost = self.tables.workers.get(lease.lost_worker) if lease.lost_worker else None
            is_explained = lost is None or lost.loss is not None
            waits = is_lost and awaits_verdict(lease, is_explained=is_explained, now=self.now())
            self.set_idle(
                lease,
                move,
                reason=reason,
                retry_at=self.now() + timedelta(seconds=VERDICT_S) if waits else None,
                lost_worker=lease.worker_id if is_lost else lease.lost_worker,
                lost_at=self.now() if is_lost else lease.lost_at,
            )
            self.record(
                EventKind.LEASE_FREED,
                feed_id=lease.feed_id,
                worker_id=lease.worker_id,
                epoch=lease.epoch,
                reason=reason.value,
            )
        return len(held)


class _OnDatabase(Protocol):
    @property
    def _db(self) -> SimulatedDatabase: ...


Self = TypeVar("Self", bound=_OnDatabase)


def statement(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Makes a method one transaction, which raises `Unavailable` when the database is away, and when the
    answer is lost after it took effect."""

    @wraps(method)
    def call(self: Self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._db.require()
        result = method(self, *args, **kwargs)
        self._db.answer()
        return result

    return cast(Callable[Concatenate[Self, P], R], call)
