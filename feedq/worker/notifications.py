"""The session on which a worker is notified of feeds to claim, of stop requests, and of runs.

The lease client waits on it for more to do, so that one thread hears what there is to ask and asks it. It also
holds the worker's lock: as long as it is there, a break of the keeper's session is not a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Event, Lock

from feedq.control.store.channels import NotifyReason
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import Listener
from feedq.core.clock import Clock
from feedq.core.model import Worker
from feedq.core.worker import RETRY_FIRST_S, RETRY_MAX_S
from feedq.errors import Unavailable
from feedq.telemetry.logs import LogEvent, log
from feedq.worker.lease_keeper import CoreDriver

LISTENER = "listener"

logger = log(__name__)


class Notifications:
    """`follow` and `wake` from any thread, the rest on that of the lease client."""

    def __init__(
        self,
        store: PostgresStore,
        driver: CoreDriver,
        *,
        clock: Clock,
        on_heard: Callable[[Collection[str]], None],
    ) -> None:
        """``on_heard`` hears for which reasons the worker was notified."""
        self._store, self._driver, self._clock, self._on_heard = store, driver, clock, on_heard
        self._woken = Event()
        self._lock = Lock()
        self._listener: Listener | None = None
        self._wanted: Worker | None = None
        self._worker: Worker | None = None
        """The worker that the session is for."""
        self._retry_at, self._pause_s = float("-inf"), RETRY_FIRST_S

    def follow(self, worker: Worker) -> None:
        """Listen for this worker session from now on."""
        self._wanted = worker
        self.wake()

    def wake(self) -> None:
        """End a `wait`, the one under way or else the next one."""
        self._woken.set()
        with self._lock:
            if self._listener is not None:
                self._listener.interrupt()

    def wait(self, timeout_s: float) -> None:
        """Wait to be woken or notified. The session is opened when there is none."""
        try:
            self._open()
            if self._listener is None:
                self._woken.wait(timeout_s)
            elif self._listener.wait(0.0 if self._woken.is_set() else timeout_s):
                self._on_heard(self._listener.heard)
        except Exception as error:
            if not isinstance(error, Unavailable):
                logger.exception(LogEvent.UNEXPECTED, where=LISTENER)
            self.close()
            self._driver.lost(LISTENER, error, now=self._clock.monotonic())
            self._retry_at = self._clock.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)
        # Whoever wakes it from now on has put what there is to do where it is found after this.
        self._woken.clear()

    def close(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _open(self) -> None:
        worker = self._wanted
        if worker is not self._worker:
            self.close()
        if worker is None or self._listener is not None or self._clock.monotonic() < self._retry_at:
            return
        listener = self._store.worker_listener(worker)
        with self._lock:
            self._listener, self._worker = listener, worker
        self._pause_s = RETRY_FIRST_S
        self._driver.tell(self._driver.core.connection_opened, LISTENER)
        # Something may have been asked before we listened.
        self._on_heard(list(NotifyReason))
