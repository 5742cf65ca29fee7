"""Limits of feeds and of tenants on one worker."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from datetime import UTC, datetime

import pytest

from feedq.core.limits import RateLimits
from feedq.records.batch import Batch, Records
from feedq.worker.batch_queue import InflightBudget
from feedq.worker.pacing import WAITING_PART, FeedThrottle, Pacing
from tests.fakes import ManualClock
from tests.live.test_connect_limiter import SkippingClock, SkippingSelector

AT = datetime(2026, 1, 1, tzinfo=UTC)


class PassingSelector(SkippingSelector):
    """Some time passes with each turn: who waits for less than the loop tells apart would wait for ever."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += 1e-9
        return super().select(timeout)


def batch(rows: int) -> Batch:
    return Records(b"x\n" * rows).batch(cursor=None, received_at=AT)


def waits(pace: FeedThrottle, rows: int) -> bool:
    """Whether a feed is held back after taking so many rows."""

    async def keep() -> bool:
        task = asyncio.create_task(pace.keep(batch(rows)))
        await asyncio.sleep(0)
        held = not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return held

    return asyncio.run(keep())


def test_the_feeds_of_a_tenant_share_its_limit_and_leave_others_alone() -> None:
    pacing = Pacing({"acme": RateLimits(rows_per_s=10)}, ManualClock())
    with (
        pacing.of("acme", RateLimits()) as one,
        pacing.of("acme", RateLimits()) as two,
        pacing.of("beta", RateLimits()) as other,
    ):
        assert not waits(one, 6)
        assert waits(two, 6)
        assert waits(one, 0)
        assert not waits(other, 1_000)


def test_the_star_stands_for_each_tenant_that_is_not_named_but_not_for_none() -> None:
    limits = {"acme": RateLimits(rows_per_s=1000), "*": RateLimits(rows_per_s=1)}
    pacing = Pacing(limits, ManualClock())
    with (
        pacing.of("acme", RateLimits()) as named,
        pacing.of("beta", RateLimits()) as beta,
        pacing.of("gamma", RateLimits()) as gamma,
        pacing.of("", RateLimits()) as nobody,
    ):
        assert not waits(named, 100)
        assert not waits(nobody, 100)
        assert waits(beta, 100)
        assert not waits(gamma, 1)


@pytest.mark.parametrize(("running", "rows"), [(4, 25), (1, 100), (0, 100)])
def test_a_worker_keeps_to_its_part_of_a_tenants_limit(running: int, rows: int) -> None:
    clock = ManualClock()
    pacing = Pacing({"acme": RateLimits(rows_per_s=100)}, clock)
    with pacing.of("acme", RateLimits()) as pace:
        assert pacing.limited_tenants() == ["acme"]
        pacing.share({"acme": running})
        assert not waits(pace, rows)
        assert waits(pace, 1)


def test_feeds_of_a_tenant_come_by_turns_whoever_wakes_first() -> None:
    """All wait for the same debt: the one that happens to wake first must not take again before the others."""
    clock = SkippingClock(PassingSelector())
    pacing = Pacing({"acme": RateLimits(rows_per_s=2_000)}, clock)
    taken = Counter[int]()

    async def take(number: int) -> None:
        with pacing.of("acme", RateLimits()) as pace:
            while True:
                taken[number] += 1
                await pace.keep(batch(50))

    async def run() -> None:
        feeds = [asyncio.create_task(take(number)) for number in range(8)]
        while taken.total() < 76:
            await asyncio.sleep(0.01)
        for task in feeds:
            task.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)

    with asyncio.Runner(loop_factory=clock.loop) as runner:
        runner.run(run())
    # What a bucket has saved up at the beginning goes to whoever is there first.
    later = [count for number, count in taken.items() if number > 0]
    assert max(later) - min(later) <= 2, taken


async def test_feeds_that_wait_keep_a_small_part_of_the_workers_memory_between_them() -> None:
    clock = ManualClock()
    budget = InflightBudget(1_000)
    pacing = Pacing({"acme": RateLimits(rows_per_s=1)}, clock, room_bytes=1_000)
    with (
        pacing.of("acme", RateLimits()) as one,
        pacing.of("", RateLimits(rows_per_s=1)) as two,
        pacing.of("", RateLimits()) as free,
    ):
        rooms = [one.room(budget), two.room(budget), free.room(budget)]
        assert [room.left for room in rooms] == [1_000] * 3
        waiting = [asyncio.create_task(pace.keep(batch(2))) for pace in (one, two)]
        await asyncio.sleep(0)
        part = int(1_000 * WAITING_PART) // 2
        assert [room.left for room in rooms] == [part, part, 1_000]
        rooms[0].take(part)
        assert [room.left for room in rooms] == [0, part, 1_000 - part]
        budget.take(950)
        assert [room.left for room in rooms] == [-75, -75, -75]
        budget.give_back(950)
        # Its turn has come: it may read as much as any other.
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert rooms[0].left == 1_000 - part
        rooms[0].give_back(part)
        assert budget.bytes == 0
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
