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
from time import monotonic

from feedq.control.store.jobs.runs import RunStore
from feedq.telemetry.metrics import RUNS_FIRED
from feedq.worker.duty import Duty

FIRED_PER_SCAN = 500
"""Schedules that one scan fires. More of them make its transaction longer, and others have to wait for its
rows; so do the claims of this worker."""
EXPIRED_PER_SCAN = 1_000
TRIM_INTERVAL_S = 60.0
TRIM_AGAIN_S = 1.0
"""The pause before more is deleted, when there was more than one transaction deletes."""
TRIMMED_PER_SCAN = 5_000
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


class Ticker:
    """Fires due ticks: one worker's part of them. `peers` may be read from any thread."""

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
        self.firing = Duty("ticker", self._fire, woken_s=WOKEN_S)
        trimming_at = monotonic() + self._rng.uniform(0.1, 1.0) * TRIM_INTERVAL_S
        self.duties = (
            # First who is there: it says how much of what is fired is ours.
            Duty("workers", self._count_workers),
            self.firing,
            Duty("expiry", self._expire),
            Duty("trimming", self._trim, at=trimming_at),
        )

    def _fire(self) -> float:
        fired = self._runs.fire_due(limit=FIRED_PER_SCAN)
        if fired.is_idle != self.peers.is_idle:
            self.peers = replace(self.peers, is_idle=fired.is_idle)
        if fired.runs:
            RUNS_FIRED.inc(fired.runs)
            self._tell_us()
        return 0.0 if fired.more else self.peers.next_scan_s(fired.next_in_s, rng=self._rng)

    def _count_workers(self) -> float:
        workers, slots = self._runs.workers()
        self.peers = Peers(max(workers, 1), slots, self.peers.is_idle)
        return self._spread(self.peers.poll_s)

    def _expire(self) -> float:
        expired = self._runs.expire(limit=EXPIRED_PER_SCAN)
        return self._spread(POLL_S if expired >= EXPIRED_PER_SCAN else self.peers.poll_s)

    def _trim(self) -> float:
        trimmed = self._runs.trim(older_than_days=self._retention_days, limit=TRIMMED_PER_SCAN)
        if trimmed >= TRIMMED_PER_SCAN:
            return TRIM_AGAIN_S
        return self._spread(TRIM_INTERVAL_S * max(1, self.peers.workers / 10))

    def _spread(self, pause_s: float) -> float:
        """Workers that were started together do not meet here for ever."""
        return pause_s * self._rng.uniform(0.75, 1.0)
