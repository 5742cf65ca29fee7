"""A worker that dies at any moment, over and over: what its feed's connector must make good.

It takes some batches, commits some of those, and loses its connection or its life; the next one goes on from
what was committed. Seeded, so that a failure can be replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from random import Random

from feedq.errors import SourceUnavailable
from feedq.records.batch import Batch
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import PATIENCE_S, Relay, until

LIVES_MAX = 1_000
SHORT_LIVES = 6
"""As many come first: however fast the machine is, no life reads all that there is."""
IDLE_S = 0.5
"""A life that gets nothing for this long is over: the source has nothing more for it."""


class ErraticWorker:
    """Its table is ``landed``: the records of the batches that were committed, in order."""

    def __init__(self, driver: ConnectorDriver, relay: Relay, *, seed: int) -> None:
        self.driver = driver
        self.landed: list[bytes] = []
        self.lives = 0
        self._relay = relay
        self._rng = Random(seed)
        print(f"seed {seed}")

    async def land(self, count: int) -> None:
        """Live again and again until that many different records have landed."""
        while len(set(self.landed)) < count:
            self.lives += 1
            assert self.lives < LIVES_MAX, f"{len(set(self.landed))} of {count} records landed"
            await self._live()

    async def _live(self) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            self.driver.context.memory.clear()
        is_short = self.lives <= SHORT_LIVES
        if is_short or rng.random() < 0.3:
            self._relay.cut_after(self._relay.down_bytes + rng.randrange(1_000 if is_short else 20_000))
        is_late = rng.random() < 0.5
        taken: list[Batch] = []
        try:
            async with asyncio.timeout(PATIENCE_S), aclosing(self.driver.open()) as stream:
                for _ in range(rng.randrange(1, 8)):
                    async with asyncio.timeout(IDLE_S):
                        taken.append(await anext(stream))
                    if not is_late and rng.random() < 0.8:
                        self._commit(taken)
        except (SourceUnavailable, TimeoutError):
            pass
        if is_late:
            # The connection has ended, and a commit that was on its way comes through all the same.
            self._commit(taken[: rng.randint(0, len(taken))])

    def _commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.landed += batch.split()
            self.driver.commit(batch)
        batches.clear()


@asynccontextmanager
async def reading(
    driver: ConnectorDriver, count: int, *, commit: bool = True
) -> AsyncIterator[asyncio.Task[None]]:
    """A connection that has subscribed and takes this many records; at the end they are here."""
    before, wanted = driver.connected, len(driver.records) + count
    async with aclosing(driver.open()) as stream:
        task = asyncio.ensure_future(driver.pull(stream, count=wanted, commit=commit))
        try:
            await until(lambda: driver.connected > before or task.done())
            yield task
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])
