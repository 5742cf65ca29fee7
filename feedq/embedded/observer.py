"""What the live view shows, gathered in a thread of its own so that a slow database never stalls the view."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from feedq.embedded.demo import Auditor, FeedTally, is_demo
from feedq.errors import Unavailable
from feedq.model import FeedView, WorkerView
from feedq.store.base import Store

INTERVAL_S = 0.5
RATE_WINDOW_S = 6.0
"""Long enough to smooth group commits and slow feeds, short enough to see a failover."""
JOIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The demo at one moment."""

    feeds: tuple[FeedView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    tallies: Mapping[str, FeedTally] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Rows a second of each feed, over the last seconds."""
    trouble: str = ""
    """Why nothing newer can be shown."""


class RateMeter:
    """Rows a second from counts at moments."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._counts: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, counts: Mapping[str, int], *, now: float) -> None:
        self._counts.append((now, counts))
        # One count older than the window stays: it is where the window begins.
        while len(self._counts) > 2 and self._counts[1][0] <= now - self._window_s:
            self._counts.popleft()

    def rates(self) -> dict[str, float]:
        if len(self._counts) < 2:
            return {}
        (began, first), (ended, last) = self._counts[0], self._counts[-1]
        lapse_s = ended - began
        return {name: (count - first.get(name, 0)) / lapse_s for name, count in last.items()}


class Observer:
    """Keeps `latest` up to date until closed."""

    def __init__(self, store: Store, auditor: Auditor) -> None:
        self.latest = Snapshot()
        self._store, self._auditor = store, auditor
        self._meter = RateMeter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.latest = self._look()
            except Unavailable as error:
                last = self.latest
                self.latest = Snapshot(last.feeds, last.workers, last.tallies, {}, trouble=str(error))
            self._closing.wait(INTERVAL_S)

    def _look(self) -> Snapshot:
        if self._auditor.refresh():
            counts = {name: tally.rows for name, tally in self._auditor.tallies.items()}
            self._meter.add(counts, now=time.monotonic())
        feeds = tuple(v for v in self._store.feeds.views() if is_demo(v.feed))
        workers = tuple(self._store.workers.views())
        return Snapshot(feeds, workers, self._auditor.tallies, self._meter.rates())
