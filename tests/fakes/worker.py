"""A worker process without threads: the worker core, driven a tick at a time.

What it decides is decided by `feedq.core.worker.WorkerCore`, as in production. Here the actions of the core are
carried out on the store of production, and the feeds are `FakeStream`. It can be killed, frozen, cut off from the
database, and told to leave.

A tick begins with the writes that were pending: a frozen worker that wakes up writes first and thinks later,
which is the worst order there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, UUID, uuid5

import psycopg2

from feedq.control.store.worker_session import Listener, WorkerSession, worker_channel
from feedq.core import worker_actions as actions
from feedq.core.clock import Clock
from feedq.core.loss import Loss
from feedq.core.model import (
    Claim,
    FeedKey,
    Heartbeat,
    Load,
    NewWorker,
    ProgressReport,
    Reason,
    Release,
    Worker,
)
from feedq.core.worker import WorkerCore
from feedq.core.worker_actions import ASSIGNMENTS_MAX, Action
from feedq.errors import LeaseLost, SinkUnavailable, Unavailable
from tests.fakes.control import Interrupted, is_open
from tests.fakes.jobs import SLOTS, FakeJobs
from tests.fakes.stream import FakeStream, numbers

if TYPE_CHECKING:
    from tests.fakes.fleet import FakeFleet

KILLED = Loss("killed", "kill -9")


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A heartbeat that the database has answered and whose answer is still on its way."""

    sent_at: float
    due: float
    answer: Heartbeat | None


