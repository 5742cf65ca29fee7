"""The hard limit of leaving: a process that was told to end, ends.

Everything that a worker does on its way out has a time limit of its own. This is for what has none: a library
that waits for a server without one, feed code that never returns, a thread that the interpreter insists on
joining. Nothing is lost with them: the leases bring the feeds back, the broker the messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic, sleep

from feedq.telemetry import LogEvent, log

POLL_S = 0.05

logger = log(__name__)


class Deadline(Thread):
    """Waits until it is told to begin, then ends the process unless that has ended by itself in time."""

    def __init__(
        self, limit_s: float, *, is_busy: Callable[[], bool], leave: Callable[[int], object] = os._exit
    ) -> None:
        """``is_busy``: whether work goes on that the process is meant to wait for; the limit begins after it."""
        super().__init__(name="feedq-deadline", daemon=True)
        self._limit_s = limit_s
        self._is_busy = is_busy
        self._leave = leave
        self._begun = Event()
        self._exit_code = 0

    def begin(self, exit_code: int) -> None:
        """Safe in a signal handler: takes no lock that the interrupted thread could hold."""
        if not self._begun.is_set():
            self._exit_code = exit_code
            self._begun.set()

    def run(self) -> None:
        self._begun.wait()
        end_at = monotonic() + self._limit_s
        while True:
            if self._is_busy():
                end_at = monotonic() + self._limit_s
            elif monotonic() >= end_at:
                break
            sleep(POLL_S)
        logger.error(LogEvent.LEAVE_OVERDUE, limit_s=self._limit_s)
        self._leave(self._exit_code)
