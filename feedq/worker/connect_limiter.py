"""Paces the connections that a worker begins, so that a cold start or a failover is no stampede.

::

    host a   ● ● ● ● ● ●──► rate of a ──┐
    host b   ●───────────► rate of b ──┼──► by turns ──► rate of the worker ──► connect
    no host  ● ●───────────────────────┘

Each feed waits in the line of its host, first come, first served. A line whose limiter is open takes part in
the turns, with one feed at a time; the worker's limiter lets through whoever's turn it is. So a feed of a calm
host never waits behind five thousand of a busy one, and neither limiter opens for somebody who still has to
wait for the other: what a host sees is what its limiter let through.

Feeds of a worker that was lost a moment ago go before all others, and ahead of the pace: up to
`FAILOVER_BURST_S` of it at once. Their hosts had these connections a moment ago, and somebody waits for
each. For what they took ahead, those who come later wait: on average the rates hold.

A host's rate holds for the whole fleet: each worker keeps to its part of it, one by the number of active workers,
which it hears with every heartbeat. Feeds that dial nothing, such as those of files and programs, keep to the
worker's pace alone.

What it does not pace: further connections that a connector makes by itself while it streams, such as the polls of
`http`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter
from random import Random
from typing import Final, Generic, TypeVar

from feedq.core.clock import Clock
from feedq.core.limits import FAILOVER_BURST_S, STARTS_TOGETHER, RateLimiter, starts_together
from feedq.core.values import EVERY_OTHER
from feedq.settings import Settings
from feedq.telemetry.metrics import CONNECTS, CONNECTS_WAITING
from feedq.worker.loops import resolve

HOSTS_KEPT: Final = 64
"""Lines that nobody waits in are looked through when there are more than this, and twice what was left of them the
last time: forgetting costs next to nothing, and memory is bounded by what was used lately."""
NAP_S_MAX: Final = 3_600.0
"""A timer for what a rate of almost nothing allows is set anew this often; event loops refuse larger ones."""
NAP_S_MIN: Final = 0.001
"""Timers of an event loop may come a hair early, and must not become a loop without a pause."""


@dataclass(eq=False, slots=True)
class Waiter:
    """A feed that wants to connect."""

    host: str | None
    after_loss: bool = field(default=False, kw_only=True)
    """Whether the feed comes from a worker that was lost."""
    is_waiting: bool = field(default=True, init=False)


W = TypeVar("W", bound=Waiter)


@dataclass(eq=False, slots=True)
class HostQueue(Generic[W]):
    """The feeds that wait to connect to one host. Feeds of lost workers have a queue of their own, with the
    same rate limiter."""

    host: str | None
    after_loss: bool
    limiter: RateLimiter | None
    waiting: OrderedDict[W, None] = field(default_factory=OrderedDict)
    takes_turns: bool = False
    timer: int = 0
    """The entry in the timetable that counts; 0 for none."""


class ConnectTurns(Generic[W]):
    """Decides who may connect when. Told the time; knows neither threads nor event loops."""

    def __init__(
        self,
        connects_per_s: float,
        host_connects_per_s: Mapping[str, float],
        *,
        failover_burst_s: float = 0.0,
        rng: Random,
    ) -> None:
        self._rng = rng
        self._failover_burst_s = failover_burst_s
        self._limiter = RateLimiter(connects_per_s, rng=rng) if connects_per_s else None
        self._rates = {host.strip("[]").lower(): rate for host, rate in host_connects_per_s.items()}
        self._workers = 1
        self._lines: dict[tuple[str | None, bool], HostQueue[W]] = {}
        self._look_through_at = HOSTS_KEPT
        self._turns: dict[bool, deque[HostQueue[W]]] = {True: deque(), False: deque()}
        """The queues that take turns, by whether they are those of lost workers, which come first."""
        self._timetable: list[tuple[float, int, HostQueue[W]]] = []
        self._numbers = count(1)
        self.waiting = 0

    @property
    def lines(self) -> int:
        """The number of host queues that are remembered."""
        return len(self._lines)

    def join(self, waiter: W, *, now: float) -> None:
        line = self._line(waiter.host, waiter.after_loss, now)
        if not self.waiting and self._limiter is not None:
            self._limiter.arrive(now)
        line.waiting[waiter] = None
        self.waiting += 1
        if len(line.waiting) == 1:
            if line.limiter is not None:
                line.limiter.arrive(now)
            self._line_up(line, now)

    def leave(self, waiter: W, *, now: float) -> None:
        """Take out a feed that does not want to connect any more, though it may just have been let through."""
        line = self._lines.get((waiter.host, waiter.after_loss))
        if waiter.is_waiting:
            assert line is not None
            waiter.is_waiting = False
            del line.waiting[waiter]
            self.waiting -= 1
            return
        if self._limiter is not None:
            self._limiter.take_back()
        if line is not None and line.limiter is not None:
            line.limiter.take_back()
            line.timer = 0
            self._line_up(line, now)

    def let_through(self, now: float) -> Iterator[W]:
        """Let through all feeds that may connect by now, and return them."""
        while self._timetable and self._timetable[0][0] <= now:
            _, number, line = heappop(self._timetable)
            if number == line.timer:
                line.timer = 0
                self._line_up(line, now)
        for after_loss, turns in self._turns.items():
            while turns and self._opens_at(self._limiter, after_loss) <= now:
                line = turns.popleft()
                line.takes_turns = False
                if line.waiting and self._opens_at(line.limiter, after_loss) <= now:
                    waiter, _ = line.waiting.popitem(last=False)
                    waiter.is_waiting = False
                    self.waiting -= 1
                    for limiter in (self._limiter, line.limiter):
                        if limiter is not None:
                            limiter.let_through(now)
                    yield waiter
                self._line_up(line, now)

    def next(self) -> tuple[float, W] | None:
        """Return when to ask again, and which feed may be let through then."""
        upcoming: list[tuple[float, W]] = []
        for after_loss, turns in self._turns.items():
            while turns and not turns[0].waiting:
                turns.popleft().takes_turns = False
            if turns:
                # Only the worker's limiter keeps anybody who takes turns.
                upcoming.append((self._opens_at(self._limiter, after_loss), next(iter(turns[0].waiting))))
        while self._timetable:
            at, number, line = self._timetable[0]
            if number == line.timer and line.waiting:
                upcoming.append((at, next(iter(line.waiting))))
                break
            heappop(self._timetable)
            if number == line.timer:
                line.timer = 0
        return min(upcoming, key=itemgetter(0), default=None)

    def share(self, workers: int, *, now: float) -> None:
        """Keep to the part of a fleet of so many workers from now on."""
        if workers == self._workers:
            return
        self._workers = workers
        for host, limiter in {line.host: line.limiter for line in self._lines.values()}.items():
            if limiter is not None:
                limiter.change(self._rate(host), share=1 / workers, now=now)
        kept = [entry for entry in self._timetable if entry[1] == entry[2].timer]
        self._timetable = [
            (self._opens_at(line.limiter, line.after_loss), number, line) for _, number, line in kept
        ]
        heapify(self._timetable)

    def _line_up(self, line: HostQueue[W], now: float) -> None:
        """Have a line take its turns as soon as its limiter is open."""
        if not line.waiting or line.takes_turns or line.timer:
            return
        opens_at = self._opens_at(line.limiter, line.after_loss)
        if opens_at <= now:
            line.takes_turns = True
            self._turns[line.after_loss].append(line)
        else:
            line.timer = next(self._numbers)
            heappush(self._timetable, (opens_at, line.timer, line))

    def _opens_at(self, limiter: RateLimiter | None, after_loss: bool) -> float:
        """Return when a rate limiter opens for feeds of lost workers, or for others."""
        if limiter is None:
            return float("-inf")
        return limiter.opens_at - (self._failover_burst_s if after_loss else 0.0)

    def _line(self, host: str | None, after_loss: bool, now: float) -> HostQueue[W]:
        line = self._lines.get((host, after_loss))
        if line is None:
            if len(self._lines) >= self._look_through_at:
                self._drop_unused(now)
            beside, rate = self._lines.get((host, not after_loss)), self._rate(host)
            if beside is not None:
                limiter = beside.limiter
            else:
                limiter = RateLimiter(rate, share=1 / self._workers, rng=self._rng) if rate else None
            line = self._lines[host, after_loss] = HostQueue(host, after_loss, limiter)
        return line

    def _rate(self, host: str | None) -> float:
        return 0.0 if host is None else self._rates.get(host, self._rates.get(EVERY_OTHER, 0.0))

    def _drop_unused(self, now: float) -> None:
        """Lines whose next feed would fare no better or worse in a new one."""
        self._lines = {
            key: line
            for key, line in self._lines.items()
            if line.waiting or (line.limiter is not None and not line.limiter.is_rested(now))
        }
        self._look_through_at = max(HOSTS_KEPT, 2 * len(self._lines))


@dataclass(eq=False, slots=True)
class Sleeper(Waiter):
    """A feed that waits on the event loop."""

    through: asyncio.Future[None]


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


class ConnectLimiter:
    """The turns of one process. Used on its event loop."""

    def __init__(
        self,
        connects_per_s: float,
        host_connects_per_s: Mapping[str, float],
        clock: Clock,
        *,
        failover_burst_s: float = 0.0,
        rng: Random,
    ) -> None:
        """Rates of 0 are without a limit. Hosts are lower-case, ``*`` stands for each one that is not named."""
        self._clock = clock
        self._turns = ConnectTurns[Sleeper](
            connects_per_s, host_connects_per_s, failover_burst_s=failover_burst_s, rng=rng
        )
        self._alarm_at = float("inf")
        """When a timer will let the next feed through."""

    async def turn(self, host: str | None, *, after_loss: bool = False) -> None:
        """Wait until a connection to a host may begin. A feed that is cancelled gives its turn back."""
        waiter = Sleeper(host, asyncio.get_running_loop().create_future(), after_loss=after_loss)
        self._turns.join(waiter, now=self._clock.monotonic())
        self._go_on()
        if not waiter.through.done():
            with CONNECTS_WAITING.track_inprogress():
                await self._wait(waiter)
        CONNECTS.inc()

    def share(self, active_workers: int) -> None:
        """Set how many workers share the rates of hosts; it holds for feeds that wait already as well."""
        self._turns.share(max(1, active_workers), now=self._clock.monotonic())
        self._go_on()

    async def _wait(self, waiter: Sleeper) -> None:
        try:
            await waiter.through
        except asyncio.CancelledError:
            self._turns.leave(waiter, now=self._clock.monotonic())
            self._go_on()
            raise

    def _go_on(self) -> None:
        """Let through whoever may, and have it done again when the next one may."""
        now = self._clock.monotonic()
        for waiter in self._turns.let_through(now):
            resolve(waiter.through, None)
        upcoming = self._turns.next()
        if upcoming is None or upcoming[0] >= self._alarm_at:
            return
        self._alarm_at, _ = upcoming
        nap_s = min(max(self._alarm_at - now, NAP_S_MIN), NAP_S_MAX)
        asyncio.get_running_loop().call_later(nap_s, self._let_next_go, self._alarm_at)

    def _let_next_go(self, alarm_at: float) -> None:
        if alarm_at == self._alarm_at:  # or an earlier one has been set since
            self._alarm_at = float("inf")
            self._go_on()


def connect_limiter_of(settings: Settings, clock: Clock, rng: Random) -> ConnectLimiter:
    """A limiter at the pace of the settings."""
    return ConnectLimiter(
        settings.connects_per_s,
        settings.host_connects_per_s,
        clock,
        failover_burst_s=FAILOVER_BURST_S,
        rng=rng,
    )
