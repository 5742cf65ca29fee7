"""A worker without threads: one object that does, a tick at a time, what a worker process does on its threads.

It follows the protocol of `feedq.lease` and nothing else: heartbeat with a trust window anchored where it was
sent, grouped claims, fence before connecting, writes gated by the epoch, releases. It hears of an assignment by a
ring, by a message and by the answer to a heartbeat, whichever comes first. It can be killed, frozen, cut off from
the database, and told to leave.

A tick begins with the writes that were pending: a frozen worker that wakes up writes first and thinks later,
which is the worst order there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import NAMESPACE_OID, UUID, uuid5

from feedq.clock import Clock
from feedq.errors import Unavailable
from feedq.lease import TrustWindow
from feedq.model import FeedKey, Heartbeat, Load, Loss, NewWorker, Progress, Reason, Release, Worker
from feedq.runtime.claim_queue import SUMMONED_MAX
from feedq.runtime.lease_keeper import WATCHDOG_INTERVALS, WATCHDOG_MIN_S
from feedq.settings import HEARTBEAT_MIN_S, Settings
from tests.fakes.memory import MemoryStore
from tests.fakes.memory.store import MemoryListener, MemorySession
from tests.fakes.servers import FakeBroker, FakeSink, FakeSource
from tests.fakes.stream import FakeStream, numbers

RETRY_S = 0.5
"""How soon a heartbeat that found no database is tried again."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A heartbeat that the database has answered and whose answer is still on its way."""

    sent_at: float
    due: float
    answer: Heartbeat | None


