"""The decisions of a worker, as a state machine without threads, input, output or Celery.

Events go in, as calls of `WorkerCore`: a heartbeat was answered, an assignment was found, a claim was granted, a
feed has ended, time has passed. Each call returns the actions that follow, in the order in which they are to be
carried out. The core itself does nothing; whoever drives it carries them out and reports what came of it:

* `feedq.worker.supervisor` with the threads of a worker process,
* the scenarios and simulations of the tests, with a clock that they set themselves.

An event may come late, twice, or after what it is about has ended; it then has no effect. Times are seconds of one
monotonic clock, and every event that depends on the time is told it.

The worker session and each feed have a state; `SESSION_TRANSITIONS` and `FEED_TRANSITIONS` list what may follow
what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from types import MappingProxyType
from uuid import UUID

from feedq.core.lease import TrustWindow
from feedq.core.limits import AUDITS_GATHERED_S, STOPS_TOGETHER, stops_pause_s
from feedq.core.model import Claim, FeedKey, Heartbeat, Reason, Release, StopRequest, WorkerState
from feedq.core.worker_actions import (
    AcceptMessage,
    Action,
    AnnounceDrain,
    ClaimFeeds,
    Drained,
    DropMessage,
    FetchHeld,
    FetchOrders,
    FinishMessage,
    LoseFeeds,
    ReleaseLeases,
    Resume,
    RunReconcile,
    StartApart,
    StartFeeds,
    StopFeeds,
    Suspend,
)
from feedq.settings import HEARTBEAT_MIN_S, Settings

APART_SLOTS = 4
"""Feeds that one worker runs apart at a time, each in a process of its own that may take 1 GiB."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 1.0
"""A database that is back is noticed within this, well inside what is left of a ttl."""
WATCHDOG_INTERVALS = 3
"""Reconcile intervals without a finished pass after which a worker runs one itself."""
WATCHDOG_MIN_S = 1.0
"""The least of these waits: with an interval of nothing every heartbeat of every worker would become a pass."""
WATCHDOG_JITTER = 0.2
"""Spreads the watchdogs of a fleet over a fifth of their wait, so that the first one spares the others."""
LOST_S = 0.5
"""How often a feed whose lease is lost is told to end, and its sockets are shut, until it has ended. Its
connector, or a library of that, may swallow the cancellation and keep reading from a source that another worker
already owns."""
AUDIT_INTERVAL_S = 60.0
"""How often what runs here is compared with what the database thinks runs here."""
STOPS_PART = 0.5
"""The part of the drain timeout within which all feeds of a leaving worker are told to stop. With a larger one the
last of them have no time to commit, and their leases wait to be taken away; with a smaller one more feeds of the
fleet begin at once than their sources may like."""
NO_SLOT_RETRY_S = 30.0
"""When a feed that is to run apart is tried again for which no slot was free here."""


# -- states ------------------------------------------------------------------------------------------


class SessionState(StrEnum):
    """The standing of this process with the control database."""

    JOINING = "joining"
    """It has no worker session, or one that no heartbeat has confirmed yet."""
    SERVING = "serving"
    """It may act as the owner of its leases, until its trust window ends."""
    SUSPENDED = "suspended"
    """It may have been declared gone: its sockets are cut and its leases kept until the database has answered."""


class SessionEvent(StrEnum):
    """An event that changes the state of the worker session."""

    CONFIRMED = "confirmed"
    """A heartbeat was answered."""
    TRUST_ENDED = "trust_ended"
    """The trust window ended, the last connection to the database was lost, or the event loop stands
    still."""
    DECLARED_GONE = "declared_gone"
    """The database says that the worker session is over."""


SESSION_TRANSITIONS: Mapping[tuple[SessionState, SessionEvent], SessionState] = MappingProxyType(
    {
        (SessionState.JOINING, SessionEvent.CONFIRMED): SessionState.SERVING,
        (SessionState.JOINING, SessionEvent.TRUST_ENDED): SessionState.JOINING,
        (SessionState.JOINING, SessionEvent.DECLARED_GONE): SessionState.JOINING,
        (SessionState.SERVING, SessionEvent.CONFIRMED): SessionState.SERVING,
        (SessionState.SERVING, SessionEvent.TRUST_ENDED): SessionState.SUSPENDED,
        (SessionState.SERVING, SessionEvent.DECLARED_GONE): SessionState.JOINING,
        (SessionState.SUSPENDED, SessionEvent.CONFIRMED): SessionState.SERVING,
        (SessionState.SUSPENDED, SessionEvent.TRUST_ENDED): SessionState.SUSPENDED,
        (SessionState.SUSPENDED, SessionEvent.DECLARED_GONE): SessionState.JOINING,
    }
)


