"""Keeps the lease of a worker: sends heartbeats on a thread and a session of their own.

The thread is not the event loop's, so that code of feeds cannot hold it up, and does nothing else that could.
Between two heartbeats it watches its session for a break. It may be stuck in a call to a database that does not
answer; so it is a duty of the watch (`feedq.worker.watch`) to tell the core that time has passed, above all that
the trust window has ended.

What follows from all they find is decided by `feedq.core.worker`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, RLock
from typing import ParamSpec

from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import WorkerSession
from feedq.core.clock import Clock
from feedq.core.model import Heartbeat, Load, Worker
from feedq.core.worker import RETRY_FIRST_S, WorkerCore
from feedq.core.worker_actions import Action
from feedq.errors import FeedqError, Unavailable
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.metrics import HEARTBEAT_SECONDS
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, note_turn
from feedq.worker.activity import CHECK_S

logger = log(__name__)

P = ParamSpec("P")


class CoreDriver:
    """A `WorkerCore` for several threads: one event at a time, and its actions before the next one's.

    So actions are carried out in the order in which they were decided, and must not block.
    """

    def __init__(
        self, core: WorkerCore, perform: Callable[[Action], None], *, woken: Event | None = None
    ) -> None:
        """``woken`` is set when the core wants its `tick` sooner than before."""
        self.core = core
        self.beat_sooner: Callable[[], None] = lambda: None
        """Called when the core wants a heartbeat sooner than before."""
        self._perform = perform
        self._lock = RLock()
        self._woken = woken or Event()

    def tell(self, event: Callable[P, list[Action]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Report an event, and carry out what follows."""
        with self._lock:
            wakes_at, heartbeat_at = self.core.wakes_at(), self.core.heartbeat_at
            for action in event(*args, **kwargs):
                self._perform(action)
            if self.core.wakes_at() < wakes_at:
                self._woken.set()
            if self.core.heartbeat_at < heartbeat_at:
                self.beat_sooner()

    def lost(self, which: str, error: Exception, *, now: float) -> None:
        """Report that a connection to the database was lost."""
        if which in self.core.live_connections:
            logger.warning(LogEvent.SESSION_LOST, session=which, error=str(error))
        self.tell(self.core.connection_lost, which, now=now)


