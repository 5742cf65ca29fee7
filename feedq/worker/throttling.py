"""Keeping feeds to their rate limits: their own, and those of their tenants.

A feed's own limit is kept where the feed runs. A tenant's holds for all its feeds on all workers: each worker
keeps to the part of it that its feeds are of the tenant's, which it asks the control database for now and
then. Between two answers the parts may add up to more or less than the whole for a moment.

Nothing is ever dropped: a feed that is ahead of its limit takes its next batch later, so its connection's
buffer fills up and the source has to wait. The feeds of a tenant come by turns, each with one batch. Feeds that
wait may keep `WAITING_PART` of the worker's memory between them: the others go on as if these were not there.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

from feedq.connectors.base import Room
from feedq.core.clock import Clock
from feedq.core.limits import UNLIMITED, RateLimits, Throttle, Turn
from feedq.core.model import Batch, Feed
from feedq.core.values import EVERY_OTHER
from feedq.telemetry.metrics import THROTTLED_SECONDS

SHARE_TICKS = 5
"""The number of heartbeats after which a worker asks how many feeds its rate-limited tenants have elsewhere."""
WAITING_PART = 0.25
NAP_S_MAX = 2.0
"""A debt is counted again after this long: the limit may have become another in the meantime, or the feed's
table may be gone."""


class FeedThrottle:
    """The limits that one feed has to keep to."""

    __slots__ = ("_clock", "_is_waiting", "_lock", "_throttles", "_waiting_bytes_max")

    def __init__(
        self,
        throttles: tuple[Throttle, ...],
        clock: Clock,
        lock: Lock,
        *,
        waiting_bytes_max: Callable[[], int],
    ) -> None:
        self._throttles = throttles
        self._clock = clock
        self._lock = lock
        self._waiting_bytes_max = waiting_bytes_max
        self._is_waiting = False

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to `keep` to; asked for every batch, and mostly not so."""
        return bool(self._throttles)

    @property
    def bytes_max(self) -> int | None:
        """The bytes that the feed may keep of what it has not taken yet; None while it need not wait for
        anything."""
        return self._waiting_bytes_max() if self._is_waiting else None

    def room(self, room: Room) -> Room:
        """The worker's memory as the feed's connection is to see it."""
        return PacedRoom(room, self) if self._throttles else room

    async def keep(self, batch: Batch, *, unless: Callable[[], object] = lambda: None) -> None:
        """Account for a batch that was taken, and wait until the next one may be, or there is a reason not to."""
        if not self._throttles:
            return
        # Feeds of one tenant may run on threads of their own, and shares change on yet another.
        with self._lock:
            now = self._clock.monotonic()
            turns = [(t, t.take(rows=batch.count, size=batch.size, now=now)) for t in self._throttles]
        try:
            while (wait_s := self._wait_s(turns)) > 0 and not unless():
                self._is_waiting = True
                nap_s = min(wait_s, NAP_S_MAX)
                THROTTLED_SECONDS.inc(nap_s)
                await asyncio.sleep(nap_s)
        finally:
            self._is_waiting = False

    def _wait_s(self, turns: list[tuple[Throttle, Turn]]) -> float:
        with self._lock:
            now = self._clock.monotonic()
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
        self._clock = clock
        self._room_bytes = room_bytes
        self._lock = Lock()
        self._limited = 0
        """Feeds here that have a limit, their own or their tenant's."""
        self._here: Counter[str] = Counter()
        self._throttles: dict[str, Throttle] = {}

    @contextmanager
    def of(self, feed: Feed, limits: RateLimits) -> Iterator[FeedThrottle]:
        """Return the limits that a feed has to keep to while it is here."""
        own = () if limits == UNLIMITED else (Throttle(limits, now=self._clock.monotonic()),)
        shared = self._join(feed.spec.tenant)
        self._count_limited(1 if own or shared else 0)
        try:
            yield FeedThrottle(
                own + shared, self._clock, self._lock, waiting_bytes_max=self._waiting_bytes_max
            )
        finally:
            self._count_limited(-1 if own or shared else 0)
            if shared:
                self._leave(feed.spec.tenant)

    def _count_limited(self, change: int) -> None:
        with self._lock:
            self._limited += change

    def _waiting_bytes_max(self) -> int:
        return int(self._room_bytes * WAITING_PART) // max(1, self._limited)

    def _join(self, tenant: str) -> tuple[Throttle, ...]:
        limit = self._limits.get(tenant) or (self._limits.get(EVERY_OTHER) if tenant else None)
        if limit is None:
            return ()
        with self._lock:
            self._here[tenant] += 1
            if tenant not in self._throttles:
                self._throttles[tenant] = Throttle(limit, now=self._clock.monotonic())
            return (self._throttles[tenant],)

    def _leave(self, tenant: str) -> None:
        with self._lock:
            self._here[tenant] -= 1
            if not self._here[tenant]:
                del self._here[tenant], self._throttles[tenant]

    def limited_tenants(self) -> list[str]:
        """Return the tenants with limits that have feeds here: `share` wants to know how many they have
        everywhere."""
        with self._lock:
            return list(self._here)

    def share(self, running: Mapping[str, int]) -> None:
        """``running`` feeds of each tenant on all workers, as the control database says."""
        now = self._clock.monotonic()
        with self._lock:
            for tenant, throttle in self._throttles.items():
                if tenant in running:
                    # Ours may be more than it has heard of: then all there is, is here.
                    share = self._here[tenant] / max(running[tenant], self._here[tenant])
                    throttle.change_share(share, now=now)
