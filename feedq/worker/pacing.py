"""Paces the feeds of a worker: how fast they connect, and how fast they read.

*Connecting*, so that a cold start or a failover is not a stampede::

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

*Reading*, by the rate limits of feeds and of tenants. A feed's own limit is kept where the feed runs. A
tenant's limit holds for all its feeds on all workers: each worker keeps to its part, which is the part of the
tenant's feeds that run there. The worker asks the control database now and then how many there are elsewhere;
between two answers the parts may add up to more or less than the whole for a moment.

Nothing is ever dropped: a feed that is ahead of its limit takes its next batch later, so its connection's
buffer fills up and the source has to wait. The feeds of a tenant come by turns, each with one batch. Feeds that
wait may keep `WAITING_PART` of the worker's memory between them: the others go on as if these were not there.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from random import Random
from threading import Lock
from typing import Final

from feedq.connectors.base import Room
from feedq.core.clock import Clock
from feedq.core.limits import (
    FAILOVER_BURST_S,
    STARTS_TOGETHER,
    UNLIMITED,
    RateLimiter,
    RateLimits,
    Throttle,
    Turn,
    starts_together,
)
from feedq.core.values import EVERY_OTHER
from feedq.records.batch import Batch
from feedq.telemetry.metrics import CONNECTS, CONNECTS_WAITING, THROTTLED_SECONDS

# -- connecting ---------------------------------------------------------------------------------------

HOSTS_KEPT: Final = 64
"""Lines that nobody waits in are looked through when there are more than this, and twice what was left of them the
last time: forgetting costs next to nothing, and memory is bounded by what was used lately."""
LINE_NAP_S_MAX: Final = 1.0
"""The first of a line looks again this often: its share of the rate may have become larger."""
LINE_NAP_S_MIN: Final = 0.001
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
                    await asyncio.sleep(min(max(wait_s, LINE_NAP_S_MIN), LINE_NAP_S_MAX))
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


# -- reading ------------------------------------------------------------------------------------------

SHARE_TICKS = 5
"""The number of heartbeats after which a worker asks how many feeds its rate-limited tenants have elsewhere."""
WAITING_PART = 0.25
THROTTLE_NAP_S_MAX = 2.0
"""A debt is counted again after this long: the limit may have become another in the meantime, or the feed's
table may be gone."""


class FeedThrottle:
    """The limits of one feed on this worker, for the length of a ``with`` block."""

    __slots__ = ("_is_waiting", "_pacing", "_tenant", "_throttles")

    def __init__(self, pacing: Pacing, tenant: str | None, throttles: tuple[Throttle, ...]) -> None:
        """``tenant``: whose limit is one of these, if one is."""
        self._pacing, self._tenant, self._throttles = pacing, tenant, throttles
        self._is_waiting = False

    def __enter__(self) -> FeedThrottle:
        return self

    def __exit__(self, *_: object) -> None:
        if self._throttles:
            self._pacing.leave(self._tenant)

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to `keep` to; asked for every batch, and mostly not so."""
        return bool(self._throttles)

    @property
    def bytes_max(self) -> int | None:
        """The bytes that the feed may keep of what it has not taken yet; None while it need not wait for
        anything."""
        return self._pacing.waiting_bytes_max if self._is_waiting else None

    def room(self, room: Room) -> Room:
        """The worker's memory as the feed's connection is to see it."""
        return PacedRoom(room, self) if self._throttles else room

    async def keep(self, batch: Batch, *, unless: Callable[[], object] = lambda: None) -> None:
        """Account for a batch that was taken, and wait until the next one may be, or there is a reason not to."""
        if not self._throttles:
            return
        # Shares change on another thread.
        with self._pacing.lock:
            now = self._pacing.clock.monotonic()
            turns = [(t, t.take(rows=batch.count, size=batch.size, now=now)) for t in self._throttles]
        try:
            while (wait_s := self._wait_s(turns)) > 0 and not unless():
                self._is_waiting = True
                nap_s = min(wait_s, THROTTLE_NAP_S_MAX)
                THROTTLED_SECONDS.inc(nap_s)
                await asyncio.sleep(nap_s)
        finally:
            self._is_waiting = False

    def _wait_s(self, turns: list[tuple[Throttle, Turn]]) -> float:
        with self._pacing.lock:
            now = self._pacing.clock.monotonic()
            return max(throttle.wait_s(turn, now=now) for throttle, turn in turns)


