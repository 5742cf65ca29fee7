"""Notes what a process is doing at this moment, where others can read it even when the process cannot speak.

A worker notes in a small shared file how often its event loop has turned and which feed's code is running: on the
loop, and on each thread of a blocking connector. Its monitor (`feedq.worker.monitor`) reads this when the loop
stands still, and after the process has died, by whatever: the notes are still there.

`StallClock` tells an event loop that stands still from a process that gets no processor. A loop that has not
turned for five seconds may be stuck in somebody's code, which will not end by itself; or the machine may be so
busy, or have been paused, that nothing in the process could run. Only the first is a reason to end it. So the
time that counts is that during which the process could have run and the loop did not turn: what its threads
waited for a processor is taken off, and so is whatever passed while it was stopped, or while the judge itself
did not run.

Writing is a store into memory: no lock, no system call. Numbers are 64 bits and aligned, so a reader sees the old
one or the new one.
"""

from __future__ import annotations

import contextvars
import fcntl
import mmap
import os
import threading
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from ctypes import Structure, c_bool, c_char, c_int64, c_ubyte, sizeof
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

THREADS_MAX: Final = 512
"""Threads of blocking connectors that can be noted; what further ones do is not known."""
STUCK_BYTES_MAX: Final = 200

NO_FEED: Final = 0
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

current_feed: Final = contextvars.ContextVar[int]("feedq_feed", default=NO_FEED)
"""The id of the feed that this code runs for; inherited by the tasks that it starts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits at which a worker is ended. 0 is never."""

    stall_s: float
    memory_bytes: int


class FeedThread(NamedTuple):
    """A thread that runs the code of a feed."""

    thread: int
    """The system's id of it."""
    ident: int
    """Python's id of it."""
    feed_id: int


class Activity(Structure):
    """The notes of one process, as they lie in its file. Written by the process itself, readable by any."""

    _fields_ = [
        *((name, c_int64) for name in ("pid", "ticks", "pulses", "loop_thread", "loop_ident", "feed")),
        ("is_leaving", c_bool),
        ("_session", c_ubyte * 16),
        ("_is_measuring", c_bool),
        ("_step_bytes", c_int64),
        ("_grower", c_int64 * 3),
        ("_stuck_ident", c_int64),
        ("_stuck", c_char * STUCK_BYTES_MAX),
        ("_threads", c_int64 * 3 * THREADS_MAX),
    ]
    pid: int
    ticks: int
    pulses: int
    """Grows as long as the interpreter lock is to be had, and the watch is not stuck."""
    loop_thread: int
    """The system's id of the thread that the loop runs on; 0 before it does."""
    loop_ident: int
    """Python's id of the same."""
    feed: int
    """The feed whose code runs on the loop, or `NO_FEED`."""
    is_leaving: bool
    _is_measuring: bool
    _step_bytes: int
    _stuck_ident: int
    _stuck: bytes

    growth: Counter[int]
    """Bytes that were added while the code of a feed ran on the loop, by feed; only while that is measured."""
    _lock: threading.Lock

    @classmethod
    def create(cls, path: Path) -> Activity:
        """Make a new file, readable by its owner only, and locked for as long as this process lives.

        Raises `OSError`.
        """
        # Not closed: the lock goes with the process, and so tells whether it lives.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        activity = cls.shared(descriptor)
        activity.pid = os.getpid()
        return activity

    @classmethod
    def shared(cls, descriptor: int) -> Activity:
        """The notes in this file, which may still be empty. Raises `OSError`."""
        os.ftruncate(descriptor, sizeof(cls))
        return cls._on(mmap.mmap(descriptor, sizeof(cls)))

    @classmethod
    def read(cls, path: Path) -> Activity:
        """The notes of another process. Raises `OSError`, and `ValueError` when the file is none of these."""
        with path.open("r+b") as file:
            return cls._on(mmap.mmap(file.fileno(), sizeof(cls)))

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
        return cls._on(mmap.mmap(-1, sizeof(cls)))

    @classmethod
    def _on(cls, file: mmap.mmap) -> Activity:
        activity = cls.from_buffer(file)
        activity.growth, activity._lock = Counter(), threading.Lock()
        return activity

    # -- what the process notes ----------------------------------------------------------------------

    def watch_loop(self, loop: AbstractEventLoop) -> None:
        """Note the tasks of feeds from now on as they run. Called on the loop's thread."""
        # Not at the top: the monitor reads notes, and is to be small.
        from asyncio import Task

        def make_task(
            loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
        ) -> Task[Any]:
            context: contextvars.Context | None = options.get("context")
            feed_id = current_feed.get() if context is None else context.get(current_feed, NO_FEED)
            return Task(_Noted(coroutine, feed_id, self) if feed_id else coroutine, loop=loop, **options)

        self.loop_thread, self.loop_ident = threading.get_native_id(), threading.get_ident()
        loop.set_task_factory(make_task)  # type: ignore[arg-type]  # a task of a coroutine, never of a generator

    def tick(self) -> None:
        """The loop has turned."""
        self.ticks += 1

    def pulse(self) -> None:
        """The watch has turned: a thread other than the loop's got the interpreter."""
        self.pulses += 1

    def measure_growth(self, used_bytes: int) -> None:
        """Measure from now on by how much the process grows with each step of a feed, which costs microseconds a
        step. The step under way, if there is one, began with about ``used_bytes``."""
        if not self._is_measuring:
            self._is_measuring, self._step_bytes = True, used_bytes

    def stop_measuring(self) -> None:
        self._is_measuring = False
        self._grower[0] = NO_FEED
        self.growth.clear()

    def note_grower(self, feed_id: int, grown: int, total: int) -> None:
        """The process grew most while the code of this feed ran: by so many of ``total`` bytes."""
        self._grower[:] = feed_id, grown, total

    def leave(self) -> None:
        """The process is about to end in good order."""
        self.is_leaving = True

    def note_stuck(self, ident: int, said: str) -> None:
        """A thread of the worker's own does not get on: the process is to be ended. With nothing ``said``, all
        get on again."""
        if not (said and self._stuck):
            self._stuck_ident = ident
            self._stuck = said.encode()[:STUCK_BYTES_MAX]  # last: whoever sees it finds the rest

    def begin_session(self, worker_id: UUID) -> None:
        """The worker session that this process is from now on."""
        self._session[:] = worker_id.bytes

    @contextmanager
    def thread_of(self, feed_id: int) -> Iterator[None]:
        """Note, while inside, that this thread runs code of a feed."""
        with self._lock:
            place = next((place for place in self._threads if not place[0]), None)
            if place is not None:
                place[:] = threading.get_native_id(), threading.get_ident(), feed_id
        try:
            yield
        finally:
            if place is not None:
                place[0] = 0

    # -- what others read ----------------------------------------------------------------------------

    @property
    def stuck(self) -> tuple[int, str] | None:
        """The thread of the worker's own that does not get on, and what there is to say of it."""
        said = self._stuck.decode(errors="replace")
        return (self._stuck_ident, said) if said else None

    @property
    def step_bytes(self) -> int:
        """What the process used when the step of a feed began that is under way; 0 if that is not known."""
        return self._step_bytes if self.feed else 0

    @property
    def grower(self) -> tuple[int, int, int] | None:
        """The feed that the process grew most with, by how many bytes, and by how many in all; None when that was
        not measured."""
        feed_id, grown, total = self._grower
        return (feed_id, grown, total) if feed_id else None

    @property
    def session(self) -> UUID | None:
        return UUID(bytes=bytes(self._session)) if any(self._session) else None

    @property
    def threads(self) -> list[FeedThread]:
        return [FeedThread(*place) for place in self._threads if place[0]]


