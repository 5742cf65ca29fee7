"""Keeps the worker's lease: heartbeat, trust window, and the ear for stop requests and assignments.

Three threads, none of them the event loop's, so that feed code cannot hold them up:

* *keeper* sends the heartbeat and, between two, watches its database session for a break;
* *listener* waits on a second session to be rung: for a stop request, or for feeds to claim;
* *guard* does nothing but wait for the end of the trust window: the other two may be stuck in a call to a
  database that does not answer.

What follows from it is the `LeaseListener`'s business: suspend (cut every socket, keep the leases), resume, or let
everything go and begin anew. A worker that lost *all* its sessions suspends at once: the beat may take it
for crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from threading import Condition, Event, RLock, Thread
from typing import Protocol

from feedq.clock import Clock
from feedq.errors import FeedqError, Unavailable
from feedq.lease import TrustWindow
from feedq.model import Heartbeat, Load, NewWorker, Worker, WorkerState
from feedq.runtime.stall import LOOK_S
from feedq.settings import HEARTBEAT_MIN_S, Settings
from feedq.store.base import Listener, Store, WorkerSession
from feedq.store.channels import NotifyReason
from feedq.telemetry import HEARTBEAT_SECONDS, LogEvent, database_event, log

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 1.0
"""A database that is back is noticed within this, well inside what is left of a ttl."""
LISTEN_S = 30.0
"""How long one wait for a notification lasts; heartbeats carry the same news in the meantime."""
WATCHDOG_INTERVALS = 3
"""Reconcile intervals without a finished pass after which a worker runs one itself."""
WATCHDOG_MIN_S = 1.0
"""With an interval of nothing every heartbeat of every worker would become a pass."""
WATCHDOG_JITTER = 0.2
"""Spreads the watchdogs of a fleet over a fifth of their wait, so that the first one spares the others."""

logger = log(__name__)


class LeaseListener(Protocol):
    """Whoever acts under the lease. Called from the lease keeper's threads; must not block."""

    def registered(self, worker: Worker) -> None: ...

    def reconnected(self) -> None:
        """A session was opened in place of one that was lost, and the worker is still known."""

    def suspend(self, why: str) -> None: ...

    def resume(self) -> None: ...

    def gone(self) -> None: ...

    def answered(self, answer: Heartbeat) -> None:
        """A heartbeat was, with this."""

    def summoned(self) -> None: ...

    def stalled_s(self) -> float:
        """For how long the event loop has stood still although it could have turned."""

    def reconcile_overdue(self) -> None: ...

    def load(self) -> Load: ...


class SessionListener(Protocol):
    """Who else lives under the worker session. Called from the lease keeper's threads; must not block."""

    def gone(self) -> None: ...

    def summoned(self) -> None: ...


