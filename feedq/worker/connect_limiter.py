"""Paces the connections that a worker begins, so that a cold start or a failover is no stampede.

::

    host a   ● ● ● ● ● ●──► rate of a ──┐
    host b   ●───────────► rate of b ──┼──► rate of the worker ──► connect
    no host  ● ●───────────────────────┘

Each feed waits in the line of its host, first come, first served. The first of a line waits for the rate of its
host, then for that of the worker, and only then lets the next of its line come forward. So a feed of a calm host
never waits behind five thousand of a busy one, and what a host sees keeps to its rate however long the worker's
own line was.

Feeds of a worker that was lost a moment ago go before all others, and ahead of the pace: up to
`FAILOVER_BURST_S` of it at once. Their hosts had these connections a moment ago, and somebody waits for
each. Those who come later wait for what was taken ahead: on average the rates hold.

A host's rate holds for the whole fleet: each worker keeps to its part of it, one by the number of active workers,
which it hears with every heartbeat. Feeds that dial nothing, such as those of files and programs, keep to the
worker's pace alone.

What it does not pace: further connections that a connector makes by itself while it streams, such as the polls of
`http`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Final

from feedq.core.clock import Clock
from feedq.core.limits import FAILOVER_BURST_S, STARTS_TOGETHER, RateLimiter, starts_together
from feedq.core.values import EVERY_OTHER
from feedq.telemetry.metrics import CONNECTS, CONNECTS_WAITING

HOSTS_KEPT: Final = 64
"""Lines that nobody waits in are looked through when there are more than this, and twice what was left of them the
last time: forgetting costs next to nothing, and memory is bounded by what was used lately."""
NAP_S_MAX: Final = 1.0
"""The first of a line looks again this often: its share of the rate may have become larger."""
NAP_S_MIN: Final = 0.001
"""Timers of an event loop may come a hair early, and must not become a loop without a pause."""


class Line:
    """The feeds that wait for one rate limiter: those of lost workers, and all others."""

    def __init__(self, limiter: RateLimiter | None, clock: Clock, *, failover_burst_s: float) -> None:
        """``limiter`` None: no limit, but a line all the same."""
        self.limiter = limiter
        self.waiting = 0
        self._clock, self._failover_burst_s = clock, failover_burst_s
        self._turns = {after_loss: asyncio.Lock() for after_loss in (True, False)}

    async def pass_through(self, *, after_loss: bool, onward: Line | None = None) -> None:
        """Wait for one's turn, here and then in the line that this one leads to."""
        limiter, clock = self.limiter, self._clock
        if limiter is not None and not self.waiting:
            limiter.arrive(clock.monotonic())
        self.waiting += 1
        try:
            async with self._turns[after_loss]:
                while (wait_s := self._opens_at(after_loss) - clock.monotonic()) > 0:
                    await asyncio.sleep(min(max(wait_s, NAP_S_MIN), NAP_S_MAX))
                if onward is not None:
                    await onward.pass_through(after_loss=after_loss)
                if limiter is not None:
                    limiter.let_through(clock.monotonic())
        finally:
            self.waiting -= 1

    def _opens_at(self, after_loss: bool) -> float:
        if self.limiter is None:
            return float("-inf")
        return self.limiter.opens_at - (self._failover_burst_s if after_loss else 0.0)

    def is_unused(self, now: float) -> bool:
        """Whether the next feed would fare no better or worse in a new line."""
        return not self.waiting and (self.limiter is None or self.limiter.is_rested(now))


class ConnectLimiter:
    """The lines of one process. Used on its event loop."""

    def __init__(
        self,
        connects_per_s: float,
        host_connects_per_s: Mapping[str, float],
        clock: Clock,
        *,
        failover_burst_s: float = FAILOVER_BURST_S,
        rng: Random,
    ) -> None:
        """Rates of 0 are without a limit; the host ``*`` stands for each one that is not named."""
        self._clock, self._rng, self._failover_burst_s = clock, rng, failover_burst_s
        self._rates = {host.strip("[]").lower(): rate for host, rate in host_connects_per_s.items()}
        self._workers = 1
        self._worker = self._new_line(connects_per_s)
        self._hosts: dict[str | None, Line] = {}
        self._look_through_at = HOSTS_KEPT
        self._starts = StartLimiter()

    @property
    def waiting(self) -> int:
        """Feeds that wait for their turn."""
        return sum(line.waiting for line in self._hosts.values())

    async def turn(self, host: str | None, *, after_loss: bool = False) -> None:
        """Wait until a connection to a host may begin."""
        await self._starts.turn()
        line = self._hosts.get(host)
        if line is None:
            self._forget_unused()
            line = self._hosts[host] = self._new_line(self._rate(host), share=1 / self._workers)
        with CONNECTS_WAITING.track_inprogress():
            await line.pass_through(after_loss=after_loss, onward=self._worker)
        CONNECTS.inc()

    def share(self, active_workers: int) -> None:
        """Set how many workers share the rates of hosts; it holds for feeds that wait already as well."""
        workers = max(1, active_workers)
        if workers == self._workers:
            return
        self._workers = workers
        for host, line in self._hosts.items():
            if line.limiter is not None:
                line.limiter.change(self._rate(host), share=1 / workers, now=self._clock.monotonic())

    def _new_line(self, rate: float, *, share: float = 1.0) -> Line:
        limiter = RateLimiter(rate, share=share, rng=self._rng) if rate else None
        return Line(limiter, self._clock, failover_burst_s=self._failover_burst_s)

    def _rate(self, host: str | None) -> float:
        return 0.0 if host is None else self._rates.get(host, self._rates.get(EVERY_OTHER, 0.0))

    def _forget_unused(self) -> None:
        if len(self._hosts) >= self._look_through_at:
            now = self._clock.monotonic()
            self._hosts = {host: line for host, line in self._hosts.items() if not line.is_unused(now)}
            self._look_through_at = max(HOSTS_KEPT, 2 * len(self._hosts))


class StartLimiter:
    """Lets feeds that begin together go on a few at a time, so that the first of them stream while the last begin.
    Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._passed = 0
        """In this turn of the loop."""

    async def turn(self) -> None:
        """Wait for one's turn, which is at once unless many come together."""
        loop = asyncio.get_running_loop()
        if self._passed < STARTS_TOGETHER and not self._waiting:
            self._count(loop)
            return
        waiting = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._passed:
            loop.call_soon(self._next, loop)
        self._passed += 1

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._passed = 0
        together = starts_together(len(self._waiting))
        while self._waiting and self._passed < together:
            waiting = self._waiting.popleft()
            if not waiting.done():  # or it was cancelled
                waiting.set_result(None)
                self._count(loop)