class FeedState(StrEnum):
    """The progress of a feed from its assignment to the end of its stream."""

    CLAIMING = "claiming"
    """Its claim is on the way to the database."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was told to commit what it has received and to end."""
    LOST = "lost"
    """It has or may have another owner, and has not ended yet."""
    APART = "apart"
    """A process was begun for it, which takes its lease over and answers for it as any worker does."""


class FeedEvent(StrEnum):
    """An event that changes the state of a feed."""

    GRANTED = "granted"
    PART = "part"
    STOP = "stop"
    LOSE = "lose"


FEED_TRANSITIONS: Mapping[tuple[FeedState, FeedEvent], FeedState] = MappingProxyType(
    {
        (FeedState.CLAIMING, FeedEvent.GRANTED): FeedState.RUNNING,
        (FeedState.CLAIMING, FeedEvent.PART): FeedState.APART,
        (FeedState.RUNNING, FeedEvent.STOP): FeedState.STOPPING,
        (FeedState.RUNNING, FeedEvent.LOSE): FeedState.LOST,
        (FeedState.STOPPING, FeedEvent.STOP): FeedState.STOPPING,
        (FeedState.STOPPING, FeedEvent.LOSE): FeedState.LOST,
        (FeedState.LOST, FeedEvent.STOP): FeedState.LOST,
        (FeedState.LOST, FeedEvent.LOSE): FeedState.LOST,
    }
)
"""A feed that was refused or has ended is forgotten: there is no state for that."""


@dataclass(slots=True, eq=False)
class WorkerFeed:
    """A feed of this worker."""

    key: FeedKey
    message: object = None
    """What the driver passed with the message of the assignment, once that has come."""
    state: FeedState = FeedState.CLAIMING
    told_at: float = float("-inf")
    """When it was last told that its lease is lost."""

    def after(self, event: FeedEvent) -> None:
        self.state = FEED_TRANSITIONS[self.state, event]


# -- the core ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Drain:
    """The feeds of a leaving worker that have not been told to stop yet."""

    waiting: deque[WorkerFeed] = field(default_factory=deque)
    pause_s: float = 0.0
    next_at: float = float("inf")