class _Noted(Coroutine[Any, Any, Any]):
    """A coroutine of a feed: each of its steps is noted while it runs."""

    __slots__ = ("_activity", "_coroutine", "_feed_id")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], feed_id: int, activity: Activity) -> None:
        self._coroutine, self._feed_id, self._activity = coroutine, feed_id, activity

    def send(self, value: Any) -> Any:
        activity = self._activity
        activity.feed = self._feed_id
        if activity._is_measuring:
            activity._step_bytes = resident_bytes()
        try:
            return self._coroutine.send(value)
        finally:
            activity.feed = NO_FEED
            if before := activity._step_bytes:
                activity._step_bytes = 0
                if (grown := resident_bytes() - before) > 0:
                    activity.growth[self._feed_id] += grown

    def throw(self, *error: Any) -> Any:
        self._activity.feed = self._feed_id
        try:
            return self._coroutine.throw(*error)
        finally:
            self._activity.feed = NO_FEED

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


# -- whether a loop stands still ----------------------------------------------------------------------

CHECK_S = 0.5
"""How often a loop is checked; it notes that it turns twice as often."""
LAPSE_MAX_S = 2 * CHECK_S
"""What counts of the time between two checks: where it was longer, the judge had no processor either."""


@dataclass(frozen=True, slots=True)
class LoopSample:
    """A sample of what a process did up to one moment."""

    at: float
    """The moment of the sample, on the monotonic clock."""
    ticks: int
    waited_s: float = 0.0
    """The time that its threads have waited for a processor in all, as of the one that waited longest."""
    stopped: bool = False
    """Whether the process was stopped by a signal or a debugger."""


class StallClock:
    """Counts how long a loop has stood still although it could have run. Pure: fed with samples."""

    def __init__(self) -> None:
        self._last: LoopSample | None = None
        self.stalled_s = 0.0

    def observe(self, seen: LoopSample) -> float:
        """Add a sample, and return the seconds of standing still."""
        last, self._last = self._last, seen
        if last is None or seen.ticks != last.ticks:
            self.stalled_s = 0.0
        elif not seen.stopped and not last.stopped:
            lapse_s = min(seen.at - last.at, LAPSE_MAX_S)
            self.stalled_s += max(0.0, lapse_s - max(0.0, seen.waited_s - last.waited_s))
        return self.stalled_s


class Scheduling:
    """Reads what the kernel says of the threads of a process; where it says nothing, nothing is taken off."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")
        self._waited: dict[str, int] = {}
        self._waited_s = 0.0
        self._ticks = -1

    @property
    def is_stopped(self) -> bool:
        with suppress(OSError):
            # After the name, which may hold spaces and brackets.
            return (self._process / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def sample(self, ticks: int) -> LoopSample:
        """Take a sample of the process, whose loop has turned so often."""
        if ticks != self._ticks:
            # It turns, and the rest does not matter: to read it costs more than the sample.
            self._ticks = ticks
            self._waited.clear()
            return LoopSample(monotonic(), ticks, self._waited_s)
        return LoopSample(monotonic(), ticks, self.waited_s, self.is_stopped)

    @property
    def waited_s(self) -> float:
        """Adds up, from call to call, what that thread waited for a processor which waited longest in between."""
        longest = 0
        with suppress(OSError):
            for thread in os.listdir(self._process / "task"):
                with suppress(OSError, ValueError, IndexError):
                    waited = int((self._process / "task" / thread / "schedstat").read_text().split()[1])
                    longest = max(longest, waited - self._waited.get(thread, waited))
                    self._waited[thread] = waited
        self._waited_s += longest / 1e9
        return self._waited_s


def processor_s(pid: int, thread: int) -> float:
    """Processor time that a thread has used."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return 0.0
