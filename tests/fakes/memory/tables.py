"""The rows of the control database in memory, the transitions of a lease, and the faults of the server.

The server can be away (every call raises `Unavailable`), lose an answer (the statement took effect, the caller is
told `Unavailable`), fail a commit, restart (every session breaks), break single sessions, and lose or delay
notifications.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast
from uuid import UUID, uuid4

from feedq.core.authorship import signed
from feedq.core.lease import VERDICT_S, Move, on_loss, states_before, transition
from feedq.core.model import Event, Feed, FeedKey, Lease, LeaseState, Loss, Reason, TargetState, Worker
from feedq.errors import Unavailable
from feedq.telemetry.event_names import EventKind
from tests.fakes.clock import ManualClock
from tests.fakes.memory.decisions import awaits_verdict, service_since

P = ParamSpec("P")
R = TypeVar("R")


def counted_at(lease: Lease) -> UUID | None:
    """The worker that a lease counts for: the one that it is promised to, else the one that has it."""
    if lease.promised_to is not None and lease.state in (LeaseState.IDLE, LeaseState.STOPPING):
        return lease.promised_to
    return lease.worker_id


@dataclass(slots=True)
class Tables:
    """All rows. Values are frozen."""

    alive_at: datetime
    alive_since: datetime
    server_started_at: datetime
    feeds: dict[int, Feed] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    leases: dict[int, Lease] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    """Ids of the feeds that are not being removed."""
    workers: dict[UUID, Worker] = field(default_factory=dict)
    pass_at: datetime | None = None
    swept_at: datetime | None = None
    evened_out: str | None = None
    waiting_after: int = 0
    active_workers: int = 1
    events: list[Event] = field(default_factory=list)
    wakes: int = 0
    """Notifications that ask for a pass; whoever runs passes takes them back to 0."""

    def copy(self) -> Tables:
        """A snapshot, to go back to."""
        return replace(
            self,
            feeds=dict(self.feeds),
            names=dict(self.names),
            dirty=set(self.dirty),
            leases=dict(self.leases),
            workers=dict(self.workers),
            events=list(self.events),
        )

    def in_state(self, *states: LeaseState) -> list[Lease]:
        """All leases in one of these states, by feed id."""
        return sorted((x for x in self.leases.values() if x.state in states), key=lambda x: x.feed_id)

    def held(self, worker_id: UUID, *states: LeaseState) -> list[Lease]:
        """What this worker has in one of these states, by feed id."""
        return [lease for lease in self.in_state(*states) if lease.worker_id == worker_id]


class MemoryDatabase:
    """The server: rows, clock and sessions, and its faults."""

    def __init__(self, clock: ManualClock, *, retention_days: int) -> None:
        self.clock, self.retention_days = clock, retention_days
        self.started_at = clock.now()
        self.tables = Tables(clock.now(), clock.now(), self.started_at)
        self.installation = uuid4()
        self.sessions: dict[UUID, set[object]] = {}
        self.session_locks: set[UUID] = set()
        """Workers that have held a session; before the first one its absence is no crash."""
        self.registered: Counter[str] = Counter()
        """Worker sessions that ever began, by the name of the worker."""
        self.pass_open = False
        self.notifications: dict[UUID, list[float]] = {}
        """When a worker's listener hears the notifications that it has not heard yet."""
        self.notifications_to_lose = 0
        self.notifications_take_s = 0.0
        self.away = False
        self.answers_to_lose = 0
        self.commits_to_fail = 0
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
        """Begin a statement."""
        if self.away:
            raise Unavailable("control database (in memory): away")

    def answer(self) -> None:
        """Send the answer of a statement that has taken effect."""
        self.require()
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise Unavailable("control database (in memory): the answer was lost")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Carry out everything, or nothing of it."""
        before = self.tables.copy()
        try:
            yield
            self.require()
            if self.commits_to_fail:
                self.commits_to_fail -= 1
                raise Unavailable("control database (in memory): the commit failed")
        except BaseException:
            self.tables = before
            raise

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
        """Write a line of history."""
        self.tables.events.append(Event(self.now(), kind.value, feed_id, worker_id, epoch, signed(detail)))

    def trim_history(self) -> None:
        oldest = self.now() - timedelta(days=self.retention_days)
        self.tables.events = [event for event in self.tables.events if event.at >= oldest]

    def wake(self) -> None:
        self.tables.wakes += 1

    def notify(self, worker_ids: Iterable[UUID]) -> None:
        for worker_id in worker_ids:
            if self.notifications_to_lose:
                self.notifications_to_lose -= 1
            else:
                self.notifications.setdefault(worker_id, []).append(
                    self.clock.monotonic() + self.notifications_take_s
                )

    def hear(self, worker_id: UUID) -> bool:
        """Whether a notification has come in since the last time."""
        coming, now = self.notifications.pop(worker_id, []), self.clock.monotonic()
        if late := [at for at in coming if at > now]:
            self.notifications[worker_id] = late
        return len(late) < len(coming)

    def stamp_alive(self, gap_s: float) -> None:
        """Note that somebody was heard from; after a silence beyond ``gap_s`` the grace period starts anew."""
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
        idle = replace(lease, state=transition(lease.state, move), **{**at_rest, **columns})
        self.tables.leases[lease.feed_id] = idle
        feed = self.tables.feeds[lease.feed_id]
        # A pause that was taken back before the owner let go, a failure of a declaration that has been
        # edited since, a removal: each was absorbed while the lease was held, and must not be forgotten.
        if (
            feed.removed_at is not None
            or feed.spec.target_state is not TargetState.RUNNING
            or lease.generation < feed.stream_generation
        ):
            self.tables.dirty.add(lease.feed_id)
        return idle

    def blame(self, feed_id: int, worker_id: UUID, loss: Loss, *, said: str) -> None:
        """Hold the loss of a worker against a feed."""
        lease = self.tables.leases.get(feed_id)
        if lease is None:
            return
        verdict = on_loss(lease, is_certain=loss.is_certain, now=self.now())
        self.tables.leases[feed_id] = replace(
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
        self.tables.leases[lease.feed_id] = replace(
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
        held = [x for worker_id in worker_ids for x in self.tables.held(worker_id, *states_before(move))]
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
    def _db(self) -> MemoryDatabase: ...


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
