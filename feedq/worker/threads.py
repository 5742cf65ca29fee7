"""Threads that a process need not wait for when it leaves, calls onto an event loop, and the limit of leaving.

`SerialExecutor` runs jobs on one thread in their order. An executor of the standard library keeps the process
alive until its last job has ended. What is done here talks to brokers and databases that may not answer, and a
worker must be able to leave all the same.

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
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from feedq.telemetry.logs import LogEvent, log


class _Job(NamedTuple):
    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class SerialExecutor:
    """Jobs one after the other. Thread-safe; the thread starts with the first job."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._closed = False
        self._dropping = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def submit(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Future[Any]:
        """Raises `RuntimeError` when the lane is closed."""
        job = _Job(Future(), function, arguments, keywords)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._thread.name} takes no more jobs")
            if not self._thread.ident:
                self._thread.start()
            self._queue.put(job)
        return job.future

    def close(self, *, timeout_s: float, drop_waiting: bool) -> bool:
        """Take no more jobs, and wait for those that are left; those that wait may be dropped instead.

        Whether all has ended in time. What has not goes on by itself, and ends with the process.
        """
        with self._lock:
            self._closed = True
            if drop_waiting:
                self._dropping.set()
            self._queue.put(None)
        if self._thread.ident:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._dropping.is_set():
                job.future.cancel()
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.function(*job.arguments, **job.keywords))
                except BaseException as error:  # noqa: BLE001 -- whoever asked for it is told, as by any executor
                    job.future.set_exception(error)


T = TypeVar("T")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Have it called on that loop. One that has been closed has nobody left to tell: such a call is dropped."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Give it a result, unless whoever waits for that has been cancelled. On its loop."""
    if not future.done():
        future.set_result(result)


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
