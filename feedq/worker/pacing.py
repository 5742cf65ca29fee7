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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from operator import attrgetter
from random import Random
from threading import Lock
from typing import Final, TypeAlias

from feedq.connectors.base import Room
from feedq.core.clock import Clock
from feedq.core.limits import (
    CONNECT_BURST_S,
    CONNECT_FIRST_S,
    FAILOVER_BURST_S,
    RATE_MIN,
    UNLIMITED,
    RateLimits,
    TokenBucket,
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
    """The feeds that wait for one rate: those of lost workers, and all others.

    The rate cuts time into slots and lets one feed through at a random moment of each. After a pause, the slots
    of the last `CONNECT_BURST_S`, and one slot at least, may be used at once. A line that has a share of a rate
    has that share of the burst too, and lets its first feed through at once as long as all together let through no
    more in that moment than `CONNECT_FIRST_S` of the rate: if that is exceeded, the moment of a slot that is only
    partly over may already be past or still to come. So a line with a rate of its own never keeps the first one
    waiting, and a thousand lines that share a rate of a hundred do not let a thousand through in one moment.
    """

    def __init__(
        self, rate_per_s: float, clock: Clock, rng: Random, *, share: float = 1.0, failover_burst_s: float
    ) -> None:
        """``rate_per_s`` 0: no limit, but a line all the same."""
        self.waiting = 0
        self._rate_per_s, self._clock, self._rng = rate_per_s or inf, clock, rng
        self._failover_burst_s = failover_burst_s
        self._turns = {after_loss: asyncio.Lock() for after_loss in (True, False)}
        self._set_spacing(share)
        self._slot_at = float("-inf")
        """When the next slot begins."""
        self._moment = rng.random()
        """Where in that slot somebody may pass, as a part of it."""

    async def pass_through(self, *, after_loss: bool, onward: Line | None = None) -> None:
        """Wait for one's turn, here and then in the line that this one leads to."""
        clock = self._clock
        if not self.waiting:
            self._slot_at = max(self._slot_at, clock.monotonic() - self._burst_s)
        self.waiting += 1
        ahead_s = self._failover_burst_s if after_loss else 0.0
        try:
            async with self._turns[after_loss]:
                while (wait_s := self._opens_at - ahead_s - clock.monotonic()) > 0:
                    await asyncio.sleep(min(max(wait_s, LINE_NAP_S_MIN), LINE_NAP_S_MAX))
                if onward is not None:
                    await onward.pass_through(after_loss=after_loss)
                # Slots that nobody could use, because the process stood still or others were in the way, are gone.
                unused_s = max(self._spacing_s, self._burst_s)
                self._slot_at = max(self._slot_at, clock.monotonic() - unused_s) + self._spacing_s
                self._moment = self._rng.random()
        finally:
            self.waiting -= 1

    def share(self, share: float) -> None:
        """Keep to this part of the rate from now on. Who waits for so many slots waits for as many new ones."""
        before_s, now = self._spacing_s, self._clock.monotonic()
        self._set_spacing(share)
        if before_s:
            self._slot_at = now + (self._slot_at - now) * (self._spacing_s / before_s)

    def is_unused(self) -> bool:
        """Whether the next feed would fare no better or worse in a new line."""
        return not self.waiting and self._slot_at <= self._clock.monotonic() - self._burst_s

    @property
    def _opens_at(self) -> float:
        return self._slot_at + self._moment * self._spacing_s

    def _set_spacing(self, share: float) -> None:
        self._spacing_s = 1 / max(self._rate_per_s * share, RATE_MIN)
        self._burst_s = max(1 / self._rate_per_s, CONNECT_BURST_S, min(self._spacing_s, CONNECT_FIRST_S))


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
        self._rates = {host.strip("[]").lower(): rate for host, rate in host_connects_per_s.items()}
        self._new_line = partial(Line, clock=clock, rng=rng, failover_burst_s=failover_burst_s)
        self._workers = 1
        self._worker = self._new_line(connects_per_s)
        self._hosts: dict[str | None, Line] = {}
        self._look_through_at = HOSTS_KEPT

    @property
    def waiting(self) -> int:
        """Feeds that wait for their turn."""
        return sum(line.waiting for line in self._hosts.values())

    async def turn(self, host: str | None, *, after_loss: bool = False) -> None:
        """Wait until a connection to a host may begin."""
        line = self._hosts.get(host)
        if line is None:
            self._forget_unused()
            rate = 0.0 if host is None else self._rates.get(host, self._rates.get(EVERY_OTHER, 0.0))
            line = self._hosts[host] = self._new_line(rate, share=1 / self._workers)
        with CONNECTS_WAITING.track_inprogress():
            await line.pass_through(after_loss=after_loss, onward=self._worker)
        CONNECTS.inc()

    def share(self, active_workers: int) -> None:
        """Set how many workers share the rates of hosts; it holds for feeds that wait already as well."""
        workers = max(1, active_workers)
        if workers != self._workers:
            self._workers = workers
            for line in self._hosts.values():
                line.share(1 / workers)

    def _forget_unused(self) -> None:
        if len(self._hosts) >= self._look_through_at:
            self._hosts = {host: line for host, line in self._hosts.items() if not line.is_unused()}
            self._look_through_at = max(HOSTS_KEPT, 2 * len(self._hosts))


# -- reading ------------------------------------------------------------------------------------------

SHARE_TICKS = 5
"""The number of heartbeats after which a worker asks how many feeds its rate-limited tenants have elsewhere."""
WAITING_PART = 0.25
THROTTLE_NAP_S_MAX = 2.0
"""A debt is counted again after this long: the limit may have become another in the meantime, or the feed's
table may be gone."""

Bucket: TypeAlias = tuple[Callable[[Batch], float], TokenBucket]
"""What counts in a bucket of each batch, and the bucket."""


class FeedThrottle:
    """The limits of one feed on this worker, for the length of a ``with`` block; and the worker's memory as a
    connection of a feed sees it that is held back now and then."""

    __slots__ = ("_buckets", "_held", "_is_waiting", "_pacing", "_room", "_tenant")

    def __init__(self, pacing: Pacing, tenant: str | None, buckets: Sequence[Bucket]) -> None:
        """``tenant``: whose limits are among these, if some are."""
        self._pacing, self._tenant, self._buckets = pacing, tenant, buckets
        self._is_waiting = False
        self._held = 0

    def __enter__(self) -> FeedThrottle:
        return self

    def __exit__(self, *_: object) -> None:
        if self._buckets:
            self._pacing.leave(self._tenant)

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to `keep` to; asked for every batch, and mostly not so."""
        return bool(self._buckets)

    async def keep(self, batch: Batch, *, unless: Callable[[], object] = lambda: None) -> None:
        """Account for a batch that was taken, and wait until the next one may be, or there is a reason not to."""
        if not self._buckets:
            return
        # Shares change on another thread.
        with self._pacing.lock:
            now = self._pacing.clock.monotonic()
            marks = [(bucket, bucket.take(amount_of(batch), now=now)) for amount_of, bucket in self._buckets]
        try:
            while (wait_s := self._wait_s(marks)) > 0 and not unless():
                self._is_waiting = True
                nap_s = min(wait_s, THROTTLE_NAP_S_MAX)
                THROTTLED_SECONDS.inc(nap_s)
                await asyncio.sleep(nap_s)
        finally:
            self._is_waiting = False

    def _wait_s(self, marks: Sequence[tuple[TokenBucket, float]]) -> float:
        with self._pacing.lock:
            now = self._pacing.clock.monotonic()
            return max(bucket.wait_s(mark, now=now) for bucket, mark in marks)

    # -- the worker's memory, as `feedq.connectors.base.Room` ----------------------------------------

    def room(self, room: Room) -> Room:
        """The worker's memory as the feed's connection is to see it."""
        if not self._buckets:
            return room
        self._room = room
        return self

    @property
    def left(self) -> int:
        left = self._room.left
        return min(left, self._pacing.waiting_bytes_max - self._held) if self._is_waiting else left

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
        self._buckets: dict[str, list[Bucket]] = {}
        self._unlimited = FeedThrottle(self, None, ())
        """For all feeds that have no limit: there is nothing to remember of them."""

    def of(self, tenant: str, limits: RateLimits) -> FeedThrottle:
        """Return the limits that a feed of a tenant, with limits of its own, has to keep to while it is here."""
        limit = self._limits.get(tenant) or (self._limits.get(EVERY_OTHER) if tenant else None)
        if limit is None and limits == UNLIMITED:
            return self._unlimited
        now = self.clock.monotonic()
        own = _buckets_of(limits, now=now)
        with self.lock:
            self._limited += 1
            if limit is None:
                return FeedThrottle(self, None, own)
            self._here[tenant] += 1
            if tenant not in self._buckets:
                self._buckets[tenant] = _buckets_of(limit, now=now)
            return FeedThrottle(self, tenant, [*own, *self._buckets[tenant]])

    def leave(self, tenant: str | None) -> None:
        """A feed with a limit is no longer here; ``tenant``: it had a share of this tenant's."""
        with self.lock:
            self._limited -= 1
            if tenant is not None:
                self._here[tenant] -= 1
                if not self._here[tenant]:
                    del self._here[tenant], self._buckets[tenant]

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
            for tenant in self._here.keys() & running.keys():
                # Ours may be more than it has heard of: then all there is, is here.
                share = self._here[tenant] / max(running[tenant], self._here[tenant])
                for _, bucket in self._buckets[tenant]:
                    bucket.share(share, now=now)


def _buckets_of(limits: RateLimits, *, now: float) -> list[Bucket]:
    rates = ((attrgetter("count"), limits.rows_per_s), (attrgetter("size"), limits.bytes_per_s))
    return [(amount_of, TokenBucket(rate, now=now)) for amount_of, rate in rates if rate is not None]
