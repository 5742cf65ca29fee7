"""The inflight budget of a worker bounds what all its feeds have received and not yet committed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from feedq.telemetry.metrics import INFLIGHT_BYTES


class InflightBudget:
    """Bytes received and not yet committed, over all feeds of the worker. Thread-safe.

    It is the `feedq.connectors.base.Room` of this worker's connectors: what waits in their buffers counts. A
    feed with nothing on its way may always go on, or bytes that nobody takes could stop everything for ever;
    so the bound may be exceeded, by small reads, or by one batch of each feed whose connector reads by itself.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = Lock()
        self._waiting: set[Callable[[], None]] = set()
        INFLIGHT_BYTES.set_function(lambda: self._bytes)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def left(self) -> int:
        """Bytes; none or less when the worker is full."""
        return self._bytes_max - self._bytes

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    @property
    def is_half_full(self) -> bool:
        return 2 * self._bytes >= self._bytes_max

    def take(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
            if self._bytes >= self._bytes_max or not self._waiting:
                return
            woken, self._waiting = self._waiting, set()
        for wake in woken:
            wake()

    def wake_when_free(self, wake: Callable[[], None]) -> None:
        """Call it once, on whichever thread gives bytes back, when the worker is not full any more."""
        with self._lock:
            self._waiting.add(wake)
