"""One pool of threads for whatever may block: jobs of schedules, ordinary tasks, passes, and Celery's callbacks.

A `ThreadPool` starts what it is given at once; whoever gives it work bounds how much. A `Lane` is such a bound: it
does its work in order, and at most so much of it at a time.

An executor of the standard library keeps the process alive until its last job has ended. Work here talks to
brokers and databases that may not answer, or is users' code, so the threads are daemons: a worker must be able to
leave all the same.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread
from typing import Any, TypeAlias

IDLE_S = 10.0
"""How long a thread waits for more work before it ends. To start one takes longer than a small job."""

Work: TypeAlias = Callable[[], None]
"""Raises nothing: an error ends its thread."""


class ThreadPool:
    """Threads that run one task after another, each in an empty context, as in a new thread.

    The pool grows with the work that runs at once: work that never ends keeps its thread, and the next piece gets
    another. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: list[SimpleQueue[Work]] = []
        self._numbers = itertools.count(1)

    def run(self, work: Work) -> None:
        """Have this done, and do not wait for it. Raises `RuntimeError` when no thread can be started."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.put(work)
            return
        name = f"feedq-pool-{next(self._numbers)}"
        Thread(target=self._serve, args=(work,), name=name, daemon=True).start()

    def _serve(self, work: Work | None) -> None:
        inbox: SimpleQueue[Work] = SimpleQueue()
        while work is not None:
            Context().run(work)
            work = None  # what it leaves behind is not kept until more comes
            with self._lock:
                self._idle.append(inbox)
            work = self._await(inbox)

    def _await(self, inbox: SimpleQueue[Work]) -> Work | None:
        with suppress(Empty):
            return inbox.get(timeout=IDLE_S)
        with self._lock:
            if inbox in self._idle:
                self._idle.remove(inbox)
                return None
        return inbox.get()  # it was chosen in this very moment


class Lane:
    """Does work in order on threads of a pool, at most ``width`` pieces at a time. Thread-safe."""

    def __init__(self, threads: ThreadPool, *, width: int = 1) -> None:
        self._threads, self._width = threads, width
        self._changed = Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._is_closed = False

    def submit(self, work: Callable[[], Any], future: Future[Any] | None = None) -> Future[Any]:
        """Have this done, and ``future`` tell of it. Raises `RuntimeError` when the lane is closed, or no thread
        can be started."""
        future = future or Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("this lane is closed")
            if self._running < self._width:
                self._threads.run(self._serve)
                self._running += 1
            self._waiting.append((future, work))
        return future

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def close(self, *, timeout_s: float | None, drop_waiting: bool) -> bool:
        """Take no more work, and wait for what is left, or only for what has begun. ``timeout_s`` None: no limit.

        Returns whether all has ended in time. What has not goes on by itself, and ends with the process.
        """
        with self._changed:
            self._is_closed = True
            dropped = list(self._waiting) if drop_waiting else []
            if drop_waiting:
                self._waiting.clear()
        for future, _ in dropped:
            future.cancel()
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            future, work = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(Context().run(work))
                except BaseException as error:  # noqa: BLE001 -- whoever asked for it is told, as by any executor
                    future.set_exception(error)

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            self._changed.notify_all()
            return None
