"""Notes what a process is doing at this moment, where others can read it even when the process cannot speak.

A worker notes in a small shared file how often its event loop has turned and which feed's code is running: on the
loop, and on each thread of a blocking connector. Its monitor (`feedq.worker.monitor`) reads this when the loop
stands still, and after the process has died, by whatever: the notes are still there.

Writing is a store into memory: no lock, no system call. Numbers are 64 bits and aligned, so a reader sees the old
one or the new one.
"""

from __future__ import annotations

import contextvars
import fcntl
import mmap
import os
import threading
from asyncio import AbstractEventLoop, Task
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

THREADS_MAX: Final = 512
"""Threads of blocking connectors that can be noted; what further ones do is not known."""
_PID, _TICKS, _PULSE, _LOOP_THREAD, _LOOP_IDENT, _FEED, _LEAVING, _SESSION_HIGH, _SESSION_LOW, _MEASURING = (
    range(10)
)
_THREADS: Final = range(16, 16 + 3 * THREADS_MAX, 3)
"""From here on, three numbers a thread: the system's id, Python's id, and the feed that it works for."""
SIZE: Final = 8 * _THREADS.stop

NO_FEED: Final = 0
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

current_feed: Final = contextvars.ContextVar[int]("feedq_feed", default=NO_FEED)
"""The id of the feed that this code runs for; inherited by the tasks that it starts."""


@dataclass(frozen=True, slots=True)
class FeedThread:
    """A thread that runs the code of a feed."""

    thread: int
    """The system's id of it."""
    ident: int
    """Python's id of it."""
    feed_id: int


class Activity:
    """The notes of one process. The process itself writes, anybody may read."""

    def __init__(self, file: mmap.mmap) -> None:
        self._memory = memoryview(file).cast("q")
        self._lock = threading.Lock()
        self.growth: Counter[int] = Counter()
        """Bytes that were added while the code of a feed ran on the loop, by feed; only while that is measured."""

    @classmethod
    def create(cls, path: Path) -> Activity:
        """Make a new file, readable by its owner only, and locked for as long as this process lives.

        Raises `OSError`.
        """
        # Not closed: the lock goes with the process, and so tells whether it lives.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, SIZE)
        activity = cls(mmap.mmap(descriptor, SIZE))
        activity._memory[_PID] = os.getpid()
        return activity

    @classmethod
    def read(cls, path: Path) -> Activity:
        """The notes of another process. Raises `OSError`, and `ValueError` when the file is none of these."""
        with path.open("rb") as file:
            return cls(mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ))

    @staticmethod
    def is_of_the_dead(path: Path) -> bool:
        """Return whether the process that made this file has ended. Raises `OSError`."""
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    @classmethod
    def private(cls) -> Activity:
        """Notes that nobody else can read, for whoever has no monitor."""
        return cls(mmap.mmap(-1, SIZE))

    # -- what the process notes ----------------------------------------------------------------------

    def watch_loop(self, loop: AbstractEventLoop) -> None:
        """Note the tasks of feeds from now on as they run. Called on the loop's thread."""
        self._memory[_LOOP_THREAD] = threading.get_native_id()
        self._memory[_LOOP_IDENT] = threading.get_ident()
        loop.set_task_factory(self._make_task)  # type: ignore[arg-type]  # a task of a coroutine, never of a generator

    def tick(self) -> None:
        """The loop has turned."""
        self._memory[_TICKS] += 1

    def pulse(self) -> None:
        """Note that a thread other than the loop's got the interpreter."""
        self._memory[_PULSE] += 1

    def measure_growth(self, on: bool) -> None:
        """See by how much the process grows with each step of a feed. Costs microseconds a step."""
        if not on:
            self.growth.clear()
        self._memory[_MEASURING] = on

    def leave(self) -> None:
        """The process is about to end in good order."""
        self._memory[_LEAVING] = 1

    def begin_session(self, worker_id: UUID) -> None:
        """The worker session that this process is from now on."""
        high, low = divmod(worker_id.int, 1 << 64)
        self._memory[_SESSION_HIGH], self._memory[_SESSION_LOW] = _signed(high), _signed(low)

    @contextmanager
    def thread_of(self, feed_id: int) -> Iterator[None]:
        """Note, while inside, that this thread runs code of a feed."""
        memory = self._memory
        with self._lock:
            place = next((at for at in _THREADS if not memory[at]), None)
            if place is not None:
                memory[place + 1], memory[place + 2] = threading.get_ident(), feed_id
                memory[place] = threading.get_native_id()
        try:
            yield
        finally:
            if place is not None:
                memory[place] = 0

    def _make_task(
        self, loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> Task[Any]:
        context: contextvars.Context | None = options.get("context")
        feed_id = current_feed.get() if context is None else context.get(current_feed, NO_FEED)
        noted = _Noted(coroutine, feed_id, self._memory, self.growth) if feed_id else coroutine
        return Task(noted, loop=loop, **options)

    # -- what others read ----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return int(self._memory[_PID])

    @property
    def ticks(self) -> int:
        return int(self._memory[_TICKS])

    @property
    def pulses(self) -> int:
        """Grows as long as the interpreter lock is to be had."""
        return int(self._memory[_PULSE])

    @property
    def loop_thread(self) -> int:
        """The system's id of the thread that the loop runs on; 0 before it does."""
        return int(self._memory[_LOOP_THREAD])

    @property
    def loop_ident(self) -> int:
        """Python's id of the same."""
        return int(self._memory[_LOOP_IDENT])

    @property
    def feed(self) -> int:
        """The feed whose code runs on the loop, or `NO_FEED`."""
        return int(self._memory[_FEED])

    @property
    def is_leaving(self) -> bool:
        return bool(self._memory[_LEAVING])

    @property
    def session(self) -> UUID | None:
        high, low = (self._memory[at] % (1 << 64) for at in (_SESSION_HIGH, _SESSION_LOW))
        return UUID(int=(high << 64) | low) if high or low else None

    @property
    def threads(self) -> list[FeedThread]:
        memory = self._memory
        return [FeedThread(memory[at], memory[at + 1], memory[at + 2]) for at in _THREADS if memory[at]]


class _Noted(Coroutine[Any, Any, Any]):
    """A coroutine of a feed: each of its steps is noted while it runs."""

    __slots__ = ("_coroutine", "_feed_id", "_growth", "_memory", "_send")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], feed_id: int, memory: memoryview, growth: Counter[int]
    ) -> None:
        self._coroutine, self._feed_id, self._memory, self._growth = coroutine, feed_id, memory, growth
        self._send = coroutine.send

    def send(self, value: Any) -> Any:
        memory = self._memory
        memory[_FEED] = self._feed_id
        before = resident_bytes() if memory[_MEASURING] else 0
        try:
            return self._send(value)
        finally:
            memory[_FEED] = NO_FEED
            if before and (grown := resident_bytes() - before) > 0:
                self._growth[self._feed_id] += grown

    def throw(self, *error: Any) -> Any:
        memory = self._memory
        memory[_FEED] = self._feed_id
        try:
            return self._coroutine.throw(*error)
        finally:
            memory[_FEED] = NO_FEED

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        # What debuggers and tracebacks ask of a coroutine: its name, frame and code.
        return getattr(self._coroutine, name)


def resident_bytes(pid: int | str = "self") -> int:
    """Memory that a process uses; 0 where the system does not say so."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
