"""Measures what a worker says of itself with each heartbeat: CPU, memory, how late its loop runs, and what it
lands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic, process_time

from feedq.core.lease import smoothed
from feedq.core.model import Load, Progress
from feedq.worker.activity import resident_bytes

PROBE_S = 0.5
"""Interval of the timer whose lateness is the lag of the loop."""


class LoadMeter:
    """Measures one process and its event loop. `load` from any thread, the others on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cpu = (monotonic(), process_time())
        self._lag_s = 0.0
        self._due_at = 0.0
        self._landed = self._landed_before = (0, 0)
        self._rows_per_s = self._bytes_per_s = 0.0

    def start(self) -> None:
        self._due_at = self._loop.time() + PROBE_S
        self._loop.call_at(self._due_at, self._probe)

    def _probe(self) -> None:
        self._lag_s = max(0.0, self._loop.time() - self._due_at)
        self.start()

    def count(self, progress: Iterable[Progress]) -> None:
        """Add what has landed since the last call."""
        rows, size = self._landed
        for one in progress:
            rows += one.records
            size += one.bytes
        # One assignment: `load` reads both on another thread.
        self._landed = (rows, size)

    def load(self, *, feeds: int) -> Load:
        at, used = monotonic(), process_time()
        before_at, before_used = self._cpu
        self._cpu = (at, used)
        elapsed_s = at - before_at
        cpu = (used - before_used) / elapsed_s if elapsed_s > 0 else 0.0
        (rows, size), (rows_before, size_before) = self._landed, self._landed_before
        self._landed_before = (rows, size)
        self._rows_per_s = smoothed(
            self._rows_per_s, count=rows - rows_before, elapsed_s=elapsed_s, is_first=False
        )
        self._bytes_per_s = smoothed(
            self._bytes_per_s, count=size - size_before, elapsed_s=elapsed_s, is_first=False
        )
        return Load(
            feeds=feeds,
            cpu=round(cpu, 3),
            rss=resident_bytes(),
            loop_lag_s=round(self.lag_s, 4),
            rows_per_s=round(self._rows_per_s, 3),
            bytes_per_s=round(self._bytes_per_s, 1),
        )

    @property
    def lag_s(self) -> float:
        """The seconds by which the loop last ran a timer late. One that is stuck runs none: what it is late
        already counts."""
        overdue_s = max(0.0, self._loop.time() - self._due_at) if self._due_at else 0.0
        return max(self._lag_s, overdue_s)
