"""A feed whose sink goes back while it runs."""

from __future__ import annotations

from uuid import uuid4

import pytest

from feedq.core.model import Reason
from feedq.worker.runner import Interrupt
from tests.fakes.sink import MemoryCheckpoint, MemoryTables
from tests.live.test_runner import Bench, numbered_source, options
from tests.unit.data_path import DataPath


@pytest.mark.parametrize("gone", [False, True])
async def test_a_sink_that_went_back_is_gone_on_with_from_the_cursor_that_it_has(gone: bool) -> None:
    """Rows and checkpoint went back together: what is missing is asked for again, and nothing else."""
    tables = MemoryTables()
    async with numbered_source() as source:
        with DataPath(tables) as path:
            bench = Bench(path, options(source))
            bench.start()
            await bench.landed_at_least(20)
            with tables.lock:
                kept = 0 if gone else 5
                del tables.rows["acme/orders"][kept:]
                if gone:
                    del tables.checkpoints[1]
                else:
                    tables.checkpoints[1] = MemoryCheckpoint(
                        1, path.worker_id, cursor=bench.landed[-1], commit_id=uuid4()
                    )
            await bench.landed_at_least(40)
            progress = bench.runner.progress.report()
            bench.runner.interrupt(Interrupt.STOP)
            assert await bench.end() is not None
    first = bench.landed[0]
    assert bench.landed == list(range(first, first + len(bench.landed)))
    assert progress.rewind is not None
    rewind = progress.rewind
    assert (rewind.sink, rewind.found_at) == ("default", None if gone else first + 4)
    assert isinstance(rewind.left_at, int)
    assert rewind.left_at >= first + 19
    # What has landed twice was counted twice, and nothing was counted down.
    assert progress.records >= 40
    assert bench.runner.progress.report().rewind is None


async def test_an_owner_whose_epoch_was_given_out_twice_gives_way() -> None:
    tables = MemoryTables()
    async with numbered_source() as source:
        with DataPath(tables) as path:
            bench = Bench(path, options(source))
            bench.may_raise = False
            bench.start()
            await bench.landed_at_least(5)
            with tables.lock:
                tables.checkpoints[1] = MemoryCheckpoint(1, uuid4(), cursor=0, commit_id=uuid4())
                landed = len(bench.landed)
            release = await bench.end()
    assert release is not None
    assert release.reason is Reason.FENCED
    assert len(bench.landed) == landed