class LeaseKeeper:
    """Keeps the lease of one worker process, through as many worker sessions as it takes."""

    def __init__(
        self,
        store: PostgresStore,
        driver: CoreDriver,
        register: Callable[[], Worker],
        *,
        settings: Settings,
        clock: Clock,
        load: Callable[[], Load],
        stalled_s: Callable[[], float],
        on_registered: Callable[[Worker], None],
        on_answer: Callable[[Heartbeat], None],
    ) -> None:
        """``register`` begins a worker session, ``load`` is what each heartbeat says, ``stalled_s`` for how long
        the worker has stood still although it could have turned. ``on_registered`` hears of each worker session,
        and ``on_answer`` what each answer says beside what the core decides by."""
        self._store, self._driver, self._register_session = store, driver, register
        self._settings, self._clock = settings, clock
        self._load, self._stalled_s = load, stalled_s
        self._on_registered, self._on_answer = on_registered, on_answer
        self._core = driver.core
        self.worker: Worker | None = None
        """The worker session that was registered last."""
        self._stopping = Event()
        self._connection: WorkerSession | None = None
        self._renewed_at = clock.monotonic()
        self._thread = WatchedThread(self._keep, name="feedq-keeper")
        driver.beat_sooner = self._wake

    @property
    def trusted(self) -> bool:
        """Whether this worker may act as owner of its leases at this moment."""
        return self._core.is_trusted(self._clock.monotonic())

    @property
    def heartbeat_age_s(self) -> float:
        return self._clock.monotonic() - self._renewed_at

    def start(self) -> None:
        """Register, then keep the lease on a thread. Raises `Unavailable` if that first step fails."""
        self._register()
        self.beat()
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def beat(self) -> bool:
        """Send one heartbeat, or the registration that it needs. False when the database did not answer."""
        core, clock = self._core, self._clock
        if core.is_stalled:
            return False
        # Before the round trip: see TrustWindow.
        sent_at = clock.monotonic()
        try:
            if core.worker_id is None:
                self._register()
                sent_at = clock.monotonic()
            answer = self._connect().heartbeat(self._load_to_report())
        except Unavailable as error:
            self._lose_connection(error)
            self._driver.tell(core.heartbeat_failed, now=clock.monotonic())
            return False
        now = clock.monotonic()
        if answer is None:
            logger.warning(LogEvent.WORKER_DECLARED_GONE)
            self._disconnect()
        else:
            HEARTBEAT_SECONDS.observe(now - sent_at)
            self._renewed_at = sent_at
        self._driver.tell(core.heartbeat_answered, answer, sent_at=sent_at, now=now)
        if answer is not None:
            self._on_answer(answer)
        return True

    def _wake(self) -> None:
        """Have the keeper check whether a heartbeat is due. From any thread."""
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def _register(self) -> None:
        """Begin a worker session. Raises `Unavailable`."""
        worker = self.worker = self._register_session()
        now = self._clock.monotonic()
        self._driver.tell(self._core.registered, worker.id, capacity=worker.capacity, now=now)
        self._on_registered(worker)
        logger.info(
            LogEvent.WORKER_REGISTERED, worker=worker.name, id=str(worker.id), capacity=worker.capacity
        )

    def _load_to_report(self) -> Load:
        try:
            return self._load()
        except Exception:
            # Out of file descriptors, perhaps: no reason to be taken for dead.
            logger.exception(LogEvent.UNEXPECTED, where="load")
            return Load()

    # -- the keeper's connection ----------------------------------------------------------------------

    def _connect(self) -> WorkerSession:
        if self._connection is None:
            assert self.worker is not None
            self._connection = self._store.session(self.worker, ttl_s=self._settings.ttl_s)
            if not self._connection.locks_hold:
                logger.warning(LogEvent.CRASH_SIGNAL_OFF)
            self._driver.tell(self._core.connection_opened, "keeper")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _lose_connection(self, error: Exception) -> None:
        self._disconnect()
        self._driver.lost("keeper", error, now=self._clock.monotonic())

    # -- the thread ----------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._stopping.is_set():
            note_turn()
            is_idle = self._core.is_stalled or self._has_left
            wait_s = CHECK_S if is_idle else min(self._core.heartbeat_at - self._clock.monotonic(), TURN_S)
            try:
                if self._connection is None or wait_s <= 0:
                    self._stopping.wait(max(wait_s, 0.0))
                else:
                    self._connection.wait(wait_s)
            except Exception as error:
                if not isinstance(error, Unavailable):
                    logger.exception(LogEvent.UNEXPECTED, where="keeper")
                    self._stopping.wait(RETRY_FIRST_S)
                # Broken between two heartbeats: noticed now, not at the next one.
                self._lose_connection(error)
                self._driver.tell(self._core.beat_now, now=self._clock.monotonic())
            is_due = self._clock.monotonic() >= self._core.heartbeat_at
            if is_due and not self._stopping.is_set() and not self._has_left:
                self._beat_safely()
        self._disconnect()

    @property
    def _has_left(self) -> bool:
        return self._core.worker_id is None and self._core.is_draining

    def _beat_safely(self) -> None:
        try:
            self.beat()
            return
        except FeedqError as error:
            logger.warning(database_event(error), where="keeper", error=str(error))
        except Exception as error:
            logger.exception(LogEvent.UNEXPECTED, where="keeper")
            self._lose_connection(error)
        self._driver.tell(self._core.heartbeat_failed, now=self._clock.monotonic())

    def watch(self) -> float:
        """Tell the core the time, and whether the worker stands still. Returns in how long to do so again."""
        self._driver.tell(self._core.loop_checked, self._stalled_s(), now=self._clock.monotonic())
        self._driver.tell(self._core.tick, self._clock.monotonic())
        return min(CHECK_S, self._core.wakes_at() - self._clock.monotonic())
