"""A worker process without threads: carries out what its `WorkerCore` decides, on a store in memory.

It does what `feedq.worker.lease_keeper`, `lease_client` and `supervisor` do with threads and sessions. Whoever
drives it says when, tick by tick, with faults between any two steps (`tests/fakes/worker.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from uuid import NAMESPACE_OID, UUID, uuid5

from feedq.clock import Clock
from feedq.errors import Unavailable
from feedq.model import Claim, FeedKey, Heartbeat, Load, NewWorker, Reason, Worker
from feedq.settings import Settings
from feedq.worker import actions
from feedq.worker.actions import ASSIGNMENTS_MAX, Action
from feedq.worker.core import WorkerCore
from tests.fakes.memory.simulated_store import SimulatedSession, SimulatedStore


class SimulatedWorker:
    """Plays one worker process, through as many worker sessions as it takes."""

    core_type: type[WorkerCore] = WorkerCore

    def __init__(
        self,
        name: str,
        *,
        store: SimulatedStore,
        settings: Settings,
        clock: Clock,
        capacity: int,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.clock = name, clock
        self.capacity, self.labels = capacity, labels or {}
        self._store, self._settings = store, settings
        self.core = self.core_type(settings, rng=Random(name), now=clock.monotonic())
        self.worker: Worker | None = None
        self._session: SimulatedSession | None = None
        self._wanted: deque[Action] = deque()
        """Actions of the core that have not been carried out."""
        self._is_performing = False
        self._requests: deque[Action] = deque()
        """What the core wants of the database, in the order of its requests."""
        self._tries = 0
        """How often the first of them was tried."""

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    # -- the worker session --------------------------------------------------------------------------

    def _send_heartbeat(self) -> Heartbeat | None:
        """Registers before the first, and opens the session that carries it. Raises `Unavailable`."""
        if self.core.needs_session:
            self._register()
        if self._session is None:
            assert self.worker is not None
            self._session = self._store.session(self.worker, ttl_s=self._settings.ttl_s)
            self._perform(self.core.connection_opened("keeper"))
        return self._session.heartbeat(self._load())

    def _load(self) -> Load:
        return Load(feeds=self.core.feeds)

    def _register(self) -> None:
        # The same in every run, and never the same twice in one: each session is a row of its own.
        number = 1 + self._store.database.registered[self.name]
        session_id = uuid5(NAMESPACE_OID, f"{self.name}/{number}")
        queue = f"node.{self.name}"
        new = NewWorker(session_id, self.name, queue, self.capacity, self.name, number, "paper", self.labels)
        self.worker = self._store.workers.register(new, ttl_s=self._settings.ttl_s)
        self._perform(self.core.registered(self.worker.id, capacity=self.capacity, now=self._now))

    def _close_sessions(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

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

    def _step(self) -> None:
        """Called between any two things that it does."""

    def _carry_out(self, action: Action) -> None:
        match action:
            case actions.Suspend():
                self._suspend()
            case actions.Resume():
                self._resume()
            case actions.EndSession():
                self._suspend()
                self._close_sessions()
            case actions.StartFeeds(_, claims):
                self._start(claims)
            case actions.StopFeeds(feeds):
                self._stop(feeds)
            case actions.LoseFeeds(keys):
                self._lose(keys)
            case actions.CutSockets(keys):
                self._cut(keys)
            case actions.Drained():
                self._drained()
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

    def _reach(self) -> None:
        """Raises `Unavailable` where a call to the database would."""

    def _ask(self, request: Action) -> None:
        leases = self._store.leases
        match request:
            case actions.ClaimFeeds(worker_id, keys):
                self._claim(worker_id, keys)
            case actions.ReleaseLeases(worker_id, releases):
                leases.release(worker_id, releases)
            case actions.FetchOrders(worker_id, with_assignments):
                if with_assignments:
                    found = leases.assigned(worker_id, limit=ASSIGNMENTS_MAX)
                    self._perform(self.core.assignments_found(worker_id, found))
                requests = leases.stop_requests(worker_id)
                self._perform(self.core.stops_found(worker_id, requests, now=self._now))
            case actions.FetchHeld(worker_id):
                held = set(leases.held(worker_id))
                self._perform(self.core.held_found(worker_id, held, now=self._now))
            case actions.AnnounceDrain(worker_id):
                self._store.workers.drain(worker_id)

    def _claim(self, worker_id: UUID, keys: list[FeedKey]) -> None:
        claims = self._store.leases.claim(worker_id, keys)
        granted = {claim.key for claim in claims}
        refused = [key for key in keys if key not in granted]
        sure = not refused or self._tries == 1
        self._perform(self.core.claims_answered(worker_id, claims, refused, sure=sure, now=self._now))

    # -- feeds ---------------------------------------------------------------------------------------

    def _suspend(self) -> None:
        """Cut the sockets and keep the leases."""
        raise NotImplementedError

    def _resume(self) -> None:
        """Connect again."""

    def _start(self, claims: Sequence[Claim]) -> None:
        raise NotImplementedError

    def _stop(self, feeds: Sequence[tuple[FeedKey, Reason]]) -> None:
        raise NotImplementedError

    def _lose(self, keys: Sequence[FeedKey]) -> None:
        raise NotImplementedError

    def _cut(self, keys: Sequence[FeedKey]) -> None:
        """Shut their sockets, though they may not have ended."""

    def _drained(self) -> None:
        """Nothing runs here any more, and nothing will."""
        raise NotImplementedError
