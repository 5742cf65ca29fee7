"""The ticker: every worker has one, and none of them matters.

It fires what is due, and does now and then what somebody has to do: end runs of workers that are gone, ask who
else runs jobs, delete old history. All of it is decided and bounded in the database; that many do it at once
costs a scan, and that one of them dies costs nothing.

One duty is its own worker's alone: runs of that worker whose time has been up for long, and of which nobody in the
process knows any more (their end could not be stored, for example). No other worker may end them.

A scan that fired something says so at once: to the slots of this worker, where its own segments are concerned,
and to other workers by a notification of the database. A lost notification costs time only: those workers find the
runs by their own scans, and the claim judges everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random
from threading import Event, Thread
from time import monotonic

from feedq.control.store.jobs.runs import RunStore
from feedq.core.schedule.model import Finish, RunState
from feedq.errors import Unavailable
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.metrics import RUNS_FIRED
from feedq.worker.jobs.share import POLL_S, Identity, Share

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
OVERDUE_INTERVAL_S = 10.0
OVERDUE_S = 30.0
"""The time past its time-out, and after an outage of the database, for which the end of a run of this worker is
still left to whoever runs it here. Their own word comes within a second; this is for those that cannot say it
any more."""
AWAY_S = 0.5
WOKEN_S = 0.01
"""The least time between two scans for being woken: a worker is notified of many things that are none of its
own."""

TIME_IS_UP = "still running when its time was up"

logger = log(__name__)


@dataclass(slots=True)
class _Duty:
    """A duty is something to do at intervals."""

    do: Callable[[], float]
    """Does it, and says when to do it again."""
    at: float = float("-inf")


class Ticker:
    """Fires due ticks: the part of one worker in that. `share` may be read from any thread."""

    def __init__(
        self,
        runs: RunStore,
        *,
        identity: Identity,
        tell_us: Callable[[], None],
        retention_days: int,
        is_known: Callable[[int], bool],
        rng: Random | None = None,
    ) -> None:
        """``tell_us`` hears of runs of our own segments; ``is_known`` says whether somebody in this process will
        tell how a run ends."""
        self._runs, self._identity = runs, identity
        self._tell_us, self._is_known = tell_us, is_known
        self._retention_days = retention_days
        self._served_since = monotonic()
        """Since when the database has answered without a break."""
        self._rng = rng or Random()
        self.share = Share()
        self._stopping = Event()
        self._woken = Event()
        self._fired_at = float("-inf")
        """When the last scan for due ticks was answered."""
        self._scan_duty = _Duty(self._scan_workers)
        trimming_at = monotonic() + self._rng.uniform(0.1, 1.0) * TRIM_INTERVAL_S
        self._duties = [_Duty(self._expire), _Duty(self._trim, trimming_at), _Duty(self._end_overdue)]
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
        # First who is there: what is fired is told to them.
        self._do_if_due(self._scan_duty)
        next_in_s = self._fire()
        self._do_if_due(*self._duties)
        # Since that answer the duties have taken their time.
        return max(0.0, self._fired_at + self.share.next_scan_s(next_in_s, rng=self._rng) - monotonic())

    # -- the duties ----------------------------------------------------------------------------------

    def _fire(self) -> float | None:
        for _ in range(SCANS_IN_A_ROW):
            fired = self._runs.fire_due(limit=FIRED_PER_SCAN)
            self._fired_at = monotonic()
            if fired.is_idle != self.share.is_idle:
                self.share = replace(self.share, is_idle=fired.is_idle)
            if fired.segments:
                RUNS_FIRED.inc(len(fired.segments))
                self._tell(fired.segments)
            if not fired.more or self._stopping.is_set():
                return fired.next_in_s
        return 0.0

    def _tell(self, segments: Collection[int]) -> None:
        owners, me = self.share.owners_of(segments), self._identity()
        if me in owners:
            self._tell_us()
        if others := owners - {me}:
            self._runs.notify(sorted(others))

    def _do_if_due(self, *duties: _Duty) -> None:
        for duty in duties:
            if monotonic() >= duty.at:
                # Spread over the fleet: workers that were started together do not meet here for ever.
                duty.at = monotonic() + duty.do() * self._rng.uniform(0.75, 1.0)

    def _scan_workers(self) -> float:
        self.share = Share.of(self._runs.workers(), self._identity(), is_idle=self.share.is_idle)
        return self.share.poll_s

    def _expire(self) -> float:
        expired = self._runs.expire(limit=EXPIRED_PER_SCAN)
        return POLL_S if expired >= EXPIRED_PER_SCAN else self.share.poll_s

    def _trim(self) -> float:
        trimmed = self._runs.trim(older_than_days=self._retention_days, limit=TRIMMED_PER_SCAN)
        if trimmed >= TRIMMED_PER_SCAN:
            return TRIM_AGAIN_S
        return TRIM_INTERVAL_S * max(1, self.share.workers / 10)

    def _end_overdue(self) -> float:
        session_id = self._identity()
        if session_id is not None and monotonic() - self._served_since >= OVERDUE_S:
            overdue = self._runs.overdue(session_id, by_s=OVERDUE_S)
            unknown = {run_id: fence for run_id, fence in overdue.items() if not self._is_known(run_id)}
            if unknown:
                logger.warning(LogEvent.RUN_TIMED_OUT, runs=sorted(unknown))
                ends = [Finish(i, fence, RunState.TIMED_OUT, TIME_IS_UP) for i, fence in unknown.items()]
                self._runs.finish(session_id, ends)
        return OVERDUE_INTERVAL_S

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        is_away = False
        while not self._stopping.is_set():
            try:
                pause_s = self.fire_due()
                is_away = False
            except Unavailable as error:
                self._served_since = monotonic()
                if not is_away:
                    logger.warning(database_event(error), where="ticker", error=str(error))
                is_away, pause_s = True, AWAY_S * self._rng.uniform(0.5, 1.0)
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="ticker")
                pause_s = AWAY_S
            if self._woken.wait(pause_s):
                self._stopping.wait(WOKEN_S)
                self._woken.clear()
