"""Runs jobs on one thread in their order; a process need not wait for it when it leaves.

An executor of the standard library keeps the process alive until its last job has ended. What is done here
talks to brokers and databases that may not answer, and a worker must be able to leave all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, NamedTuple


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

    @property
    def backlog(self) -> int:
        """Jobs that wait."""
        return self._queue.qsize()

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
