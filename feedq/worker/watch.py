"""The watch: the one thread of a worker that looks at all the others, and at the clock.

Each thread that a worker cannot do without notes that it gets on (`feedq.telemetry.watched_threads`), and so does
the event loop. Twice a second the watch compares what they have noted. A thread that has ended by an exception,
or has not turned for `STUCK_S` although it waits for no server, is *stuck*: `/healthz` fails, no heartbeat is sent
any more, and the monitor (`feedq.worker.monitor`) ends the process. The monitor does the same when the watch is
stuck.

A thread that waits for the control database may be stuck inside the driver. A time-out could not tell that from a
slow statement, so the server is asked, on another session: if the thread's own session has had nothing to do each
time, nobody will ever answer. A server that does not answer this either is away, and no reason to end a worker.

Whatever must happen now and then, no matter what the other threads do, is a duty of the watch: telling the core of
the worker the time, keeping the monitor running, checking the memory, and ending a process that takes too long to
leave. A duty may wait for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import Event, Thread
from time import monotonic

from feedq.errors import FeedqError
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, ended_threads, watched_threads
from feedq.worker.activity import CHECK_S, Activity, Limits, LoopSample, Scheduling, StallClock
from feedq.worker.duty import Duty

LOOP = "feedq-loop"
"""The thread of the event loop. It runs code of feeds, and may stand still for ``FEEDQ_STALL_S``."""
STUCK_S = 4.0
"""How long a thread of ours may go without a turn. With less, one that works on a large answer may be taken for
stuck; with more, its feeds are silent for longer than a worker that is killed would leave them."""
SUSPECT_S = 2.0
"""How long a thread may wait for the control database before that is asked about it. Most statements take less."""
FOUND_IDLE = 3
"""So many times in a row a session must have had nothing to do: after one, the answer may be on its way."""
FIRST_BY_S = 1.0
"""By how much a thread must have stood still before the event loop did; otherwise it may wait for code on the
loop."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A thread that is stuck."""

    said: str
    ident: int = 0
    """Python's id of the thread; 0 if it has ended."""


class Watch:
    """The watch of one process. `woken`, `stuck` and `loop_stalled_s` from any thread."""

    def __init__(self, activity: Activity, limits: Limits) -> None:
        self.activity, self.limits = activity, limits
        self.woken = Event()
        """Set to have all duties done sooner."""
        self.idle_backends: Callable[[Collection[int]], Collection[int]] = lambda _: ()
        """Asks the control database which of its processes wait for their clients; may block, and raise."""
        self.loop_stalled_s = 0.0
        """The seconds that the event loop has stood still although it could have turned."""
        self._stuck: Standstill | None = None
        self._clocks: dict[WatchedThread, StallClock] = {}
        self._scheduling = Scheduling(os.getpid())
        self._waited_s = 0.0
        self._witness: Thread | None = None
        self._duties: tuple[Duty, ...] = (Duty("threads", self.look),)
        self._looked_at = inf
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="feedq-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch, if that has not begun."""
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self.woken.set()

    def add(self, duty: Duty) -> None:
        """Have this done from now on. It may wait for nothing."""
        self._duties = (*self._duties, duty)
        self.woken.set()

    @property
    def stuck(self) -> Standstill | None:
        """The thread that does not get on, if there is one."""
        if monotonic() - self._looked_at > STUCK_S:
            return Standstill(f"thread {self._thread.name} has stood still", self._thread.ident or 0)
        return self._stuck

    @property
    def stalled_s(self) -> float:
        """The seconds that the worker as a whole has stood still: the event loop, or a thread that it cannot do
        without."""
        return inf if self._stuck is not None else self.loop_stalled_s

    def look(self) -> float:
        """Judge all threads. Returns in how long to do so again."""
        self._looked_at = now = monotonic()
        self._clocks = {thread: self._clocks.get(thread) or StallClock() for thread in watched_threads()}
        if any(clock.stalled_s >= TURN_S for clock in self._clocks.values()):
            # Only now: to read it costs more than the rest.
            self._waited_s = self._scheduling.waited_s
        for thread, clock in self._clocks.items():
            clock.observe(LoopSample(now, thread.turns, self._waited_s))
        self.loop_stalled_s = max(
            (c.stalled_s for t, c in self._clocks.items() if t.name == LOOP), default=0.0
        )
        self._stuck = self._judge()
        if self._stuck is None or not self.limits.stall_s or self.activity.is_leaving:
            self.activity.note_stuck(0, "")
        else:
            self.activity.note_stuck(self._stuck.ident, self._stuck.said)
        suspects = [t for t, clock in self._clocks.items() if t.backend and clock.stalled_s >= SUSPECT_S]
        if suspects and not (self._witness and self._witness.is_alive()):
            self._witness = Thread(
                target=self._ask_about, args=(suspects,), name="feedq-witness", daemon=True
            )
            self._witness.start()
        return CHECK_S

    def _judge(self) -> Standstill | None:
        for name, why in ended_threads().items():
            return Standstill(f"thread {name} has ended by {why}")
        limit_s = max(STUCK_S, self.loop_stalled_s + FIRST_BY_S)
        for thread, clock in self._clocks.items():
            if thread.name == LOOP or clock.stalled_s < limit_s:
                continue
            said = f"thread {thread.name} has stood still for {clock.stalled_s:.1f} s"
            if not thread.is_asking:
                return Standstill(said, thread.ident or 0)
            if thread.found_idle >= FOUND_IDLE:
                return Standstill(f"{said} inside the driver of the control database", thread.ident or 0)
        return None

    def _ask_about(self, suspects: Sequence[WatchedThread]) -> None:
        """Ask the control database whether it is being asked anything by these threads."""
        asked = [(thread, thread.turns, thread.backend) for thread in suspects]
        idle: Collection[int] = ()
        with suppress(FeedqError):  # away: they wait for the same
            idle = self.idle_backends([backend for _, _, backend in asked])
        for thread, turns, backend in asked:
            if thread.turns == turns:
                thread.found_idle = thread.found_idle + 1 if backend in idle else 0

    def _run(self) -> None:
        while not self._is_stopping:
            self.activity.pulse()
            for duty in self._duties:
                duty.attend()
            if self.woken.wait(min(CHECK_S, *(duty.pause_s() for duty in self._duties))):
                self.woken.clear()
                for duty in self._duties:
                    duty.wake()