class FakeWorker:
    """One worker process, through as many worker sessions as it takes."""

    core_type: type[WorkerCore] = WorkerCore

    def __init__(
        self,
        name: str,
        fleet: FakeFleet,
        *,
        clock: Clock,
        capacity: int,
        labels: Mapping[str, str],
        takes: tuple[UUID, FeedKey] | None = None,
    ) -> None:
        """``takes``: the lease that it takes over, from the worker that has begun it for one feed."""
        self.name, self.clock, self.capacity, self.labels = name, clock, capacity, labels
        self._fleet, self._control, self._store = fleet, fleet.control, fleet.store
        self._broker, self._source, self._sink = fleet.broker, fleet.source, fleet.sink
        self._settings, self._takes = fleet.settings, takes
        self.core = self.core_type(
            self._settings, rng=Random(name), now=clock.monotonic(), is_apart=takes is not None
        )
        self._children: list[FakeWorker] = []
        """The processes of feeds that run apart: they stand still with this one, and end with it."""
        self._is_told = self._is_over = False
        """Whether one of these was told of its feed, and whether the feed has ended."""
        self.worker: Worker | None = None
        self._session: WorkerSession | None = None
        self._wanted: deque[Action] = deque()
        """Actions of the core that have not been carried out."""
        self._is_performing = False
        self._requests: deque[Action] = deque()
        """What the core wants of the database, in the order of its requests."""
        self._tries = 0
        """How often the first of them was tried."""
        self.streams: dict[int, FakeStream] = {}
        self.is_dead = False
        self.is_frozen = False
        self.is_cut_off = False
        """Whether the network drops everything between this worker and the database."""
        self.is_stubborn = False
        """Whether it does not do what stop requests say."""
        self.is_deaf = False
        """Whether it hears of no assignment, in whatever way."""
        self.claims_lost = 0
        """Claims to come whose answers are lost."""
        self.answers_take_s = 0.0
        """How long the way back of a heartbeat takes."""
        self._listener: Listener | None = None
        self._in_flight: _InFlight | None = None
        self._dropped = 0
        self.heartbeats = 0
        """How many it has tried."""
        self.interrupted_in: int | None = None
        """After so many more steps it dies, or stands still, if set."""
        self.dies_then = False
        self.jobs: FakeJobs | None = None
        if fleet.runs is not None and takes is None:
            runs, ledger = self._store.jobs.runs, fleet.runs.ledger
            self.jobs = FakeJobs(self, runs, ledger, database=fleet.clock)
        self._is_leaving = self._has_drained = False
        self._leave_by = float("inf")

    def say(self, what: str) -> None:
        self._fleet.say(f"worker {self.name}", what)

    def is_trusted(self) -> bool:
        return self.core.is_trusted(self._now)

    # -- what may happen to it -----------------------------------------------------------------------

    def kill(self, loss: Loss = KILLED) -> None:
        """``kill -9``: the kernel closes every socket, those to the database too."""
        self._vanish()
        if self.worker is not None:
            with suppress(Unavailable):  # as its monitor does
                self._store.workers.report_loss(self.worker.id, loss, has_ended=self._takes is not None)

    def _vanish(self) -> None:
        self.is_dead = True
        if self.jobs is not None:
            self.jobs.troubled_at = float("inf")
        self._suspend()
        self._close_sessions()
        for child in self._children:
            child._vanish()

    def freeze(self) -> None:
        """SIGSTOP: nothing runs, every socket stays open."""
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def terminate(self) -> None:
        """SIGTERM: from the next tick on, drain and leave."""
        self._is_leaving = True

    @property
    def is_troubled(self) -> bool:
        return self.is_frozen or self.is_cut_off or self._is_leaving or self.answers_take_s > 0

    # -- a tick --------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.is_dead or self.is_frozen:
            return
        self._control.step = self._before_statement
        try:
            self._tick()
        except Interrupted:
            self._control.step = None
            self._is_performing = False
            if self.dies_then:
                self.say("dies in the middle of it")
                self.kill()
            else:
                self.say("stands still in the middle of it")
                self.freeze()
        finally:
            self._control.step = None
        if not self.is_dead and not self.is_frozen:
            self._tick_apart()

    def _tick(self) -> None:
        self._commit(self.streams)
        self._perform(())  # what it was about to do when it stood still
        self._perform(self.core.tick(self._now))
        try:
            self._keep_lease()
        except Unavailable:
            self._perform(self.core.heartbeat_failed(now=self._now))
        except LeaseLost:
            self._vanish()
            return
        if self._is_leaving and not self.core.is_draining:
            self.say(f"drains {numbers(self.streams)}")
            self._leave_by = self._now + self._settings.drain_timeout_s
            self._perform(self.core.drain(now=self._now))
            if self.jobs is not None:
                self.jobs.slots.drain()
        self._listen()
        if self.jobs is not None:
            self.jobs.tick()
        self._take_messages()
        self._ask_database()
        self._connect()
        self._read()
        if self.is_dead:
            return
        if self._dropped:
            self.say(f"drops {self._dropped} stale message{'s' if self._dropped > 1 else ''}")
            self._dropped = 0
        has_jobs = self.jobs is not None and not self.jobs.slots.is_idle
        is_done = (self._has_drained or self._is_over) and not self._requests and not has_jobs
        if is_done or self._now >= self._leave_by:
            self._leave()

    def _before_statement(self) -> None:
        self._step()
        if self.is_cut_off:
            raise psycopg2.OperationalError("cut off")

    def _step(self) -> None:
        if self.interrupted_in is not None:
            self.interrupted_in -= 1
            if self.interrupted_in < 0:
                self.interrupted_in = None
                raise Interrupted

    def _read(self) -> None:
        for stream in list(self.streams.values()):
            if stream.connection is None:
                continue
            records = stream.connection.read()
            stream.pending.extend(records)
            if records and stream.key[0] in self._source.poison:
                self._poisoned(stream)
            if self.is_dead:
                return

    def _poisoned(self, stream: FakeStream) -> None:
        """A record ends the process that reads it: this one, or the feed's own."""
        feed_id = stream.key[0]
        is_apart = self._takes is not None
        whose = "loses the process of" if is_apart else "is ended by a record of"
        self.say(f"{whose} feed {feed_id}")
        self.kill(Loss("crashed", "poison", feed_id, is_certain=is_apart or feed_id % 2 == 0))

    def _start_apart(self, claims: Sequence[Claim]) -> None:
        """Begin processes for them, as `feedq.worker.apart` does."""
        assert self.worker is not None
        for claim in claims:
            takes = self.worker.id, claim.key
            child = type(self)(
                self.name, self._fleet, clock=self.clock, capacity=0, labels=self.labels, takes=takes
            )
            self._children.append(child)

    def _tick_apart(self) -> None:
        for child in list(self._children):
            child.is_cut_off = self.is_cut_off
            if self._is_leaving:
                child.terminate()
            child.tick()
            if child.is_dead:
                self._children.remove(child)
                assert child._takes is not None
                # What it never took over is released; of what it did, nothing matches.
                release = Release(*child._takes[1], Reason.RELEASED)
                key = child._takes[1]
                self._perform(self.core.feed_ended(key, release, "ended", now=self._now))

    def _leave(self) -> None:
        with suppress(Unavailable):
            self._reach()
            if self.worker is not None:
                self._store.workers.leave(self.worker.id)
        self.say("leaves")
        self.kill()

    def _reach(self) -> None:
        if self.is_cut_off:
            raise Unavailable(f"control database: worker {self.name} is cut off")
        self._control.require()

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    # -- the lease, as `feedq.worker.lease_keeper` keeps it ------------------------------------------

    def _keep_lease(self) -> None:
        """Two sessions hold the worker's lock; a broken one is opened again. Raises `Unavailable`."""
        for name, session in (("keeper", self._session), ("listener", self._listener)):
            if session is not None and not is_open(session):
                if name == "keeper":
                    self._session = None
                    self._perform(self.core.beat_now(now=self._now))
                else:
                    self._listener = None
                self._perform(self.core.connection_lost(name, now=self._now))
        has_left = self.core.worker_id is None and self.core.is_draining
        if self._in_flight is None and self._now >= self.core.heartbeat_at and not has_left:
            self._beat()
        if self._in_flight is not None and self._now >= self._in_flight.due:
            arrived, self._in_flight = self._in_flight, None
            self._answered(arrived)
        if self._listener is None and self.worker is not None and self.core.worker_id is not None:
            self._reach()
            self._listener = self._store.worker_listener(self.worker)
            self._perform(self.core.connection_opened("listener"))
            self._perform(self.core.orders_pending())  # something may have been asked before we listened

    def _beat(self) -> None:
        self.heartbeats += 1
        self._reach()
        answer = self._send_heartbeat()
        self._in_flight = _InFlight(self._now, self._now + self.answers_take_s, answer)

    def _send_heartbeat(self) -> Heartbeat | None:
        """Registers before the first, and opens the session that carries it. Raises `Unavailable`."""
        if self.core.worker_id is None:
            self._register()
        if self._session is None:
            assert self.worker is not None
            self._session = self._store.session(self.worker, ttl_s=self._settings.ttl_s)
            self._perform(self.core.connection_opened("keeper"))
        return self._session.heartbeat(Load(feeds=self.core.feeds))

    def _register(self) -> None:
        # The same in every run, and never the same twice in one: each session is a row of its own.
        self._control.registered[self.name] += 1
        number = self._control.registered[self.name]
        session_id = uuid5(NAMESPACE_OID, f"{self.name}/{number}")
        queue = f"node.{self.name}"
        new = NewWorker(
            *(session_id, self.name, queue, self.capacity, self.name, number, "paper", self.labels),
            job_slots=0 if self.jobs is None else SLOTS,
        )
        if self._takes is None:
            self.worker = self._store.workers.register(new, ttl_s=self._settings.ttl_s)
        else:
            owner, key = self._takes
            new = replace(new, queue="")
            self.worker = self._store.workers.hand_over(new, owner=owner, key=key, ttl_s=self._settings.ttl_s)
        self._perform(self.core.registered(self.worker.id, capacity=self.capacity, now=self._now))

    def _answered(self, arrived: _InFlight) -> None:
        if arrived.answer is None:
            self.say(f"was declared gone; drops {numbers(self.streams)} and joins anew")
        sent_at = arrived.sent_at
        self._perform(self.core.heartbeat_answered(arrived.answer, sent_at=sent_at, now=self._now))
        if arrived.answer is None:
            self._close_sessions()
        if arrived.answer is None and not self.core.is_draining:
            self._beat()
        elif self.streams:
            self._report()

    def _listen(self) -> None:
        if self.worker is None or self._listener is None or not is_open(self._listener):
            return
        with suppress(Unavailable):
            self._reach()
            if self._control.hears(worker_channel(self.worker.lock_key)):
                self._perform(self.core.orders_pending())
                if self.jobs is not None:
                    self.jobs.notified()

    def _take_messages(self) -> None:
        if self._takes is not None:
            keys = [] if self._is_told or self.core.worker_id is None else [self._takes[1]]
            self._is_told = self._is_told or bool(keys)
        else:
            keys = [] if self.is_deaf or self.is_cut_off else self._broker.take(f"node.{self.name}")
        for key in keys:
            self._perform(self.core.message_received(key, "message"))

    # -- what the core wants -------------------------------------------------------------------------

    def _perform(self, wanted: Iterable[Action]) -> None:
        """Carry out, in the order in which they were decided, also what follows from carrying them out."""
        self._wanted.extend(wanted)
        if self._is_performing:
            return
        self._is_performing = True
        while self._wanted:
            self._step()
            self._carry_out(self._wanted.popleft())
        self._is_performing = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case actions.Resume() if self.jobs is not None:
                self.jobs.slots.wake()
            case actions.Suspend():
                if self.streams and self.core.worker_id is not None:
                    self.say(f"suspends {numbers(self.streams)}")
                self._suspend()
            case actions.DropMessage() | actions.FinishMessage() if self._takes is not None:
                self._is_over = True
            case actions.DropMessage(_, message):
                self._dropped += message is not None
            case actions.RunReconcile() if self._takes is None:
                self.say("no pass for too long; runs one here")
                with suppress(Unavailable):
                    self._fleet.reconcile()
            case actions.StartFeeds(claims):
                self._start(claims)
            case actions.StartApart(claims):
                self._start_apart(claims)
            case actions.StopFeeds(feeds):
                self._stop(feeds)
            case actions.LoseFeeds(keys):
                self._lose(keys)
            case actions.Drained():
                self._has_drained = True
            case (
                actions.ClaimFeeds()
                | actions.ReleaseLeases()
                | actions.FetchOrders()
                | actions.FetchHeld()
                | actions.AnnounceDrain()
            ):
                self._requests.append(action)

    def _ask_database(self) -> None:
        """Ask what waits, in its order; what fails is asked again, before the rest."""
        while self._requests:
            self._tries += 1
            self._step()
            try:
                self._reach()
                self._ask(self._requests[0])
            except Unavailable:
                return
            finally:
                self._step()
            self._requests.popleft()
            self._tries = 0

    def _close_sessions(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _ask(self, request: Action) -> None:
        leases = self._store.leases
        match request:
            case actions.ClaimFeeds(worker_id, keys):
                self._claim(worker_id, keys)
            case actions.ReleaseLeases(worker_id, releases):
                leases.release(worker_id, releases)
            case actions.FetchOrders(worker_id):
                if not (self.core.is_draining or self.is_deaf):
                    found = leases.assigned(worker_id, limit=ASSIGNMENTS_MAX)
                    self._perform(self.core.assignments_found(worker_id, found))
                requests = leases.stop_requests(worker_id)
                self._perform(self.core.stops_found(worker_id, requests, now=self._now))
            case actions.FetchHeld(worker_id):
                held, running = set(leases.held(worker_id)), {s.key for s in self.streams.values()}
                if strays := [key[0] for key in held if key not in running]:
                    self.say(f"hands back {numbers(strays)}, held here and not running")
                self._perform(self.core.held_found(worker_id, held, now=self._now))
            case actions.AnnounceDrain(worker_id):
                self._store.workers.drain(worker_id)

    def _claim(self, worker_id: UUID, keys: list[FeedKey]) -> None:
        if self.claims_lost:
            self.claims_lost -= 1
            self._store.leases.claim(worker_id, keys)
            raise Unavailable("control database: the answer to a claim was lost")
        claims = self._store.leases.claim(worker_id, keys)
        granted = {claim.key for claim in claims}
        refused = [key for key in keys if key not in granted]
        sure = not refused or self._tries == 1
        self._perform(self.core.claims_answered(worker_id, claims, refused, sure=sure, now=self._now))

    # -- feeds ---------------------------------------------------------------------------------------

    def _start(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.streams[claim.feed.id] = FakeStream(claim.key, claim)

    def _stream(self, key: FeedKey) -> FakeStream | None:
        stream = self.streams.get(key[0])
        return stream if stream is not None and stream.key == key else None

    def _connect(self) -> None:
        """Take over in the sink, then connect where it says: for feeds just claimed, and after a suspension."""
        begun = []
        for stream in [s for s in self.streams.values() if s.connection is None]:
            if not self.core.is_trusted(self._now):
                continue
            with suppress(Unavailable, SinkUnavailable):
                begun += self._take_over(stream)
        if begun:
            self.say(f"streams {numbers(begun)}")

    def _take_over(self, stream: FakeStream) -> list[int]:
        """The id of the feed, if it streams now. Raises `Unavailable`, `SinkUnavailable`."""
        assert self.worker is not None
        self._step()
        if not stream.take_over(self.worker.id, sink=self._sink):
            self._fenced(stream)
            return []
        # What was received before must be decided before more is asked for.
        stream.settle(self._sink)
        if stream.pending:
            self._commit([stream.key[0]])
        if stream.key[0] not in self.streams or stream.pending or stream.unknown or not stream.is_fenced:
            return []
        stream.connection = self._source.connect(stream.key[0], self.name, cursor=stream.cursor)
        return [stream.key[0]]

    def _fenced(self, stream: FakeStream) -> None:
        self.say(f"is fenced off feed {stream.key[0]}@{stream.key[1]}")
        # The sink is ahead of the lease: either we are stale, or the control database is.
        sink_epoch = self._sink.checkpoint(stream.key[0]).epoch
        self._end(stream, Release(*stream.key, Reason.FENCED, sink_epoch=sink_epoch))

    def _commit(self, feed_ids: Iterable[int]) -> None:
        for feed_id in list(feed_ids):
            stream = self.streams[feed_id]
            if not stream.pending and stream.unknown is None:
                continue
            self._step()
            if not stream.commit(self._sink):
                self.say(f"has lost the checkpoint of feed {feed_id}")
                stream.begin_anew()

    def _report(self) -> None:
        """With each heartbeat. What is not told in an outage is told later."""
        progress = []
        assert self.worker is not None
        for stream in self.streams.values():
            connected = stream.connection is not None
            cursor = stream.cursor
            ago_s = 0.0 if stream.unreported else None
            progress.append(
                ProgressReport(*stream.key, stream.unreported, 0, 0, ago_s, cursor, connected, False, 0, None)
            )
        with suppress(Unavailable):
            self._reach()
            matched = self._store.leases.report(self.worker.id, progress).held
            for stream in self.streams.values():
                stream.unreported = 0
            refused = [p.key for p in progress if p.key not in matched]
            self._perform(self.core.reports_refused(refused, now=self._now))

    def _stop(self, feeds: Sequence[tuple[FeedKey, Reason]]) -> None:
        for assigned, reason in feeds:
            stream = self._stream(assigned)
            if stream is not None and (self._is_leaving or not self.is_stubborn):
                self._release(stream, reason)

    def _release(self, stream: FakeStream, reason: Reason) -> None:
        """Close the socket first, commit what came in, then let go. What is not committed is asked for again."""
        if stream.connection is not None:
            stream.connection.close()
        self._commit([stream.key[0]])
        if self._stream(stream.key) is stream:
            self._end(stream, Release(*stream.key, reason))
            if not self._is_leaving:
                self.say(f"releases feed {stream.key[0]} ({reason})")

    def _lose(self, keys: Sequence[FeedKey]) -> None:
        lost = [stream for key in keys if (stream := self._stream(key))]
        if lost and self.core.worker_id is not None:
            self.say(f"lost {numbers(stream.key[0] for stream in lost)}")
        for stream in lost:
            self._end(stream, None)

    def _end(self, stream: FakeStream, release: Release | None) -> None:
        stream.disconnect()
        del self.streams[stream.key[0]]
        why = release.reason.value if release else "lost"
        self._perform(self.core.feed_ended(stream.key, release, why, now=self._now))

    def _suspend(self) -> None:
        for stream in self.streams.values():
            stream.disconnect()