class FakeWorker:
    """One worker process, through as many worker sessions as it takes."""

    def __init__(
        self,
        name: str,
        *,
        store: MemoryStore,
        broker: FakeBroker,
        source: FakeSource,
        sink: FakeSink,
        settings: Settings,
        clock: Clock,
        capacity: int,
        say: Say,
        reconcile: Callable[[], None],
    ) -> None:
        self.name = name
        self.clock = clock
        self._store, self._broker, self._source, self._sink = store, broker, source, sink
        self._settings = settings
        self._capacity = capacity
        self._say = say
        self._reconcile = reconcile
        self.streams: dict[int, FakeStream] = {}
        self.worker: Worker | None = None
        self.is_dead = False
        self.is_frozen = False
        self.is_cut_off = False
        """Whether the network drops everything between this worker and the database."""
        self.is_stubborn = False
        """Whether it does not do what stop requests say."""
        self.is_deaf = False
        """Whether it hears of no assignment, in whatever way."""
        self.answers_take_s = 0.0
        """How long the way back of a heartbeat takes."""
        self._session: MemorySession | None = None
        self._listener: MemoryListener | None = None
        self._trust = TrustWindow()
        self._is_suspended = False
        self._next_beat = float("-inf")
        self._in_flight: _InFlight | None = None
        self._releases: list[Release] = []
        self._must_attend = False
        self._must_audit = False
        self.heartbeats = 0
        """How many it has tried."""
        self._is_leaving = False

    # -- what may happen to it -----------------------------------------------------------------------

    def kill(self) -> None:
        """``kill -9``: the kernel closes every socket, those to the database too."""
        self.is_dead = True
        self._disconnect(self.streams)
        if self.worker is not None:
            self._store.drop_sessions(self.worker.id)
            with suppress(Unavailable):  # as its monitor does
                self._store.workers.report_loss(self.worker.id, Loss("killed", "kill -9"))

    def freeze(self) -> None:
        """SIGSTOP: nothing runs, every socket stays open."""
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def break_a_session(self) -> None:
        """One of its two connections to the database breaks."""
        assert self._session is not None
        self._session.close()

    def terminate(self) -> None:
        """SIGTERM: from the next tick on, drain and leave."""
        self._is_leaving = True

    # -- a tick --------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.is_dead or self.is_frozen:
            return
        self._commit(self.streams)
        try:
            self._keep()
        except Unavailable:
            self._next_beat = self.clock.monotonic() + RETRY_S
        self._heed_trust()
        if self._is_suspended or self.worker is None:
            return
        for work in (self._talk, self._connect):
            try:
                work(self.worker.id)
            except Unavailable:
                # Whether it took effect is anybody's guess: compare notes when the database is back.
                self._must_audit = True
        for stream in self.streams.values():
            if stream.connection is not None:
                stream.pending.extend(stream.connection.read())

    def _talk(self, worker_id: UUID) -> None:
        if self._is_leaving:
            self._leave(worker_id)
            return
        self._release(worker_id)
        if self._must_audit:
            self._audit(worker_id)
        rung = self._listener is not None and self._listener.is_open and self._listener.wait(0)
        if rung or self._must_attend:
            self._attend(worker_id)
        self._take_messages(worker_id)

    # -- the lease -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Heartbeats: sent when due, heeded when the answer is here."""
        if self.worker is None:
            self._register()
        self._keep_sessions()
        now = self.clock.monotonic()
        if self._in_flight is None and now >= self._next_beat:
            assert self._session is not None
            self.heartbeats += 1
            answer = self._session.heartbeat(self._load()) if self._reach() else None
            self._in_flight = _InFlight(now, now + self.answers_take_s, answer)
            self._next_beat = now + max(self._settings.heartbeat_s, HEARTBEAT_MIN_S)
        if self._in_flight is not None and now >= self._in_flight.due:
            arrived, self._in_flight = self._in_flight, None
            self._heed(arrived, received_at=now)

    def _heed(self, arrived: _InFlight, *, received_at: float) -> None:
        if arrived.answer is None:
            self._start_anew()
            return
        self._trust = self._window(sent_at=arrived.sent_at, received_at=received_at)
        assert self.worker is not None
        self._report(self.worker.id)
        if arrived.answer.stops_pending or arrived.answer.claims_pending:
            self._attend(self.worker.id)
        age_s = arrived.answer.pass_age_s
        watchdog_s = max(WATCHDOG_INTERVALS * self._settings.reconcile_interval_s, WATCHDOG_MIN_S)
        if age_s is not None and age_s > watchdog_s:
            self._say("no pass for too long; runs one here")
            self._reconcile()

    def _load(self) -> Load:
        return Load(feeds=len(self.streams))

    def _window(self, *, sent_at: float, received_at: float) -> TrustWindow:
        del received_at  # the answer may take as long as it likes
        return TrustWindow.after_heartbeat(
            sent_at=sent_at, ttl_s=self._settings.ttl_s, margin_s=self._settings.trust_margin_s
        )

    def _register(self) -> None:
        self._reach()
        # The same in every run, and never the same twice in one: each session is a row of its own.
        number = 1 + sum(w.name == self.name for w in self._store.database.tables.workers.values())
        session_id = uuid5(NAMESPACE_OID, f"{self.name}/{number}")
        queue = f"node.{self.name}"
        new = NewWorker(session_id, self.name, queue, self._capacity, self.name, number, "paper")
        self.worker = self._store.workers.register(new, ttl_s=self._settings.ttl_s)

    def _keep_sessions(self) -> None:
        """Two sessions hold the worker's lock; a broken one is opened again, and the lease renewed at once."""
        assert self.worker is not None
        if self._session is not None and not self._session.is_open:
            self._session = None
        if self._listener is not None and not self._listener.is_open:
            self._listener = None
        if self._session is None and self._listener is None:
            self._trust = TrustWindow()  # the beat may take us for crashed any moment now
            self._heed_trust()
        if self._session is None:
            self._reach()
            self._session = self._store.session(self.worker, ttl_s=self._settings.ttl_s)
            self._must_audit = True
            self._next_beat = self.clock.monotonic()
        if self._listener is None:
            self._reach()
            self._listener = self._store.worker_listener(self.worker)
            self._must_attend = True  # something may have been asked before we listened

    def _start_anew(self) -> None:
        """Declared gone: let go of everything and begin a new worker session."""
        self._say(f"was declared gone; drops {numbers(self.streams)} and joins anew")
        self._forget(self.streams)
        for held in (self._session, self._listener):
            if held is not None:
                held.close()
        self._session = self._listener = self.worker = None
        self._trust = TrustWindow()
        self._releases.clear()
        self._next_beat = float("-inf")
        self._keep()

    def _heed_trust(self) -> None:
        trusted = self._trust.holds(self.clock.monotonic())
        if not trusted and not self._is_suspended:
            if self.streams:
                self._say(f"suspends {numbers(self.streams)}")
            self._disconnect(self.streams)
        self._is_suspended = not trusted

    def _reach(self) -> bool:
        """True, or raises `Unavailable`: what a call to the database does on a cut network."""
        if self.is_cut_off:
            raise Unavailable(f"control database: worker {self.name} is cut off")
        self._store.database.require()
        return True

    # -- feeds ---------------------------------------------------------------------------------------

    def _attend(self, worker_id: UUID) -> None:
        """Do what the database has for us: begin what was assigned, end what is to stop."""
        self._reach()
        self._must_attend = True  # until all of it is done
        if not self.is_deaf:
            keys = self._store.leases.assigned(worker_id, limit=SUMMONED_MAX)
            self._claim(worker_id, keys, has_message=False)
        self._stop_what_is_asked(worker_id)
        self._must_attend = False

    def _take_messages(self, worker_id: UUID) -> None:
        """A message joins the tenure that it is about, has it claimed, or is dropped."""
        keys = self._broker.take(f"node.{self.name}") if self._reach() and not self.is_deaf else []
        unknown = []
        for key in keys:
            stream = self.streams.get(key[0])
            if stream is None or stream.claimed != key or stream.has_message:
                unknown.append(key)
            else:
                stream.has_message = True
        dropped = len(unknown) - self._claim(worker_id, unknown, has_message=True)
        if dropped:
            self._say(f"drops {dropped} stale message{'s' if dropped > 1 else ''}")

    def _claim(self, worker_id: UUID, keys: Sequence[FeedKey], *, has_message: bool) -> int:
        """How many of these were granted."""
        granted = self._store.leases.claim(worker_id, keys) if keys else []
        for claim in granted:
            if claim.feed.id in self.streams:
                self._forget([claim.feed.id])  # a tenure of ours that ended without our hearing of it
            self.streams[claim.feed.id] = FakeStream(claim.key, claim, has_message)
        return len(granted)

    def _connect(self, worker_id: UUID) -> None:
        """Take over in the sink, then connect where it says: for feeds just claimed, and after a suspension."""
        begun = []
        for stream in [s for s in self.streams.values() if s.connection is None]:
            if not self._may_connect(stream):
                continue
            before = stream.key
            cursor = stream.take_over(worker_id, store=self._store, sink=self._sink)
            if stream.key != before:
                self._say(f"raises feed {before[0]} from epoch {before[1]} to {stream.key[1]}")
            if cursor is None:
                self._fenced(stream)
            else:
                feed_id = stream.key[0]
                stream.connection = self._source.connect(feed_id, self.name, cursor=cursor)
                begun.append(feed_id)
        if begun:
            self._say(f"streams {numbers(begun)}")

    def _may_connect(self, stream: FakeStream) -> bool:
        """Asked each time before it does."""
        return True

    def _fenced(self, stream: FakeStream) -> None:
        self._say(f"is fenced off feed {stream.key[0]}@{stream.key[1]}")
        self._releases.append(Release(*stream.key, Reason.FENCED))
        self._must_audit = True
        self._forget([stream.key[0]])

    def _commit(self, feed_ids: Iterable[int]) -> None:
        for feed_id in list(feed_ids):
            stream = self.streams[feed_id]
            records, stream.pending = stream.pending, []
            if not records:
                continue
            if self._sink.write(stream.key, records):
                stream.unreported += len(records)
            else:
                self._fenced(stream)

    def _report(self, worker_id: UUID) -> None:
        progress = []
        for stream in self.streams.values():
            connected = stream.connection is not None
            cursor = self._sink.cursor(stream.key)
            ago_s = 0.0 if stream.unreported else None
            progress.append(
                Progress(*stream.key, stream.unreported, 0, 0, ago_s, cursor, connected, False, 0, None)
            )
            stream.unreported = 0
        self._reach()
        matched = self._store.leases.report(worker_id, progress)
        lost = [p.feed_id for p in progress if p.key not in matched]
        if lost:
            self._say(f"lost {numbers(lost)}")
            self._forget(lost)

    def _stop_what_is_asked(self, worker_id: UUID) -> None:
        self._reach()
        requests = [] if self.is_stubborn else self._store.leases.stop_requests(worker_id)
        for request in requests:
            stream = self.streams.get(request.feed_id)
            if stream is None or stream.key != request.key:
                continue
            self._let_go([request.feed_id], request.reason)
            self._say(f"releases feed {request.feed_id} ({request.reason})")
        self._release(worker_id)

    def _let_go(self, feed_ids: Iterable[int], reason: Reason) -> None:
        """Close the sockets first, commit what came in, then queue the release."""
        for feed_id in list(feed_ids):
            stream = self.streams[feed_id]
            if stream.connection is not None:
                stream.connection.close()
            self._commit([feed_id])
            if feed_id in self.streams:
                self._releases.append(Release(*stream.key, reason))
                self._forget([feed_id])

    def _release(self, worker_id: UUID) -> None:
        if self._releases and self._reach():
            self._store.leases.release(worker_id, self._releases)
            self._releases = []

    def _audit(self, worker_id: UUID) -> None:
        """Compare what runs here with what the database thinks runs here."""
        self._reach()
        held = set(self._store.leases.held(worker_id))
        running = {stream.key: feed_id for feed_id, stream in self.streams.items()}
        if lost := [feed_id for key, feed_id in running.items() if key not in held]:
            self._say(f"lost {numbers(lost)}")
            self._forget(lost)
        if orphans := sorted(held - running.keys()):
            self._say(f"hands back {numbers(feed_id for feed_id, _ in orphans)}, held here and not running")
            self._releases.extend(Release(*key, Reason.RELEASED) for key in orphans)
        self._release(worker_id)
        self._must_audit = False

    def _leave(self, worker_id: UUID) -> None:
        self._reach()
        self._store.workers.drain(worker_id)
        left = numbers(self.streams)
        self._let_go(self.streams, Reason.RELEASED)
        self._release(worker_id)
        self._store.workers.leave(worker_id)
        self._say(f"drains {left} and leaves")
        self.kill()

    def _disconnect(self, feed_ids: Iterable[int]) -> None:
        """Cut the sockets and keep the leases."""
        for feed_id in list(feed_ids):
            self.streams[feed_id].disconnect()

    def _forget(self, feed_ids: Iterable[int]) -> None:
        for feed_id in list(feed_ids):
            self._disconnect([feed_id])
            del self.streams[feed_id]
