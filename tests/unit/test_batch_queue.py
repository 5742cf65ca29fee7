"""What a writer answers when the loops that wait for it come and go, as on Celery's thread pool."""

from __future__ import annotations

import asyncio

from tests.unit.data_path import LIMIT_S, DataPath, batch
from tests.waiting import until


def test_batches_of_a_loop_that_is_gone_do_not_burden_the_worker_for_ever() -> None:
    with DataPath() as path:
        path.file.away = True

        async def leave_one_behind() -> None:
            await path.open_batch_queue((1, 1), "a").put(batch(b"ten bytes.", cursor=1))

        asyncio.run(leave_one_behind())
        assert path.budget.bytes == 10
        path.file.away = False
        until(lambda: path.budget.bytes == 0, "the budget is free")


async def test_a_connection_that_reads_ahead_never_stops_a_feed_for_good() -> None:
    with DataPath(budget=100, flush_interval_s=0.0) as path:
        path.budget.take(100)
        batch_queue = path.open_batch_queue((1, 1), "a")
        async with asyncio.timeout(LIMIT_S):
            for n in range(20):
                await batch_queue.put(batch(b"x" * 90, cursor=n))
            await batch_queue.join()
        assert len(path.file.rows["a"]) == 20
