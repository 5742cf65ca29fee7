"""Threads for jobs: each runs one after another, because to start one takes longer than a small job.

There are as many as run at once. A job that never ends keeps its thread, and the next one gets another. Every job
begins with an empty context, as it would in a new thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread

Work = Callable[[], None]
"""Raises nothing: an error ends its thread."""


class JobThreads:
    """Keeps at most ``keep`` idle threads. They are daemons: what is stuck must not keep the process from
    leaving."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._lock = Lock()
        self._idle: list[SimpleQueue[Work | None]] = []
        self._is_closed = False
        self._numbers = count(1)

    def run(self, work: Work) -> None:
        """Have this done, and do not wait for it. Raises `RuntimeError` when no thread can be started."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.put(work)
            return
        name = f"feedq-job-{next(self._numbers)}"
        Thread(target=self._serve, args=(work,), name=name, daemon=True).start()

    def close(self) -> None:
        """End those that are idle, and the others when their work is done."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, work: Work | None) -> None:
        inbox: SimpleQueue[Work | None] = SimpleQueue()
        while work is not None:
            Context().run(work)
            # What the job leaves behind is not kept until the next one comes.
            work = None
            with self._lock:
                if self._is_closed or len(self._idle) >= self._keep:
                    return
                self._idle.append(inbox)
            work = inbox.get()
