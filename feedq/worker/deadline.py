"""The hard limit of leaving: a process that was told to end, ends, and so does one whose parent has ended.

Everything that a worker does on its way out has a time limit of its own. This is for what has none: a library
that waits for a server without one, feed code that never returns, a thread that the interpreter insists on
joining. Nothing is lost with them: the leases bring the feeds back, the broker the messages.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic, sleep

from feedq.telemetry.logs import LogEvent, log

POLL_S = 0.05
PR_SET_PDEATHSIG = 1

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


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, which had this id when it forked. Where the kernel
    cannot, a lost lease ends what runs here, half a second later."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # killed before we asked
