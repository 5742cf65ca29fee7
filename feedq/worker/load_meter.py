"""Measures what a worker says of itself with each heartbeat: CPU, memory, how late its loop runs, and what it
lands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import exp
from time import monotonic

import psutil

from feedq.core.model import Load, Progress

PROBE_S = 0.5
"""Interval of the timer whose lateness is the lag of the loop."""
SMOOTHED_OVER_S = 30.0
"""What a worker lands is averaged over about this long: placement is not to follow each burst of a feed."""


class SmoothedRate:
    """A rate of growth, smoothed: what was longer ago counts exponentially less. Pure."""

    __slots__ = ("_at", "_per_s", "_total")

    def __init__(self, *, now: float) -> None:
        self._at, self._total, self._per_s = now, 0, 0.0

    def per_s(self, total: int, *, now: float) -> float:
        """The rate, when it has grown to this by now. Any interval between two calls will do."""
        elapsed_s = now - self._at
        if elapsed_s > 0:
            fresh = (total - self._total) / elapsed_s
            self._per_s += (fresh - self._per_s) * (1 - exp(-elapsed_s / SMOOTHED_OVER_S))
            self._at, self._total = now, total
        return self._per_s


class LoadMeter:
    """Measures one process and its event loop. `load` from any thread, the others on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = psutil.Process()
        self._cpu = (monotonic(), sum(self._process.cpu_times()[:2]))
        self._lag_s = 0.0
        self._due_at = 0.0
        self._landed = (0, 0)
        self._rows, self._bytes = SmoothedRate(now=monotonic()), SmoothedRate(now=monotonic())

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
        at, used = monotonic(), sum(self._process.cpu_times()[:2])
        before_at, before_used = self._cpu
        self._cpu = (at, used)
        cpu = (used - before_used) / (at - before_at) if at > before_at else 0.0
        rows, size = self._landed
        return Load(
            feeds=feeds,
            cpu=round(cpu, 3),
            rss=self._process.memory_info().rss,
            loop_lag_s=round(self.lag_s, 4),
            rows_per_s=round(self._rows.per_s(rows, now=at), 3),
            bytes_per_s=round(self._bytes.per_s(size, now=at), 1),
        )

    @property
    def lag_s(self) -> float:
        """The seconds by which the loop last ran a timer late. One that is stuck runs none: what it is late
        already counts."""
        overdue_s = max(0.0, self._loop.time() - self._due_at) if self._due_at else 0.0
        return max(self._lag_s, overdue_s)