class PacedRoom:
    """The worker's memory for one connection of a feed that is held back now and then."""

    __slots__ = ("_held", "_pace", "_room")

    def __init__(self, room: Room, pace: FeedThrottle) -> None:
        self._room = room
        self._pace = pace
        self._held = 0

    @property
    def left(self) -> int:
        bytes_max = self._pace.bytes_max
        return self._room.left if bytes_max is None else min(self._room.left, bytes_max - self._held)

    def take(self, size: int) -> None:
        self._held += size
        self._room.take(size)

    def give_back(self, size: int) -> None:
        self._held -= size
        self._room.give_back(size)


class Pacing:
    """The limits of a worker process, and of its feeds. Thread-safe."""

    def __init__(
        self, tenant_limits: Mapping[str, RateLimits], clock: Clock, *, room_bytes: int = sys.maxsize
    ) -> None:
        """``room_bytes``: the worker's memory for what is not committed yet."""
        self._limits = {tenant: limits for tenant, limits in tenant_limits.items() if limits != UNLIMITED}
        self.clock, self.lock = clock, Lock()
        self._room_bytes = room_bytes
        self._limited = 0
        """Feeds here that have a limit, their own or their tenant's."""
        self._here: Counter[str] = Counter()
        self._throttles: dict[str, Throttle] = {}
        self._unlimited = FeedThrottle(self, None, ())
        """For all feeds that have no limit: there is nothing to remember of them."""

    def of(self, tenant: str, limits: RateLimits) -> FeedThrottle:
        """Return the limits that a feed of a tenant, with limits of its own, has to keep to while it is here."""
        limit = self._limits.get(tenant) or (self._limits.get(EVERY_OTHER) if tenant else None)
        if limit is None and limits == UNLIMITED:
            return self._unlimited
        now = self.clock.monotonic()
        throttles = () if limits == UNLIMITED else (Throttle(limits, now=now),)
        with self.lock:
            self._limited += 1
            if limit is None:
                return FeedThrottle(self, None, throttles)
            self._here[tenant] += 1
            if tenant not in self._throttles:
                self._throttles[tenant] = Throttle(limit, now=now)
            return FeedThrottle(self, tenant, (*throttles, self._throttles[tenant]))

    def leave(self, tenant: str | None) -> None:
        """A feed with a limit is no longer here; ``tenant``: it had a share of this tenant's."""
        with self.lock:
            self._limited -= 1
            if tenant is not None:
                self._here[tenant] -= 1
                if not self._here[tenant]:
                    del self._here[tenant], self._throttles[tenant]

    @property
    def waiting_bytes_max(self) -> int:
        """The bytes that one feed may keep while it waits."""
        return int(self._room_bytes * WAITING_PART) // max(1, self._limited)

    def limited_tenants(self) -> list[str]:
        """Return the tenants with limits that have feeds here: `share` wants to know how many they have
        everywhere."""
        with self.lock:
            return list(self._here)

    def share(self, running: Mapping[str, int]) -> None:
        """``running`` feeds of each tenant on all workers, as the control database says."""
        now = self.clock.monotonic()
        with self.lock:
            for tenant, throttle in self._throttles.items():
                if tenant in running:
                    # Ours may be more than it has heard of: then all there is, is here.
                    share = self._here[tenant] / max(running[tenant], self._here[tenant])
                    throttle.change_share(share, now=now)
