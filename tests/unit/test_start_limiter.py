"""Feeds that begin together reach their sources one after the other, not all at the end."""

from __future__ import annotations

import asyncio

from feedq.worker.pacing import StartLimiter

FEEDS = 200
STEPS = 5


async def test_the_first_are_done_long_before_the_last() -> None:
    start_limiter, done, steps = StartLimiter(), [], 0

    async def begin(feed: int) -> None:
        nonlocal steps
        await start_limiter.turn()
        for _ in range(STEPS):
            steps += 1
            await asyncio.sleep(0)  # a turn of the loop
        done.append((feed, steps))

    await asyncio.gather(*(begin(feed) for feed in range(FEEDS)))
    assert [feed for feed, _ in done] == list(range(FEEDS))
    halfway = done[FEEDS // 2][1]
    assert halfway < 0.7 * FEEDS * STEPS, "half of them took nearly all of the work"
