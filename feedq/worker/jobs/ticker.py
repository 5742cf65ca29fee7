"""The ticker: every worker has one, and none of them matters.

It fires what is due, and does now and then what somebody has to do: end runs of workers that are gone, ask how
many others run jobs, delete old history. All of it is decided and bounded in the database; that many do it at once
costs a scan, and that one of them dies costs nothing.

One scan of one worker is enough for all; many only mean that no particular one must live. So the more workers
there are, the seldomer each scans, and a fleet of any size asks the database about as much.

A scan that fired something tells the slots of this worker at once; the database notifies workers with room. A lost
notification costs time only: workers find the runs by their own scans, and the claim judges everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from threading import Event, Thread
from time import monotonic

from feedq.control.store.jobs.runs import RunStore
from feedq.errors import Unavailable
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.metrics import RUNS_FIRED

FIRED_PER_SCAN = 500
"""Schedules that one scan fires. More of them make its transaction longer, and others have to wait for its
rows."""
SCANS_IN_A_ROW = 20
"""The number of scans in a row while there is more to fire; then the other duties have their turn."""
EXPIRED_PER_SCAN = 1_000
TRIM_INTERVAL_S = 60.0
TRIM_AGAIN_S = 1.0
"""The pause before more is deleted, when there was more than one transaction deletes."""
TRIMMED_PER_SCAN = 5_000
AWAY_S = 0.5
WOKEN_S = 0.01
"""The least time between two scans for being woken: a worker is notified of many things that are none of its
own."""

POLL_S = 0.5
"""How often a worker of a small fleet scans for what nobody told it of."""
IDLE_POLL_S = 5.0
"""The same while there is nothing to find: no schedule with a tick to come, no run that waits or runs."""
POLL_MAX_S = 10.0
POLLS_PER_S = 50
"""The scans of one kind a second, of all workers together, beyond 25 of them: one every 20 ms."""
SCANNERS = 20
"""The number of workers, about, that scan at the moment at which the next tick falls due; the others do on
their own time. None of them must: that all happen to be late is as likely as a hash that collides."""
STAGGER_S = 0.01
"""The time over which they are spread, so that not all scan at once."""

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class Peers:
    """The workers that run jobs, this one among them, as they were last counted."""

    workers: int = 1
    """How many there are, at least one."""
    slots: int = 0
    """The job slots that they have together."""
    is_idle: bool = False
    """Whether there was nothing to fire and nothing to run at the last scan of any worker."""

    @property
    def poll_s(self) -> float:
        return min(max(IDLE_POLL_S if self.is_idle else POLL_S, self.workers / POLLS_PER_S), POLL_MAX_S)

    def next_scan_s(self, next_in_s: float | None, *, rng: Random) -> float:
        """Return in how long to scan for what is due, given when the next tick or run is."""
        # Not all at the same time, as workers that were started together would for ever.
        at_most_s = self.poll_s * rng.uniform(0.75, 1.0)
        if next_in_s is None or next_in_s >= at_most_s:
            return at_most_s
        if rng.random() * self.workers > SCANNERS:
            return at_most_s
        return min(max(next_in_s, 0.0) + rng.random() * STAGGER_S, at_most_s)


@dataclass(slots=True)
class _Duty:
    """A duty is something to do at intervals."""

    do: Callable[[], float]
    """Does it, and says when to do it again."""
    at: float = float("-inf")


class Ticker:
    """Fires due ticks: the part of one worker in that. `peers` may be read from any thread."""

    def __init__(
        self,
        runs: RunStore,
        *,
        tell_us: Callable[[], None],
        retention_days: int,
        rng: Random | None = None,
    ) -> None:
        """``tell_us`` hears of what was fired here."""
        self._runs, self._tell_us, self._retention_days = runs, tell_us, retention_days
        self._rng = rng or Random()
        self.peers = Peers()
        self._stopping = Event()
        self._woken = Event()
        self._fired_at = float("-inf")
        """When the last scan for due ticks was answered."""
        self._scan_duty = _Duty(self._scan_workers)
        trimming_at = monotonic() + self._rng.uniform(0.1, 1.0) * TRIM_INTERVAL_S
        self._duties = [_Duty(self._expire), _Duty(self._trim, trimming_at)]
        self._thread = Thread(target=self._run, name="feedq-ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Scan again now: a schedule may have been declared whose tick comes sooner than the last scan knew. Any
        thread; returns at once."""
        self._woken.set()

    def stop(self, *, timeout_s: float) -> None:
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def fire_due(self) -> float:
        """Fire what is due and do what is to be done by now. Returns for how long to sleep. Raises
        `Unavailable`."""
        # First who is there: it says how much of what is fired is ours.
        self._do_if_due(self._scan_duty)
        next_in_s = self._fire()
        self._do_if_due(*self._duties)
        # Since that answer the duties have taken their time.
        return max(0.0, self._fired_at + self.peers.next_scan_s(next_in_s, rng=self._rng) - monotonic())

    # -- the duties ----------------------------------------------------------------------------------

    def _fire(self) -> float | None:
        for _ in range(SCANS_IN_A_ROW):
            fired = self._runs.fire_due(limit=FIRED_PER_SCAN)
            self._fired_at = monotonic()
            if fired.is_idle != self.peers.is_idle:
                self.peers = replace(self.peers, is_idle=fired.is_idle)
            if fired.runs:
                RUNS_FIRED.inc(fired.runs)
                self._tell_us()
            if not fired.more or self._stopping.is_set():
                return fired.next_in_s
        return 0.0

    def _do_if_due(self, *duties: _Duty) -> None:
        for duty in duties:
            if monotonic() >= duty.at:
                # Spread over the fleet: workers that were started together do not meet here for ever.
                duty.at = monotonic() + duty.do() * self._rng.uniform(0.75, 1.0)

    def _scan_workers(self) -> float:
        workers, slots = self._runs.workers()
        self.peers = Peers(max(workers, 1), slots, self.peers.is_idle)
        return self.peers.poll_s

    def _expire(self) -> float:
        expired = self._runs.expire(limit=EXPIRED_PER_SCAN)
        return POLL_S if expired >= EXPIRED_PER_SCAN else self.peers.poll_s

    def _trim(self) -> float:
        trimmed = self._runs.trim(older_than_days=self._retention_days, limit=TRIMMED_PER_SCAN)
        if trimmed >= TRIMMED_PER_SCAN:
            return TRIM_AGAIN_S
        return TRIM_INTERVAL_S * max(1, self.peers.workers / 10)

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        is_away = False
        while not self._stopping.is_set():
            try:
                pause_s = self.fire_due()
                is_away = False
            except Unavailable as error:
                if not is_away:
                    logger.warning(database_event(error), where="ticker", error=str(error))
                is_away, pause_s = True, AWAY_S * self._rng.uniform(0.5, 1.0)
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="ticker")
                pause_s = AWAY_S
            if self._woken.wait(pause_s):
                self._stopping.wait(WOKEN_S)
                self._woken.clear()
