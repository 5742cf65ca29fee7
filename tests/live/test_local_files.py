"""Files that feeds name and that nobody answers for: each delays the feeds that need it, and no others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from feedq.connectors import local_files
from feedq.connectors.local_files import FileReader
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.worker.runner import Interrupt
from tests.live.test_runner import Bench, streaming
from tests.unit.data_path import until

FEEDS = 40
"""More than the threads that an event loop has by itself: 32 at most."""


class Mount:
    """A directory whose server is gone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_back = Event()
        self.readers = 0

    def file(self, number: int = 0) -> str:
        path = self.directory / f"secret-{number}"
        path.write_text("hunter2")
        return str(path)

    def read(self) -> str:
        self.readers += 1
        self.is_back.wait()
        return "read"


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """`os.open`, by which secrets are read, waits for it."""
    (tmp_path / "away").mkdir()
    mount, opened = Mount(tmp_path / "away"), os.open

    def open_or_wait(path: Any, *how: Any, **named: Any) -> int:
        if Path(str(path)).is_relative_to(mount.directory):
            mount.read()
        return opened(path, *how, **named)

    monkeypatch.setattr("feedq.secrets.os.open", open_or_wait)
    monkeypatch.setattr(local_files, "ANSWER_S", 0.2)
    yield mount
    mount.is_back.set()


def of_secret(path: str) -> dict[str, Any]:
    return {"secrets": {"token": f"${{file:{path}}}"}, "hello": '{"token": "{token}", "from": {cursor}}\\n'}


async def test_feeds_whose_secrets_lie_on_a_mount_that_is_away_delay_no_others(
    mount: Mount, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("hunter2")
    async with streaming(asked=of_secret(str(tmp_path / "token")), begins=False) as well:
        source = well.source
        url = {"url": f"tcp://127.0.0.1:{source.port}"}
        waiting = [Bench(well.path, url | of_secret(mount.file(n))) for n in range(FEEDS)]
        for bench in waiting:
            bench.start()
        await until(lambda: mount.readers > 0, "one of them reads")
        well.start()
        await well.landed_at_least(3)
        assert mount.readers == 1
        for bench in waiting:
            bench.runner.interrupt(Interrupt.LOST)
            await bench.end()
        await well.stop()


async def test_a_feed_is_told_which_directory_is_away_and_streams_once_it_is_back(mount: Mount) -> None:
    async with streaming(asked=of_secret(mount.file())) as bench:
        await until(lambda: bench.runner.progress.attempts > 0, "it fails")
        assert bench.runner.progress.error == (
            f"files in {mount.directory} cannot be read on this worker: no answer for 0.2 s"
        )
        mount.is_back.set()
        await bench.landed_at_least(3)
        await bench.stop()


async def test_what_is_asked_of_a_directory_that_is_away_does_not_gather(mount: Mount) -> None:
    files, first = FileReader(), mount.file()
    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            await files.read([first], mount.read)
    assert mount.readers == 1
    mount.is_back.set()
    await until(lambda: not files._directories, "it has answered")
    assert await files.read([first], mount.read) == "read"
    assert mount.readers == 2


async def test_a_line_that_moves_is_waited_for_however_long_it_is(mount: Mount) -> None:
    files, turns = FileReader(), [Event() for _ in range(8)]
    reads = [asyncio.create_task(files.read([mount.file()], turn.wait)) for turn in turns]
    for turn, read in zip(turns, reads, strict=True):
        await asyncio.wait([read], timeout=0.1)  # half of what one may take
        turn.set()
    assert await asyncio.gather(*reads) == [True] * 8


async def test_an_error_of_a_file_is_told(mount: Mount) -> None:
    def refuse() -> None:
        raise FeedMisconfigured("it is empty")

    with pytest.raises(FeedMisconfigured, match="it is empty"):
        await FileReader().read([mount.file()], refuse)


async def test_as_many_directories_as_may_be_are_read_at_a_time(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "THREADS_MAX", 2)
    files = FileReader()
    reads = [files.read([f"{tmp_path}/{n}/secret"], mount.read) for n in range(4)]
    answers = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(answer) for answer in answers] == [SourceUnavailable] * 4
    assert mount.readers == 2
    mount.is_back.set()
    await until(lambda: not files._directories, "those that are left are read")