class LeaseKeeper:
    """The lease of one worker process, through as many worker sessions as it takes."""

    def __init__(
        self,
        store: Store,
        new_worker: Callable[[], NewWorker],
        lease_listener: LeaseListener,
        *,
        settings: Settings,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._store, self._new_worker, self._lease_listener = store, new_worker, lease_listener
        self.session_listener: SessionListener | None = None
        self._settings, self._clock = settings, clock
        self._heartbeat_s = max(settings.heartbeat_s, HEARTBEAT_MIN_S)
        self._lock = RLock()
        self._trust_changed = Condition(self._lock)
        self._stopping = Event()
        self.worker: Worker | None = None
        self._trust = TrustWindow()
        self._suspended = self._hurried = self._is_stalled = False
        self._live: set[str] = set()
        self._is_reconnecting = False
        """Whether a session was lost since the database last answered a heartbeat."""
        self._session: WorkerSession | None = None
        self._listener: Listener | None = None
        self._renewed_at = self._tried_at = clock.monotonic()
        self._watchdog_s = max(settings.reconcile_interval_s * WATCHDOG_INTERVALS, WATCHDOG_MIN_S)
        self._watchdog_s *= 1 + WATCHDOG_JITTER * rng.random()
        self._watchdog_at = clock.monotonic() + self._watchdog_s
        self._threads = [
            Thread(target=self._keep, name="feedq-keeper", daemon=True),
            Thread(target=self._listen, name="feedq-listener", daemon=True),
            Thread(target=self._guard, name="feedq-guard", daemon=True),
        ]

    @property
    def trusted(self) -> bool:
        """Whether this worker may act as owner of its leases at this moment."""
        with self._lock:
            return not self._suspended and self._trust.holds(self._clock.monotonic())

    @property
    def heartbeat_age_s(self) -> float:
        return self._clock.monotonic() - self._renewed_at

    @property
    def attempt_age_s(self) -> float:
        """Since a heartbeat was last tried, whatever became of it."""
        return self._clock.monotonic() - self._tried_at

    @property
    def is_running(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Register, then keep the lease on threads. Raises `Unavailable` if that first step fails."""
        self.register()
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_s: Callable[[], float]) -> None:
        """End the threads, waiting for each as long as ``timeout_s`` then says."""
        self._stopping.set()
        with self._lock:
            self._trust_changed.notify_all()
            for waiting in (self._session, self._listener):
                if waiting is not None:
                    waiting.interrupt()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s())

    def beat_soon(self) -> None:
        """Hear now what the next heartbeat would bring. From any thread."""
        with self._lock:
            self._hurried = True
            if self._session is not None:
                self._session.interrupt()

    def register(self) -> None:
        """Begin a worker session and beat once. Raises `Unavailable`."""
        worker = self._store.workers.register(self._new_worker(), ttl_s=self._settings.ttl_s)
        with self._lock:
            self.worker = worker
            self._trust = TrustWindow()
            if self._listener is not None:
                # Only now: woken any sooner, it would find the old worker still in place and wait on.
                self._listener.interrupt()
        self._lease_listener.registered(worker)
        logger.info(
            LogEvent.WORKER_REGISTERED, worker=worker.name, id=str(worker.id), capacity=worker.capacity
        )
        self.beat()

    def beat(self) -> bool:
        """One heartbeat and all that follows from it. False when the database did not answer."""
        if self._is_stalled:
            # Threads that go on are no sign of life: nobody reads, writes or stops the feeds.
            return False
        # Before the round trip: see TrustWindow.
        sent_at = self._tried_at = self._clock.monotonic()
        try:
            session = self._open_session()
            answer = session.heartbeat(self._load())
            if answer is None:
                self._start_anew()
                return True
        except Unavailable as error:
            self._drop_session()
            self._lost("keeper", error)
            return False
        self._renewed(sent_at)
        self._heed(answer)
        with self._lock:
            is_back, self._is_reconnecting = self._is_reconnecting, False
        if is_back:
            self._lease_listener.reconnected()
        return True

    def _load(self) -> Load:
        try:
            return self._lease_listener.load()
        except Exception:
            # Out of file descriptors, perhaps: no reason to be taken for dead.
            logger.exception(LogEvent.UNEXPECTED, where="load")
            return Load()

    # -- what a heartbeat brings ---------------------------------------------------------------------

    def _renewed(self, sent_at: float) -> None:
        now = self._clock.monotonic()
        HEARTBEAT_SECONDS.observe(now - sent_at)
        with self._lock:
            self._renewed_at = sent_at
            self._trust = TrustWindow.after_heartbeat(
                sent_at=sent_at, ttl_s=self._settings.ttl_s, margin_s=self._settings.trust_margin_s
            )
            self._trust_changed.notify_all()
            back = self._suspended and self._trust.holds(now) and not self._is_stalled
            if back:
                self._suspended = False
        if back:
            logger.info(LogEvent.WORKER_RESUMED)
            self._lease_listener.resume()

    def _heed(self, answer: Heartbeat) -> None:
        self._lease_listener.answered(answer)
        now = self._clock.monotonic()
        # A pass that lies ahead was before the database's clock was put back, and nobody knows when.
        if answer.pass_age_s is not None and 0 <= answer.pass_age_s < self._watchdog_s:
            self._watchdog_at = now + self._watchdog_s - answer.pass_age_s
        elif now >= self._watchdog_at and answer.state is WorkerState.ACTIVE:
            self._watchdog_at = now + self._watchdog_s
            logger.warning(LogEvent.WATCHDOG, pass_age_s=answer.pass_age_s)
            self._lease_listener.reconcile_overdue()

    def _start_anew(self) -> None:
        """Declared gone: everything held is lost; register as a new worker session."""
        logger.warning(LogEvent.WORKER_DECLARED_GONE)
        with self._lock:
            self._suspended = True
        self._lease_listener.gone()
        if self.session_listener is not None:
            self.session_listener.gone()
        self._drop_session()
        self.register()

    # -- sessions ------------------------------------------------------------------------------------

    def _open_session(self) -> WorkerSession:
        if self._session is None:
            assert self.worker is not None
            session = self._store.session(self.worker, ttl_s=self._settings.ttl_s)
            if not session.locks_hold:
                logger.warning(LogEvent.CRASH_SIGNAL_OFF)
            with self._lock:
                self._session = session
                self._live.add("keeper")
        return self._session

    def _drop_session(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _lost(self, which: str, error: Exception) -> None:
        with self._lock:
            was_live = which in self._live
            self._live.discard(which)
            last = was_live and not self._live
            self._is_reconnecting = self._is_reconnecting or was_live
        if was_live:
            logger.warning(LogEvent.SESSION_LOST, session=which, error=str(error))
        if last:
            # Nobody holds our lock any more: the beat may take us for crashed any moment now.
            self._suspend("the last database session was lost")

    def _suspend(self, why: str) -> None:
        with self._lock:
            if self._suspended:
                return
            self._suspended = True
            if self._session is not None:
                # Ask at once whether we are still known, rather than at the next interval.
                self._session.interrupt()
        logger.warning(LogEvent.WORKER_SUSPENDED, why=why)
        self._lease_listener.suspend(why)

    # -- threads -------------------------------------------------------------------------------------

    def _keep(self) -> None:
        pause_s = RETRY_FIRST_S
        next_at = self._clock.monotonic() + self._heartbeat_s
        while not self._stopping.is_set():
            try:
                if self._session is None:
                    self._stopping.wait(pause_s)
                else:
                    self._session.wait(next_at - self._clock.monotonic())
            except Exception as error:
                if not isinstance(error, Unavailable):
                    logger.exception(LogEvent.UNEXPECTED, where="keeper")
                    self._stopping.wait(RETRY_FIRST_S)
                # Broken between two heartbeats: noticed now, not at the next one.
                self._drop_session()
                self._lost("keeper", error)
                next_at = self._clock.monotonic()
            in_time = self._session is not None and self._clock.monotonic() < next_at
            if self._stopping.is_set() or (in_time and not self._suspended and not self._hurried):
                continue
            self._hurried = False
            answered = self._beat_safely()
            pause_s = RETRY_FIRST_S if answered else min(2 * pause_s, RETRY_MAX_S)
            next_at = self._clock.monotonic() + self._heartbeat_s
        self._drop_session()

    def _beat_safely(self) -> bool:
        try:
            return self.beat()
        except FeedqError as error:
            logger.warning(database_event(error), where="keeper", error=str(error))
        except Exception as error:
            logger.exception(LogEvent.UNEXPECTED, where="keeper")
            self._drop_session()
            self._lost("keeper", error)
        return False

    def _listen(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._stopping.is_set():
            worker = self.worker
            assert worker is not None
            try:
                listener = self._store.worker_listener(worker)
                with self._lock:
                    self._listener = listener
                    self._live.add("listener")
                pause_s = RETRY_FIRST_S
                try:
                    # Something may have been asked before we listened.
                    self._summoned(list(NotifyReason))
                    while not self._stopping.is_set() and self.worker is worker:
                        if listener.wait(LISTEN_S):
                            self._summoned(listener.heard)
                finally:
                    with self._lock:
                        self._listener = None
                    listener.close()
            except Unavailable as error:
                self._lost("listener", error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except Exception as error:
                logger.exception(LogEvent.UNEXPECTED, where="listener")
                self._lost("listener", error)
                self._stopping.wait(RETRY_MAX_S)

    def _summoned(self, heard: Collection[str]) -> None:
        if NotifyReason.FEEDS.is_among(heard):
            self._lease_listener.summoned()
        if self.session_listener is not None and NotifyReason.JOBS.is_among(heard):
            self.session_listener.summoned()

    def _guard(self) -> None:
        while not self._stopping.is_set():
            self._look_at_the_loop()
            with self._lock:
                left_s = self._trust.until - self._clock.monotonic()
                if left_s > 0 or self._suspended:
                    self._trust_changed.wait(
                        min(max(left_s, 0.05), LOOK_S) if not self._suspended else LOOK_S
                    )
                    continue
            self._suspend("no heartbeat was answered in time")

    def _look_at_the_loop(self) -> None:
        """A lease is kept by progress: while the loop stands still, it is not renewed."""
        stalled_s = self._lease_listener.stalled_s()
        stall_s = self._settings.stall_s
        was_stalled, self._is_stalled = self._is_stalled, bool(stall_s) and stalled_s >= stall_s
        if self._is_stalled and not was_stalled:
            logger.error(LogEvent.LOOP_STALLED, stalled_s=round(stalled_s, 1))
            self._suspend("the event loop stands still")
