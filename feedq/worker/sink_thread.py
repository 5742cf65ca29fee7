"""A thread that works on one sink with a session of its own, and whether the worker reaches that sink.

Three of them work on a sink: `feedq.worker.writer` has two, `feedq.worker.fencer` one. A `SinkThread` begins with
the first piece of work and ends when there has been none for a while; then it gives its session back, too. An
`Outage` remembers whether the sink is reached, for everybody in the worker who uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, Lock
from time import monotonic
from typing import NamedTuple

from feedq.errors import SinkUnavailable
from feedq.sinks.base import Sink
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.watched_threads import WatchedThread, asking, note_turn

NO_ANSWER_S = 8.0
"""A sink that has not answered for so long counts as away: longer than any statement of a group may take."""
IDLE_S = 5.0
"""A thread with nothing to do for so long ends, and its session with it."""

logger = log(__name__)


class Down(NamedTuple):
    """A sink that cannot be reached: since when, on the monotonic clock, and why."""

    since: float
    error: str


class Outage:
    """Remembers whether a worker can reach a sink. Shared by the threads that use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed: Down | None = None
        self.asked_at: float | None = None
        """When something was asked of the sink that is known to take little time, and has not been answered."""
        self.written_at = float("-inf")

    @property
    def down(self) -> Down | None:
        asked_at = self.asked_at
        if self._failed is None and asked_at is not None and monotonic() - asked_at > NO_ANSWER_S:
            return Down(asked_at, f"sink {self._name!r}: no answer for {NO_ANSWER_S:g} s")
        return self._failed

    def failed(self, error: Exception, *, since: float) -> None:
        first = self._failed
        if first is None:
            logger.warning(LogEvent.SINK_AWAY, sink=self._name, error=str(error))
        self._failed = Down(since if first is None else first.since, str(error))

    def over(self, *, wrote: bool) -> None:
        if self._failed is not None:
            away_s = round(monotonic() - self._failed.since, 1)
            logger.info(LogEvent.SINK_BACK, sink=self._name, away_s=away_s)
            self._failed = None
        if wrote:
            self.written_at = monotonic()


class SinkThread(ABC):
    """A thread with a session of its own in one sink. What begins with an underscore is for that thread."""

    def __init__(
        self, role: str, name: str, make_sink: Callable[[], Sink], outage: Outage, *, lock: Lock | None = None
    ) -> None:
        """``lock`` guards its work; one of its own if none is given."""
        self._name, self._thread_name = name, f"feedq-{role}-{name}"
        self._make_sink, self._outage = make_sink, outage
        self.changed = Condition(lock)
        self._lock: AbstractContextManager[object] = lock or self.changed
        self._stopping = self._must_renew = False
        self._sink: Sink | None = None
        self._thread: WatchedThread | None = None
        """Runs while there is something to do, and for a moment more."""
        self._idle_at = 0.0

    def begin(self) -> None:
        """See to it that the thread runs; with the lock held. Raises `RuntimeError` when none can be started."""
        if self._thread is None and not self._stopping:
            thread = WatchedThread(self._run, name=self._thread_name)
            thread.start()
            self._thread = thread

    def renew(self) -> None:
        """Use a new session from now on: the worker has registered again, under a new id."""
        self._must_renew = True

    def stop(self, *, timeout_s: float) -> None:
        """End the thread, and wait for that as long as ``timeout_s`` says. What it has not done is dropped."""
        with self._lock:
            self._stopping = True
            self.changed.notify()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the thread ----------------------------------------------------------------------------------

    @abstractmethod
    def _turn(self) -> None:
        """Do some of the work, or wait for it for a moment. Raises nothing."""

    @property
    @abstractmethod
    def _has_work(self) -> bool:
        """Whether there is anything to do, now or soon; asked with the lock held."""

    def _run(self) -> None:
        self._idle_at = monotonic() + IDLE_S
        while not self._ends():
            note_turn()
            self._turn()
        if self._stopping:
            self._close()

    def _ends(self) -> bool:
        """Whether the thread is to end. When there is work again, another one begins."""
        now = monotonic()
        with self._lock:
            if self._has_work:
                self._idle_at = now + IDLE_S
            is_idle = not self._has_work and now >= self._idle_at
        if not is_idle:
            return self._stopping
        self._close()  # before another thread could use it
        with self._lock:
            if not self._has_work:
                self._thread = None
            return self._stopping or self._thread is None

    @contextmanager
    def _asking(self, *, briefly: bool = False, wrote: bool = True) -> Iterator[Sink]:
        """Ask the sink, and note whether it answers. ``briefly``: what is asked is known to take little time."""
        since = monotonic()
        if briefly:
            self._outage.asked_at = since
        try:
            with asking():
                yield self._opened()
        except SinkUnavailable as error:
            self._outage.failed(error, since=since)
            raise
        finally:
            if briefly:
                self._outage.asked_at = None
        self._outage.over(wrote=wrote)

    def _opened(self) -> Sink:
        if self._must_renew:
            self._must_renew = False
            self._close()
            self._sink = None
        if self._sink is None:
            self._sink = self._make_sink()
        return self._sink

    def _close(self) -> None:
        """Give the session back; the next use of the sink opens another."""
        if self._sink is not None:
            self._sink.close()
