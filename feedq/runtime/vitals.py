"""What a worker says of itself with each heartbeat: CPU, memory, and how late its loop runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from time import monotonic

import psutil

from feedq.model import Load
from feedq.telemetry import FEEDS, LOOP_LAG_SECONDS

PROBE_S = 0.5
"""Interval of the timer whose lateness is the lag of the loop."""


class Vitals:
    """Measures one process and its event loop. `start` on the loop, `load` from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = psutil.Process()
        self._cpu = (monotonic(), sum(self._process.cpu_times()[:2]))
        self._lag_s = 0.0
        self._due_at = 0.0

    def start(self) -> None:
        self._due_at = self._loop.time() + PROBE_S
        self._loop.call_at(self._due_at, self._probe)

    def _probe(self) -> None:
        self._lag_s = max(0.0, self._loop.time() - self._due_at)
        LOOP_LAG_SECONDS.set(self._lag_s)
        self.start()

    def load(self, *, feeds: int) -> Load:
        at, used = monotonic(), sum(self._process.cpu_times()[:2])
        before_at, before_used = self._cpu
        self._cpu = (at, used)
        cpu = (used - before_used) / (at - before_at) if at > before_at else 0.0
        return Load(
            feeds=feeds,
            cpu=round(cpu, 3),
            rss=self._process.memory_info().rss,
            loop_lag_s=round(self.lag_s, 4),
        )

    @staticmethod
    def show_feeds(statuses: Iterable[str]) -> None:
        """The status of each feed that runs here, for the metrics."""
        counts = Counter(statuses)
        for status in ("streaming", "connecting", "stalled"):
            FEEDS.labels(status).set(counts[status])

    @property
    def lag_s(self) -> float:
        """How late the loop last ran a timer. One that is stuck runs none: what it is late already counts."""
        overdue_s = max(0.0, self._loop.time() - self._due_at) if self._due_at else 0.0
        return max(self._lag_s, overdue_s)
