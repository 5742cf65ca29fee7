"""Threads that a process need not wait for when it leaves, calls onto an event loop, and the limit of leaving.

An `Outbox` sends messages, so that nobody else ever waits for the broker, which may refuse, be gone, or hang:
accept what it is sent and never answer. What decides, places, elects or renews only puts its messages there. Every
message is a hint that somebody else makes good (a notification, a look-up, a time-out), so what cannot be sent in
time is left out: counted, and said once in a while.

`Deadline` ends a process that was told to end. Everything that a worker does on its way out has a time limit of
its own; this is for what has none: a library that waits for a server without one, feed code that never returns,
a thread that the interpreter insists on joining. Nothing is lost with them: the leases bring the feeds back, the
broker the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from math import inf
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import MESSAGES_LEFT_OUT
from feedq.worker.thread_pool import Lane, ThreadPool

WAITING_MAX = 100_000
"""Messages that wait: ten cold starts of ten thousand feeds. Beyond it they would only fill the memory."""
SAY_AGAIN_S = 30.0
"""The least time between two lines about messages that are left out."""


T = TypeVar("T")


class Outbox(Generic[T]):
    """Hands what was put into it to ``send``, all that waits at once. Thread-safe.

    ``send`` may block for as long as the time-outs of its sockets let it, and raise whatever kombu does.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], object],
        *,
        stale_s: float,
        event: LogEvent,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """Make an outbox. What has waited for ``stale_s`` is not worth sending any more; ``event`` is what the
        log says of it."""
        self._send, self._stale_s, self._event = send, stale_s, event
        self._waiting_max = waiting_max
        self._lane = Lane(ThreadPool())
        self._lock = Lock()
        self._waiting: list[tuple[float, T]] = []
        self._is_due = False
        """Whether the lane is to send what waits."""
        self._quiet_until = float("-inf")
        self._left_out = 0
        """Messages, since the log said so last."""

    def put(self, items: Iterable[T]) -> None:
        """Add messages, without ever waiting for the broker; what there is no room for is left out."""
        now, left_out = monotonic(), 0
        with self._lock:
            for item in items:
                if len(self._waiting) < self._waiting_max:
                    self._waiting.append((now, item))
                else:
                    left_out += 1
            if not self._is_due:
                # Closed; or no thread can be started, and the next message tries that again.
                with contextlib.suppress(RuntimeError):
                    self._lane.submit(self._send_waiting)
                    self._is_due = True
        if left_out:
            self._leave_out(left_out, "too many wait")

    def close(self, *, timeout_s: float) -> None:
        """Take no more, and wait a moment for what was put; what is left then ends with the process."""
        self._lane.close(timeout_s=timeout_s, drop_waiting=False)

    def _send_waiting(self) -> None:
        with self._lock:
            self._is_due = False
            waiting, self._waiting = self._waiting, []
        oldest = monotonic() - self._stale_s
        items = [item for put_at, item in waiting if put_at >= oldest]
        if stale := len(waiting) - len(items):
            self._leave_out(stale, f"they waited for more than {self._stale_s:g} s")
        try:
            if items:
                self._send(items)
        except Exception as error:  # noqa: BLE001 -- kombu raises whatever its transport does
            self._leave_out(len(items), repr(error))

    def _leave_out(self, count: int, why: str) -> None:
        MESSAGES_LEFT_OUT.inc(count)
        with self._lock:
            self._left_out += count
            if monotonic() < self._quiet_until:
                return
            self._quiet_until = monotonic() + SAY_AGAIN_S
            unsent, self._left_out = self._left_out, 0
        logger.warning(self._event, error=why, unsent=unsent)


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Have it called on that loop. One that has been closed has nobody left to tell: such a call is dropped."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Give it a result, unless whoever waits for that has been cancelled. On its loop."""
    if not future.done():
        future.set_result(result)


BEGIN_S, POLL_S = 0.5, 0.05
"""How often a deadline is looked at before and after it has begun."""
PR_SET_PDEATHSIG = 1

logger = log(__name__)


class Deadline:
    """Once started, ends the process unless it ends by itself in time. `look` is a duty of the watch."""

    def __init__(
        self, limit_s: float, *, is_busy: Callable[[], bool], leave: Callable[[int], object] = os._exit
    ) -> None:
        """``is_busy``: whether work goes on that the process is meant to wait for; the limit begins after it."""
        self._limit_s = limit_s
        self._is_busy = is_busy
        self._leave = leave
        self._exit_code = 0
        self._end_at = inf

    def begin(self, exit_code: int) -> None:
        """Safe in a signal handler: takes no lock."""
        if self._end_at == inf:
            self._exit_code, self._end_at = exit_code, monotonic() + self._limit_s

    def look(self) -> float:
        """End the process if its time is over. Returns in how long to look again."""
        if self._end_at == inf:
            return BEGIN_S
        if self._is_busy():
            self._end_at = monotonic() + self._limit_s
        elif monotonic() >= self._end_at:
            logger.error(LogEvent.LEAVE_OVERDUE, limit_s=self._limit_s)
            self._leave(self._exit_code)
        return POLL_S


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, which had this id when it forked. Where the kernel
    cannot, the process of a feed that runs apart looks at its parent by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # killed before we asked
