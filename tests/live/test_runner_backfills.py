"""How a backfill ends in its worker: at the cursor it was begun for, whoever was killed before."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from feedq.core.model import JSON, FeedBackfill, Reason, Release
from tests.fakes.sink import SinkFile
from tests.live.test_runner import Bench, NumberedSource, numbered_source, options
from tests.unit.data_path import DataPath


def backfill_of(path: DataPath, source: dict[str, Any], *, begin: JSON, end: JSON, **more: Any) -> Bench:
    return Bench(path, source, backfill=FeedBackfill(7, begin, end), **more)


async def ended(bench: Bench) -> Release:
    bench.start()
    return await bench.released()


async def test_it_lands_what_lies_between_under_the_name_of_its_feed_and_is_finished() -> None:
    async with numbered_source() as source:
        with DataPath() as path:
            release = await ended(bench := backfill_of(path, options(source), begin=10, end=200))
    assert (release.reason, release.records) == (Reason.FINISHED, 190)
    assert source.hellos == [{"feed": "acme/orders", "from": 10}]
    assert bench.landed == list(range(11, 201))
    assert path.file.checkpoint(1).cursor == 200


async def test_it_cuts_a_batch_that_goes_beyond_the_end_although_no_record_has_that_cursor() -> None:
    class Sparse(NumberedSource):
        async def serve(self, reader: Any, writer: Any) -> None:
            await reader.readline()
            writer.write(b"".join(b'{"seq": %d}\n' % n for n in (3, 6, 9, 12, 15)) + b'{"seq": 18}\n' * 50)
            await reader.read()

    async with numbered_source(Sparse()) as source:
        with DataPath() as path:
            release = await ended(bench := backfill_of(path, options(source), begin=0, end=10))
    assert (release.reason, release.records) == (Reason.FINISHED, 3)
    assert bench.landed == [3, 6, 9]
    assert path.file.checkpoint(1).cursor == 9


async def test_the_successor_of_who_was_killed_before_the_release_finishes_without_asking_the_source() -> (
    None
):
    file = SinkFile()
    file.put_checkpoint(1, 4, uuid4(), cursor=200, records=190)
    async with numbered_source() as source:
        with DataPath(file) as path:
            release = await ended(bench := backfill_of(path, options(source), begin=10, end=200, epoch=5))
    assert (release.reason, release.records, source.hellos, bench.landed) == (Reason.FINISHED, 190, [], [])


async def test_a_source_that_breaks_off_before_the_end_is_asked_again() -> None:
    async with numbered_source() as source:
        source.count = 40
        with DataPath() as path:
            release = await ended(bench := backfill_of(path, options(source), begin=0, end=100))
    assert (release.reason, bench.landed) == (Reason.FINISHED, list(range(1, 101)))
    assert len(source.hellos) == 3


@pytest.mark.parametrize("at_boundary", [True, False])
async def test_a_file_ends_at_an_offset_and_nothing_after_it_lands(tmp_path: Path, at_boundary: bool) -> None:
    file = tmp_path / "numbers.log"
    lines = [b'{"seq": %d}\n' % n for n in range(1, 3_000)]
    file.write_bytes(b"".join(lines))
    end = len(b"".join(lines[:2_000])) + (0 if at_boundary else 4)
    cursor: dict[str, JSON] = {"inode": file.stat().st_ino, "offset": end, "head": 0}
    with DataPath() as path:
        source = {"path": str(file), "poll_interval_s": 0.01}
        bench = backfill_of(path, source, begin={**cursor, "offset": 0}, end=cursor, connector="file")
        release = await ended(bench)
    assert (release.reason, bench.landed) == (Reason.FINISHED, list(range(1, 2_001)))
