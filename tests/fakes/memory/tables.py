"""The rows of the control database in memory, and what can happen to such a database.

It can be away (every call raises `Unavailable`), lose an answer (the statement took effect, the caller is
told `Unavailable`), fail a commit, be restarted (every session breaks), break single sessions, and lose or delay
notifications.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast
from uuid import UUID, uuid4

from feedq.errors import Unavailable
from feedq.lease import (
    VERDICT_S,
    Move,
    on_loss,
    states_before,
    transition,
)
from feedq.model import Event, Feed, FeedKey, Lease, Loss, Reason, TargetState, Worker
from feedq.telemetry import EventKind
from tests.fakes.clock import ManualClock
from tests.fakes.memory.decisions import awaits_verdict, service_since

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Tables:
    """All rows. Values are frozen, so that a shallow copy is a snapshot."""

    alive_at: datetime
    alive_since: datetime
    server_started_at: datetime | None = None
    feeds: dict[int, Feed] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    leases: dict[int, Lease] = field(default_factory=dict)
    workers: dict[UUID, Worker] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    pass_at: datetime | None = None
    swept_at: datetime | None = None
    evened_out: str | None = None
    waiting_after: int = 0
    active_workers: int = 1
    idle_counts: dict[Reason, int] = field(default_factory=dict)
    wakes: int = 0
    """Notifications that ask for a pass; whoever runs passes takes them back to 0."""

    def copy(self) -> Tables:
        return Tables(
            self.alive_at,
            self.alive_since,
            self.server_started_at,
            dict(self.feeds),
            set(self.dirty),
            dict(self.leases),
            dict(self.workers),
            list(self.events),
            self.pass_at,
            self.swept_at,
            self.evened_out,
            self.waiting_after,
            self.active_workers,
            dict(self.idle_counts),
            self.wakes,
        )


class MemoryDatabase:
    """The server: rows, clock, sessions, and faults."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.started_at = clock.now()
        self.tables = Tables(clock.now(), clock.now(), self.started_at)
        self.installation = uuid4()
        self.sessions: dict[UUID, set[object]] = {}
        self.session_locks: set[UUID] = set()
        """Workers that have held a session; before the first one its absence is no crash."""
        self.notifications: dict[UUID, list[float]] = {}
        """When a worker's listener hears the notifications that it has not heard yet."""
        self.notifications_to_lose = 0
        self.notifications_take_s = 0.0
        self.pass_open = False
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

    def require(self) -> None:
        if self.away:
            raise Unavailable("control database (in memory): away")

    def commit(self) -> None:
        """The end of a pass, which may fail and then takes everything back."""
        self.require()
        if self.commits_to_fail:
            self.commits_to_fail -= 1
            raise Unavailable("control database (in memory): the commit failed")

    def answer(self) -> None:
        """The way back of a statement that has taken effect."""
        self.require()
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise Unavailable("control database (in memory): the answer was lost")

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
        self.tables.events.append(Event(self.now(), kind.value, feed_id, worker_id, epoch, detail))

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
        """Somebody was heard from; a silence longer than ``gap_s`` before it starts the grace period anew."""
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
        """The lease, if this worker holds it under this key and in a state that ``move`` starts from."""
        feed_id, epoch = key
        lease = self.tables.leases.get(feed_id)
        if lease is None or lease.epoch != epoch or lease.worker_id != worker_id:
            return None
        return lease if lease.state in states_before(move) else None

    def set_idle(self, lease: Lease, move: Move, **columns: Any) -> Lease:
        """Back to idle: nobody owns it, and what was touched meanwhile is looked at again."""
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
        """The owner is to let go by then, and hears of it."""
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
        """Back to idle with everything that these workers hold in a state that ``move`` starts from."""
        held = [
            lease
            for lease in self.tables.leases.values()
            if lease.worker_id in worker_ids and lease.state in states_before(move)
        ]
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
    _db: MemoryDatabase


Self = TypeVar("Self", bound=_OnDatabase)


def statement(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """A method that is one transaction: it raises `Unavailable` when the database is away, and when the
    answer is lost after it took effect."""

    @wraps(method)
    def call(self: Self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._db.require()
        result = method(self, *args, **kwargs)
        self._db.answer()
        return result

    return cast(Callable[Concatenate[Self, P], R], call)