class WorkerCore:
    """The decisions of one worker process, through as many worker sessions as it takes. Not thread-safe."""

    def __init__(self, settings: Settings, *, rng: Random, now: float, is_apart: bool = False) -> None:
        """``is_apart``: this is the process of one feed that runs apart."""
        self._settings, self._is_apart = settings, is_apart
        self.state = SessionState.JOINING
        self.worker_id: UUID | None = None
        """The worker session. None: one has to be registered before any heartbeat, unless the worker leaves."""
        self.capacity = 0
        self.drain_began: float | None = None
        self._trust = TrustWindow()
        self.live_connections: set[str] = set()
        """The connections to the database that hold the worker's lock, by name."""
        self._is_reconnecting = False
        """Whether one of them was lost since a heartbeat was last answered."""
        self.is_stalled = False
        """Whether the event loop stands still. No heartbeat is due then: a lease is kept by progress, and threads
        that go on are no sign of it."""
        self.heartbeat_at = now
        """When the next heartbeat is due."""
        self._retry_s = RETRY_FIRST_S
        watchdog_s = max(settings.reconcile_interval_s * WATCHDOG_INTERVALS, WATCHDOG_MIN_S)
        self._watchdog_s = watchdog_s * (1 + WATCHDOG_JITTER * rng.random())
        self._watchdog_at = now + self._watchdog_s
        self._audit_at = now + AUDIT_INTERVAL_S
        self._feeds: dict[FeedKey, WorkerFeed] = {}
        self._running: dict[int, WorkerFeed] = {}
        """By feed id: what was granted last, until it ends. An earlier stream of the feed may still be ending."""
        self._lost: dict[FeedKey, WorkerFeed] = {}
        self._claiming = 0
        self._asked: set[FeedKey] = set()
        """The feeds of which the database said last that they are to stop."""
        self._drain = _Drain()

    # -- what there is -------------------------------------------------------------------------------

    def is_trusted(self, now: float) -> bool:
        """Return whether this worker may act as owner of its leases at this moment."""
        return self.state is SessionState.SERVING and self._trust.holds(now)

    @property
    def is_draining(self) -> bool:
        """Whether this worker lets go of everything, to leave."""
        return self.drain_began is not None

    @property
    def feeds(self) -> int:
        """The number of feeds that have been granted and have not ended."""
        return len(self._running)

    def __iter__(self) -> Iterator[WorkerFeed]:
        """Iterate over the feeds that have been granted and have not ended."""
        return iter(list(self._running.values()))

    def wakes_at(self) -> float:
        """Return when `tick` is due, unless an event comes first."""
        ends = self._trust.until if self.state is SessionState.SERVING else float("inf")
        lost = min((feed.told_at + LOST_S for feed in self._lost.values()), default=float("inf"))
        return min(ends, lost, self._audit_at, self._drain.next_at)

    # -- the worker session --------------------------------------------------------------------------

    def registered(self, worker_id: UUID, *, capacity: int, now: float) -> list[Action]:
        """A worker session has begun. The next heartbeat confirms it."""
        self.worker_id = worker_id
        self.capacity = 1 if self._is_apart else capacity
        self._trust = TrustWindow()
        self.live_connections.clear()
        self._asked.clear()
        self.heartbeat_at = now
        return []

    def connection_opened(self, name: str) -> list[Action]:
        """A connection to the database that holds the worker's lock is there."""
        self.live_connections.add(name)
        return []

    def connection_lost(self, name: str, *, now: float) -> list[Action]:
        """A connection to the database was lost. Without one nobody holds the worker's lock: the beat may take it
        for crashed any moment."""
        if name not in self.live_connections:
            return []
        self.live_connections.discard(name)
        self._is_reconnecting = True
        if self.live_connections:
            return []
        return self._end_trust("the last database session was lost", now)

    def heartbeat_failed(self, *, now: float) -> list[Action]:
        """A heartbeat was not answered, or there was no connection to send it on."""
        self.heartbeat_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        return []

    def heartbeat_answered(self, answer: Heartbeat | None, *, sent_at: float, now: float) -> list[Action]:
        """A heartbeat was answered; with None, the database does not know this worker session any more."""
        self.heartbeat_at = now + max(self._settings.heartbeat_s, HEARTBEAT_MIN_S)
        self._retry_s = RETRY_FIRST_S
        if answer is None:
            return self._end_session(now)
        actions = self.confirmed(sent_at=sent_at, ttl_s=self._settings.ttl_s, now=now)
        if answer.stops_pending or answer.claims_pending or self._asked:
            actions += self.orders_pending()
        actions += self._watch_passes(answer, now)
        if self._is_reconnecting:
            # It may be another database than before, and know less: a standby that was promoted.
            self._is_reconnecting = False
            self.ask_for_audit(now=now)
        return actions

    def confirmed(self, *, sent_at: float, ttl_s: float, now: float) -> list[Action]:
        """The database keeps the leases of this worker for ``ttl_s`` from some moment after ``sent_at``."""
        self._trust = TrustWindow.after_heartbeat(sent_at=sent_at, ttl_s=ttl_s)
        if self.is_stalled or not self._trust.holds(now):
            return []
        was_serving = self.state is SessionState.SERVING
        self._enter(SessionEvent.CONFIRMED)
        return [] if was_serving else [Resume()]

    def loop_checked(self, stalled_s: float, *, now: float) -> list[Action]:
        """The event loop has stood still for so long although it could have turned; 0.0 if it turns."""
        was_stalled = self.is_stalled
        self.is_stalled = bool(self._settings.stall_s) and stalled_s >= self._settings.stall_s
        if self.is_stalled and not was_stalled:
            return self._end_trust("the event loop stands still", now)
        if was_stalled and not self.is_stalled:
            self.beat_now(now=now)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        if self.state is SessionState.SERVING and not self._trust.holds(now):
            actions += self._end_trust("no heartbeat was answered in time", now)
        actions += self._lose_again(now)
        actions += self._stop_next(now)
        if now >= self._audit_at:
            self._audit_at = now + AUDIT_INTERVAL_S
            if self.worker_id is not None:
                actions.append(FetchHeld(self.worker_id))
        return actions

    def _end_trust(self, why: str, now: float) -> list[Action]:
        was_serving = self.state is SessionState.SERVING
        self._enter(SessionEvent.TRUST_ENDED)
        if not was_serving:
            return []
        # Asked at once whether it is still known, rather than at the next interval.
        self.beat_now(now=now)
        return [Suspend(why)]

    def _end_session(self, now: float) -> list[Action]:
        was_serving = self.state is SessionState.SERVING
        self._enter(SessionEvent.DECLARED_GONE)
        self.worker_id, self._trust = None, TrustWindow()
        self.beat_now(now=now)
        self._asked.clear()
        lost = self._lose(list(self._running.values()), now)
        return [Suspend("the worker was declared gone"), *lost] if was_serving else lost

    def _enter(self, event: SessionEvent) -> None:
        self.state = SESSION_TRANSITIONS[self.state, event]

    def beat_now(self, *, now: float) -> list[Action]:
        """Hear at once what the next heartbeat would bring."""
        self.heartbeat_at = now
        return []

    def _watch_passes(self, answer: Heartbeat, now: float) -> list[Action]:
        # A pass that lies ahead was before the database's clock was put back, and nobody knows when.
        if answer.pass_age_s is not None and 0 <= answer.pass_age_s < self._watchdog_s:
            self._watchdog_at = now + self._watchdog_s - answer.pass_age_s
        elif now >= self._watchdog_at and answer.state is WorkerState.ACTIVE:
            self._watchdog_at = now + self._watchdog_s
            return [RunReconcile(answer.pass_age_s)]
        return []

    # -- from an assignment to a feed that runs ------------------------------------------------------

    def orders_pending(self) -> list[Action]:
        """The database has notified it, or a heartbeat says so: there are assignments or stop requests."""
        return [] if self.worker_id is None else [FetchOrders(self.worker_id)]

    def assignments_found(self, worker_id: UUID, keys: Iterable[FeedKey]) -> list[Action]:
        """Assignments were found that wait for this worker to claim them. The message of each follows."""
        if worker_id != self.worker_id:
            return []
        wanted = [key for key in keys if key not in self._feeds and self._add_claim(key, None) is None]
        return [ClaimFeeds(worker_id, wanted)] if wanted else []

    def message_received(self, key: FeedKey, message: object) -> list[Action]:
        """A ``stream_feed`` message came in. It may be late, repeated or forged: what is neither a feed that runs
        here nor a claim that the database grants is dropped."""
        feed = self._feeds.get(key)
        if feed is None:
            refused = self._add_claim(key, message)
            if refused is not None:
                return [DropMessage(key, message, refused)]
            assert self.worker_id is not None
            return [ClaimFeeds(self.worker_id, [key])]
        if feed.message is not None:
            return [DropMessage(key, message, "a duplicate: its claim is under way, or it runs here")]
        feed.message = message
        return [] if feed.state is FeedState.CLAIMING else [AcceptMessage(message)]

    def _add_claim(self, key: FeedKey, message: object) -> str | None:
        """Note that a claim is under way; or why it is not asked for."""
        if self.is_draining:
            return "this worker is draining"
        if self.worker_id is None:
            return "this worker is not registered yet"
        if self.feeds + self._claiming >= self.capacity and key[0] not in self._running:
            # The broker may hand out more than was asked for, after a reconnect for instance.
            return f"this worker holds {self.capacity} feeds already"
        self._feeds[key] = WorkerFeed(key, message)
        self._claiming += 1
        return None

    def claims_answered(
        self, worker_id: UUID, claims: Sequence[Claim], refused: Iterable[FeedKey], *, sure: bool, now: float
    ) -> list[Action]:
        """The database has granted these claims, and not the others. Not ``sure``: it may have granted more, for
        an answer was lost."""
        granted = [(claim, feed) for claim in claims if (feed := self._take_claim(claim.key))]
        dropped = [(key, feed) for key in refused if (feed := self._take_claim(key))]
        actions: list[Action] = []
        for key, feed in dropped:
            del self._feeds[key]
            actions.append(
                DropMessage(key, feed.message, "stale: no such assignment is waiting for this worker")
            )
        actions += [AcceptMessage(feed.message) for _, feed in granted if feed.message is not None]
        if worker_id != self.worker_id:
            # Declared gone while the answer was under way: the feeds are somebody else's by now.
            for _, feed in granted:
                actions += self._remove(feed, "lost")
        elif self.is_draining:
            for claim, feed in granted:
                actions += self._release(feed, Release(*claim.key, Reason.RELEASED))
        elif granted:
            actions += self._start(granted, now)
        if not sure:
            self.ask_for_audit(now=now)
        return actions

    def _take_claim(self, key: FeedKey) -> WorkerFeed | None:
        feed = self._feeds.get(key)
        if feed is None or feed.state is not FeedState.CLAIMING:
            return None
        self._claiming -= 1
        return feed

    def _start(self, granted: list[tuple[Claim, WorkerFeed]], now: float) -> list[Action]:
        # With its first feeds a worker asks at once how many workers share the pace of connections.
        if not self._running:
            self.beat_now(now=now)
        actions: list[Action] = []
        starting, parting = [], []
        for claim, feed in granted:
            before = self._running.get(claim.feed.id)
            if before is not None:
                # The feed came back before its last stream here has ended.
                actions += self._lose([before], now)
            if not claim.is_apart or self._is_apart:
                feed.after(FeedEvent.GRANTED)
                self._running[claim.feed.id] = feed
                starting.append(claim)
            elif sum(True for _ in self._apart()) < APART_SLOTS:
                feed.after(FeedEvent.PART)
                parting.append(claim)
            else:
                release = Release(*claim.key, Reason.QUARANTINED, NO_SLOT_RETRY_S)
                actions += self._release(
                    feed, release, "this worker has no free slot for a feed that runs apart"
                )
        actions += [StartApart(parting)] if parting else []
        return actions + ([StartFeeds(starting)] if starting else [])

    def _apart(self) -> Iterator[WorkerFeed]:
        return (feed for feed in self._feeds.values() if feed.state is FeedState.APART)

    # -- from a feed that runs to one that has ended -------------------------------------------------

    def stops_found(self, worker_id: UUID, requests: Sequence[StopRequest], *, now: float) -> list[Action]:
        """Stop requests were found for these feeds of this worker, and for no others."""
        if worker_id != self.worker_id:
            return []
        before, self._asked = self._asked, {request.key for request in requests}
        actions: list[Action] = []
        # A stop request that is gone, of a feed that still runs here: it was too slow, and its lease was taken.
        actions += self._lose([feed for key in before - self._asked if (feed := self._holder(key))], now)
        actions += self._stop([(feed, r.reason) for r in requests if (feed := self._holder(r.key))])
        # The database thinks that these run here, and they do not: released, or they would wait for ever.
        unrun = [Release(*r.key, r.reason) for r in requests if self._holder(r.key) is None]
        return actions + ([ReleaseLeases(worker_id, unrun)] if unrun else [])

    def stop_feed(self, feed_id: int) -> list[Action]:
        """Somebody revoked the task of a feed; reconcile will start it again elsewhere."""
        feed = self._running.get(feed_id)
        return [] if feed is None else self._stop([(feed, Reason.RELEASED)])

    def reports_refused(self, keys: Iterable[FeedKey], *, now: float) -> list[Action]:
        """The database has no such leases of this worker: somebody else may have them by now."""
        return self._lose([feed for key in keys if (feed := self._holder(key))], now)

    def _holder(self, key: FeedKey) -> WorkerFeed | None:
        """The feed that runs here under this lease."""
        feed = self._running.get(key[0])
        return feed if feed is not None and feed.key == key else None

    def ask_for_audit(self, *, now: float) -> list[Action]:
        """Have what runs here compared with what the database thinks runs here."""
        self._audit_at = min(self._audit_at, now + AUDITS_GATHERED_S)
        return []

    def held_found(self, worker_id: UUID, held: Collection[FeedKey], *, now: float) -> list[Action]:
        """The leases that the database says this worker holds. The answers to all claims that were sent before
        that question have been told to the core, and none of those sent after it."""
        if worker_id != self.worker_id:
            return []  # declared gone meanwhile: what runs here is another session's
        unrun = set(held) - {feed.key for feed in (*self._running.values(), *self._apart())}
        lost = [feed for feed in self._running.values() if feed.key not in held]
        releases = [Release(*key, Reason.RELEASED) for key in sorted(unrun)]
        return self._lose(lost, now) + ([ReleaseLeases(worker_id, releases)] if releases else [])

    def feed_ended(self, key: FeedKey, release: Release | None, why: str, *, now: float) -> list[Action]:
        """A feed does not run here any more. ``release`` is what is to become of its lease; None: that is lost,
        or the feed's own process had it."""
        feed = self._feeds.get(key)
        if feed is None or feed.state is FeedState.CLAIMING:
            return []
        if release is None:
            return self._remove(feed, why)
        if release.reason is Reason.FENCED:
            # The sink knew of a newer owner and the database did not: of what else?
            self.ask_for_audit(now=now)
        return self._release(feed, release, why)

    def _release(self, feed: WorkerFeed, release: Release, why: str = "released") -> list[Action]:
        # The leases of a session that is over are not its own any more.
        releases = [] if self.worker_id is None else [ReleaseLeases(self.worker_id, [release])]
        return [*releases, *self._remove(feed, why)]

    def _remove(self, feed: WorkerFeed, why: str) -> list[Action]:
        del self._feeds[feed.key]
        self._lost.pop(feed.key, None)
        if self._running.get(feed.key[0]) is feed:
            del self._running[feed.key[0]]
        actions: list[Action] = [] if feed.message is None else [FinishMessage(feed.message, why)]
        return actions + self._drained()

    def _stop(self, stops: list[tuple[WorkerFeed, Reason]]) -> list[Action]:
        told: list[tuple[FeedKey, Reason]] = []
        for feed, reason in stops:
            feed.after(FeedEvent.STOP)
            told.append((feed.key, reason))
        return [StopFeeds(told)] if told else []

    def _lose(self, feeds: Iterable[WorkerFeed], now: float) -> list[Action]:
        told = []
        for feed in feeds:
            if feed.state is not FeedState.LOST:
                feed.after(FeedEvent.LOSE)
                feed.told_at = now
                self._lost[feed.key] = feed
                told.append(feed.key)
        return [LoseFeeds(told)] if told else []

    def _lose_again(self, now: float) -> list[Action]:
        late = [feed for feed in self._lost.values() if feed.told_at + LOST_S <= now]
        for feed in late:
            feed.told_at = now
        keys = [feed.key for feed in late]
        return [LoseFeeds(keys, overdue=True)] if late else []

    # -- leaving -------------------------------------------------------------------------------------

    def drain(self, *, now: float) -> list[Action]:
        """Let go of everything, some feeds at a time, and take nothing more."""
        if self.is_draining:
            return []
        self.drain_began = now
        actions: list[Action] = []
        if self.worker_id is not None:
            actions.append(AnnounceDrain(self.worker_id))
        waiting = list(self._running.values())
        pause_s = stops_pause_s(len(waiting), within_s=self._settings.drain_timeout_s * STOPS_PART)
        self._drain = _Drain(deque(waiting), pause_s, now)
        return actions + self._stop_next(now) + self._drained()

    def _stop_next(self, now: float) -> list[Action]:
        drain = self._drain
        if now < drain.next_at:
            return []
        some = [drain.waiting.popleft() for _ in range(min(STOPS_TOGETHER, len(drain.waiting)))]
        drain.next_at = now + drain.pause_s if drain.waiting else float("inf")
        return self._stop([(feed, Reason.RELEASED) for feed in some if feed.key in self._feeds])

    def _drained(self) -> list[Action]:
        is_over = self.is_draining and not self._running and not any(self._apart())
        return [Drained()] if is_over else []
