"""The file connector: nothing is lost and nothing comes twice, however a file is rotated and whoever stops."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from feedq.connectors import file
from feedq.connectors.file import FileConnector
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch
from feedq.records.framing import BYTE_ORDER_MARK
from feedq.telemetry.logs import LogEvent
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import PATIENCE_S, until
from tests.contract.loopback import assert_told

FAST = {"poll_interval_s": 0.01, "rotate_wait_s": 0.05, "missing_timeout_s": 0.2, "format": "text"}
PAD = b"x" * 60


def append(path: Path, *records: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(b"".join(record + b"\n" for record in records))


def numbered(*numbers: int) -> list[bytes]:
    """Records long enough that a few of them tell a file from others."""
    return [b"%d %s" % (number, PAD) for number in numbers]


def driver_of(path: Path, **source: Any) -> ConnectorDriver:
    return ConnectorDriver(FileConnector, {**FAST, "path": str(path), **source})


async def read_until(driver: ConnectorDriver, count: int) -> None:
    """One connection, ended when that many records are here."""
    assert await driver.read(count=count) is None


async def read_across(
    driver: ConnectorDriver, change: Callable[[], None], *, first: int, then: int, while_followed: bool
) -> None:
    """Read so many records, change the file, and read on until so many are here: in one connection, or in two."""
    if not while_followed:
        await read_until(driver, first)
        change()
        await read_until(driver, then)
        return
    async with following(driver) as until_records:
        await until_records(first)
        change()
        await until_records(then)


@asynccontextmanager
async def following(driver: ConnectorDriver) -> AsyncIterator[Callable[[int], Coroutine[Any, Any, None]]]:
    """Follow; the function waits until that many records are here."""
    stream: AsyncGenerator[Batch, None]
    async with aclosing(driver.open()) as stream:
        yield lambda count: driver.pull(stream, count=count)


generation = count(1)


def rotate(path: Path, *, generations: int = 9) -> None:
    """As logrotate does it by renaming, but for the new file."""
    # A test rotates faster than file systems tell times apart, so they are put seconds apart, in the past.
    os.utime(path, (0, next(generation)))
    for n in range(generations, 0, -1):
        older = Path(f"{path}.{n}")
        if older.exists():
            older.rename(f"{path}.{n + 1}")
    path.rename(f"{path}.1")


# -- where it begins and ends --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "first"),
    [(b"1\n2\n", b"3"), (b"1\n2\n3", b"33"), (b"3", b"33"), (b"", b"3"), (b"1\n" + b"y" * 2_000, b"3")],
)
async def test_started_at_the_end_it_gives_whole_records_that_come_later(
    tmp_path: Path, content: bytes, first: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)

    driver = driver_of(path, start="end", max_record_bytes=1_000)
    async with following(driver) as until_records:
        both = asyncio.ensure_future(until_records(2))
        await until(lambda: driver.connected == 1)
        append(path, b"3", b"4")
        await both
    assert driver.records == [first, b"4"]


async def test_a_missing_file_is_waited_for_and_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "later" / "log"

    driver = driver_of(path, start="end", missing_timeout_s=PATIENCE_S)

    async def appear() -> None:
        # To see that nothing happens takes a moment.
        await asyncio.sleep(0.1)
        assert driver.connected == 0
        # Told at once, and not with each look.
        assert driver.waiting == [f"{path}: there is no such file on this worker yet; waiting for it"]
        path.parent.mkdir()
        append(path, b"1")

    async with following(driver) as until_records, asyncio.TaskGroup() as group:
        group.create_task(appear())
        await until_records(1)
    assert driver.connected == 1


async def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        error = await driver_of(path).read()
        assert isinstance(error, FeedMisconfigured)
        assert str(error).startswith(f"{path} is not a regular file")


async def test_a_record_over_the_limit_is_resumed_at_once_the_limit_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"1", b"2" * 100, b"3")

    driver = driver_of(path, max_record_bytes=50)
    error = await driver.read()
    assert isinstance(error, FeedMisconfigured)
    assert driver.records == [b"1"]
    raised = driver_of(path)
    raised.cursor = driver.cursor
    await read_until(raised, 2)
    assert raised.records == [b"2" * 100, b"3"]


# -- rotation by renaming ------------------------------------------------------------------------------


async def test_a_new_file_with_the_old_inode_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"old 1", b"old 2")

    driver = driver_of(path)
    await read_until(driver, 2)
    driver.records.clear()
    # In place, so that the inode stays: what may happen when a file is deleted and made anew.
    path.write_bytes(b"new 1\nnew 2\nnew 3\n")
    with capture_logs() as logs:
        await read_until(driver, 3)
    assert driver.records == [b"new 1", b"new 2", b"new 3"]
    assert any(line["event"] == LogEvent.SOURCE_GAP for line in logs)


# -- rotation by copying and truncating ----------------------------------------------------------------


@pytest.mark.parametrize("while_followed", [True, False])
async def test_what_was_not_read_of_a_truncated_file_is_read_from_its_copy(
    tmp_path: Path, while_followed: bool
) -> None:
    path = tmp_path / "log"
    append(path, *numbered(*range(50)))

    def copy_and_truncate() -> None:
        append(path, *numbered(50, 51))
        shutil.copy(path, f"{path}.1")
        os.truncate(path, 0)
        append(path, *numbered(52))

    driver = driver_of(path)
    with capture_logs() as logs:
        await read_across(driver, copy_and_truncate, first=50, then=53, while_followed=while_followed)
    assert driver.records == numbered(*range(53))
    assert not [line for line in logs if line["event"] == LogEvent.SOURCE_GAP]


@pytest.mark.parametrize("grown_to", [1, 100])
async def test_a_truncated_file_without_a_copy_is_read_anew_and_the_log_says_so(
    tmp_path: Path, grown_to: int
) -> None:
    path = tmp_path / "log"
    append(path, *numbered(*range(50)))

    driver = driver_of(path)
    with capture_logs() as logs:
        async with following(driver) as until_records:
            await until_records(50)
            path.write_bytes(b"".join(line + b"\n" for line in numbered(*range(100, 100 + grown_to))))
            await until_records(50 + grown_to)
    assert driver.records == numbered(*range(50), *range(100, 100 + grown_to))
    assert [line["source"] for line in logs if line["event"] == LogEvent.SOURCE_GAP] == [str(path)]


# -- written anew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("while_followed", [True, False])
@pytest.mark.parametrize("rest", [b"", b"49 and the beginning of"])
async def test_a_copy_with_more_in_the_place_of_a_file_goes_on_where_that_was_read(
    tmp_path: Path, while_followed: bool, rest: bytes
) -> None:
    """As rsync and editors write a file: a new one, renamed over the old one."""
    path = tmp_path / "log"
    append(path, *numbered(*range(50)))
    with path.open("ab") as file:
        file.write(rest)

    def replace() -> None:
        anew = tmp_path / "anew"
        shutil.copy(path, anew)
        append(anew, b" a record" if rest else b"50", *numbered(51))
        anew.rename(path)

    driver = driver_of(path)
    await read_across(driver, replace, first=50, then=52, while_followed=while_followed)
    assert driver.records == [*numbered(*range(50)), rest + b" a record" if rest else b"50", *numbered(51)]


# -- what is no record -------------------------------------------------------------------------------------


@pytest.mark.parametrize("record_format", ["text", "json", "csv"])
async def test_a_byte_order_mark_at_the_beginning_of_a_file_is_no_data(
    tmp_path: Path, record_format: str
) -> None:
    path = tmp_path / "log"
    source = {"format": record_format} | ({"csv": {"fields": ["n"]}} if record_format == "csv" else {})
    driver = driver_of(path, **source)
    path.write_bytes(BYTE_ORDER_MARK[:2])
    async with following(driver) as until_records:
        first = asyncio.ensure_future(until_records(1))
        await until(lambda: bool(driver.connected))
        path.write_bytes(BYTE_ORDER_MARK + b"1\n")
        await first
    with path.open("ab") as file:
        file.write(BYTE_ORDER_MARK + b"2\n")
    await read_until(driver, 2)
    assert driver.records == [b"1", BYTE_ORDER_MARK + b"2"]


async def test_bytes_keep_what_looks_like_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, BYTE_ORDER_MARK + b"1")
    driver = driver_of(path, format="bytes")
    await read_until(driver, 1)
    assert driver.records == [BYTE_ORDER_MARK + b"1"]


async def test_a_last_line_without_an_end_is_told_until_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "UNFINISHED_S", 0.1)
    path = tmp_path / "log"
    path.write_bytes(b"1\n2")
    driver = driver_of(path)
    async with following(driver) as until_records:
        await until_records(1)
        await until(lambda: driver.noticed[-1:] not in ([], [("unfinished", None)]))
        assert "its last 1 bytes are an unfinished record" in str(driver.noticed[-1][1])
        append(path, b"2")
        await until_records(2)
        await until(lambda: driver.noticed[-1] == ("unfinished", None))
    assert driver.records == [b"1", b"22"]


# -- all of it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_many_rotations_and_restarts_lose_nothing_and_double_nothing(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "log"
    rng = Random(seed)
    append(path, *numbered(0))

    async def write(total: int) -> None:
        written = 1
        while written < total:
            batch = numbered(*range(written, min(total, written + rng.randrange(1, 40))))
            written += len(batch)
            append(path, *batch)
            match rng.randrange(4):
                case 0:
                    rotate(path, generations=500)
                    path.touch()
                case 1:
                    await asyncio.sleep(rng.random() * 0.03)

    # Nobody writes to a file that was renamed, so nothing needs to be waited for.
    driver = driver_of(path, rotate_wait_s=0)
    # What was rotated before the first look is none of the feed's.
    await read_until(driver, 1)
    async with asyncio.timeout(4 * PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(write(1_000))
        while len(driver.records) < 1_000:
            wanted = min(1_000, len(driver.records) + rng.randrange(1, 100))
            await read_until(driver, wanted)
    assert driver.records == numbered(*range(1_000))


def at_call(monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[], None]) -> None:
    """Changes something right after a certain look at the file system has been answered, before it is used."""
    left = count(number, -1)
    real = {name: getattr(os, name) for name in ("scandir", "stat", "fstat", "pread")}

    def looking(name: str) -> Callable[..., Any]:
        def look(*given: Any, **named: Any) -> Any:
            answer = real[name](*given, **named)
            if next(left) == 0:
                change()
            return answer

        return look

    for name in real:
        monkeypatch.setattr(os, name, looking(name))


@pytest.mark.parametrize("number", range(1, 25))
def test_the_next_file_is_found_whenever_files_are_rotated_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "log"
    append(path, *numbered(*range(1, 40)))
    followed = file.FollowedFile(str(path), driver_of(path).options)  # type: ignore[arg-type]
    followed.read()
    position = followed.position
    rotate(path)
    append(path, *numbered(40))
    following = file.inode_at(str(path))

    def change() -> None:
        monkeypatch.undo()
        rotate(path)
        append(path, *numbered(41))

    at_call(monkeypatch, number, change)
    found = file.open_next(str(path), followed, followed._options)
    monkeypatch.undo()
    assert found is not None
    assert found.inode == following
    at_call(monkeypatch, number, change)
    again = file.find(str(path), position, followed._options)
    assert again is not None
    assert again.inode == followed.inode
    for one in (followed, found, again):
        one.close()


# -- several attempts ----------------------------------------------------------------------------------


async def test_started_at_the_end_what_comes_between_two_attempts_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"old")

    driver = driver_of(path, start="end", idle_timeout_s=0.05)
    patient = driver.options.model_copy(update={"idle_timeout_s": PATIENCE_S})
    assert isinstance(await driver.read(), SourceSilent)
    append(path, b"1")
    driver.options = patient
    await read_until(driver, 1)
    assert driver.records == [b"1"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
async def test_a_file_that_cannot_be_opened_for_now_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "log"
    append(path, *numbered(1, 2))
    works, fails = os.open, 1

    def once(where: Any, *more: Any, **options: Any) -> int:
        nonlocal fails
        if where == str(path) and fails:
            fails -= 1
            raise OSError(number, os.strerror(number), where)
        return works(where, *more, **options)

    driver = driver_of(path)
    await read_until(driver, 2)
    append(path, *numbered(3))
    monkeypatch.setattr(os, "open", once)
    assert isinstance(await driver.read(), SourceUnavailable)
    assert fails == 0
    await read_until(driver, 3)
    assert driver.records == numbered(1, 2, 3)


# -- a header that names the fields of CSV -------------------------------------------------------------

NAMED = {"format": "csv", "csv": {"header": True}}


async def test_a_header_names_the_fields_and_a_feed_that_resumes_later_knows_them(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(BYTE_ORDER_MARK + b'id,"the price",note\r\n7,1.50,"a ""b""\nc"\r\n')
    driver = driver_of(path, **NAMED)
    await read_until(driver, 1)
    append(path, b'007,,""', b'id,"the price",note', b"8,2", b"9,\xff,x")
    await read_until(driver, 4)
    assert driver.records == [
        b'{"id":7,"the price":"1.50","note":"a \\"b\\"\\nc"}',
        b'{"id":"007","the price":null,"note":""}',
        b"8,2",
        b"9,\xff,x",
    ]


async def test_each_file_after_a_rotation_has_a_header_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    append(path, b"id,price", b"1,2")
    driver = driver_of(path, **NAMED)
    async with following(driver) as until_records:
        await until_records(1)
        rotate(path)
        append(path, b"price,id", b"3,4")
        await until_records(2)
    assert driver.records == [b'{"id":1,"price":2}', b'{"price":3,"id":4}']


@pytest.mark.parametrize("header", [b"id,id", b"id," + b"x" * 65, b"\xff,id", b'id,x"y'])
async def test_a_first_line_that_cannot_name_fields_fails_the_feed(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "data.csv"
    append(path, header, b"1,2")
    driver = driver_of(path, **NAMED)
    assert_told(await driver.read(), FeedMisconfigured, "its first line is not a header")
    assert driver.records == []
