"""The redis connector against the embedded Valkey: positions, records, gaps, and what it says of trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from feedq.connectors.redis import RedisConnector
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.local.valkey import Valkey
from feedq.telemetry.logs import LogEvent
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import Relay, serving, until
from tests.contract.erratic import SHORT_LIVES, ErraticWorker
from tests.contract.loopback import assert_told

__all__ = ["source"]


# -- positions -------------------------------------------------------------------------------------------------


async def test_each_of_several_streams_is_resumed_after_its_own_cursor(source: Source) -> None:
    source.add("a", b"1", b"2")
    source.add("b", b"3")
    driver = source.driver("a", "b", "absent")
    await driver.land(3)
    assert (driver.connected, driver.waiting) == (1, [])
    assert [key for key, _ in driver.noticed] == ["stream:absent"]
    assert isinstance(driver.cursor, dict)
    assert set(driver.cursor) == {"a", "b"}
    source.add("b", b"4")
    source.add("absent", b"5")
    source.add("a", b"6")
    await driver.land(6)
    assert sorted(driver.records) == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_while_none_of_its_streams_is_there_a_feed_says_what_it_waits_for(source: Source) -> None:
    driver = source.driver("orders")
    async with aclosing(driver.open()) as stream:
        reading = asyncio.ensure_future(anext(stream))
        async with asyncio.timeout(20):
            while not driver.waiting:
                await asyncio.sleep(0.001)
            source.add("orders", b"1")
            assert (await reading).split() == (b"1",)
    (said,) = driver.waiting
    assert said.endswith("there is no stream orders yet; waiting for it")


async def test_a_stream_that_is_added_to_a_feed_begins_where_start_says(source: Source) -> None:
    source.add("a", b"1")
    driver = source.driver("a")
    await driver.land(1)
    source.add("b", b"2")
    both = source.driver("a", "b")
    both.cursor = driver.cursor
    await both.land(1)
    assert both.records == [b"2"]


async def test_start_now_leaves_out_what_is_there_and_nothing_after_the_first_commit(source: Source) -> None:
    source.add("a", b"before")
    driver = source.driver("a", start="now")
    stream = driver.open()
    async with aclosing(stream):
        reading = asyncio.ensure_future(anext(stream))
        async with asyncio.timeout(20):
            while not driver.connected:
                await asyncio.sleep(0.001)
        source.add("a", b"1")
        batch = await reading
        driver.take(batch)
        driver.commit(batch)
    source.add("a", b"2")
    await driver.land(2)
    assert driver.records == [b"1", b"2"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_worker_that_dies_at_any_moment_lands_each_entry_once(source: Source, seed: int) -> None:
    sent = [b'{"seq": %d}' % seq for seq in range(2_000)]

    async with relayed(source) as relay:
        worker = ErraticWorker(source.driver("a", where=relay.where, count=40), relay, seed=seed)
        source.add("a", *sent)
        await worker.land(len(sent))
        assert worker.landed == sent
        assert worker.lives > SHORT_LIVES


# -- gaps ------------------------------------------------------------------------------------------------------


async def test_entries_that_were_trimmed_before_they_were_read_are_told(source: Source) -> None:
    first, *_ = source.add("a", b"1", b"2", b"3")
    driver = source.driver("a")
    driver.cursor = {"a": first.decode()}
    source.client.xtrim("a", maxlen=1, approximate=False)
    with capture_logs() as logs:
        await driver.land(1)
    assert driver.records == [b"3"]
    (gap,) = gaps(logs)
    assert first.decode() in gap
    assert "trimmed" in gap


async def test_entries_that_are_trimmed_while_the_sink_holds_the_feed_back_are_told(source: Source) -> None:
    source.add("a", *[b"%d" % n for n in range(100)])
    driver = source.driver("a", count=10)
    with capture_logs() as logs:
        async with aclosing(driver.open()) as stream:
            await driver.pull(stream, count=10)
            source.client.xtrim("a", maxlen=5, approximate=False)
            # What was under way already still comes; then the gap.
            await driver.pull(stream, count=25)
    assert len(gaps(logs)) == 1
    assert driver.records[-5:] == [b"95", b"96", b"97", b"98", b"99"]


@pytest.mark.parametrize("while_connected", [False, True])
async def test_a_stream_that_was_made_anew_is_read_from_its_beginning(
    source: Source, while_connected: bool
) -> None:
    def make_anew() -> None:
        source.client.delete("a")
        source.add("a", b"1", id="5-1")
        source.add("a", b"2", id="8-1")

    source.add("a", b"old", id="9-0")
    source.add("b", b"other", id="9-0")
    driver = source.driver("a", "b", idle_timeout_s=4.0)
    with capture_logs() as logs:
        if while_connected:
            async with aclosing(driver.open()) as stream:
                await driver.pull(stream, count=2)
                make_anew()
                await driver.pull(stream, count=4)
        else:
            await driver.land(2)
            make_anew()
            await driver.land(4)
    assert driver.records[2:] == [b"1", b"2"]
    assert driver.cursor == {"a": "8-1", "b": "9-0"}
    assert gaps(logs) == [
        "its last id 8-1 is before the cursor 9-0: it was recreated, and is read from its beginning"
    ]


async def test_a_stream_that_is_trimmed_behind_its_reader_is_no_gap(source: Source) -> None:
    driver = source.driver("a")
    with capture_logs() as logs:
        async with aclosing(driver.open()) as stream:
            for n in range(5):
                reading = asyncio.ensure_future(driver.pull(stream, count=n + 1))
                source.add("a", b"%d" % n, maxlen=1, approximate=False)
                await reading
        source.add("a", b"5")
        await driver.land(6)
    assert gaps(logs) == []
    assert len(driver.records) == 6


async def test_entries_that_others_delete_are_counted_as_missed_only_if_they_were_not_read(
    source: Source,
) -> None:
    driver = source.driver("a")
    with capture_logs() as logs:
        source.add("a", b"0")
        async with aclosing(driver.open()) as stream:
            await driver.pull(stream, count=1)
            await until(lambda: source.client.info("clients")["blocked_clients"] > 0)
            # The command that waits is answered with the first, and the second is all that the next one finds.
            source.add("a", b"1", b"2")
            source.client.xtrim("a", maxlen=1, approximate=False)
            await driver.pull(stream, count=3)
            assert gaps(logs) == []
            await until(lambda: source.client.info("clients")["blocked_clients"] > 0)
            source.add("a", b"3", b"missed", b"5")
            source.client.xtrim("a", maxlen=1, approximate=False)
            await driver.pull(stream, count=5)
    assert driver.records == [b"0", b"1", b"2", b"3", b"5"]
    (gap,) = gaps(logs)
    assert gap.startswith("1 entry was trimmed or deleted without having been read")


# -- records ---------------------------------------------------------------------------------------------------


async def test_an_entry_becomes_an_object_of_its_fields(source: Source) -> None:
    source.client.xadd("a", {"price": "1.50", "näme": "\n"})
    source.client.xadd("a", {"blob": b"\xff\x00"})
    source.client.execute_command("XADD", "a", "*", "tag", "x", "tag", "y", "tag", "z")
    driver = source.driver("a", field=None)
    await driver.land(3)
    assert driver.records == [
        '{"price":"1.50","näme":"\\n"}'.encode(),
        b'{"blob_base64":"/wA="}',
        b'{"tag":["x","y","z"]}',
    ]


async def test_a_batch_of_large_entries_is_held_small(source: Source) -> None:
    size, buffer_bytes = 20_000, 100_000
    source.add("a", *[b"%06d" % n + b"x" * (size - 6) for n in range(200)])
    driver = source.driver("a", buffer_bytes=buffer_bytes)
    await driver.land(200)
    # The first two were asked for before any size was known.
    assert max(batch.size for batch in driver.batches[2:]) <= buffer_bytes + size
    assert len(driver.records) == 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"password": "wrong-s3cret"}, "credentials refused"),
        ({"username": "nobody"}, "credentials refused"),
        ({"username": None, "password": None}, "credentials refused"),
        ({"streams": ["a", "no-stream"]}, "Operation against a key holding the wrong kind of value"),
    ],
)
async def test_what_only_an_edit_can_mend_fails_the_feed(
    source: Source, options: dict[str, Any], says: str
) -> None:
    source.client.set("no-stream", "x")
    error = await source.driver("a", **options).read()
    assert_told(error, FeedMisconfigured, says)
    assert "s3cret" not in str(error)


@pytest.mark.parametrize("rules", [("+@all", "-xread", "~*"), ("+@all", "-xinfo", "~*"), ("+@all", "~other")])
async def test_a_user_without_the_permission_fails_the_feed(source: Source, rules: tuple[str, ...]) -> None:
    source.allow(*rules)
    assert_told(await source.driver("a").read(), FeedMisconfigured, "permission")


async def test_a_user_who_may_not_name_its_connection_reads_all_the_same(source: Source) -> None:
    source.allow("+xread", "+xrange", "+xinfo", "+select", "~a")
    source.add("a", b"1")
    await source.driver("a").land(1)


async def test_a_server_that_is_still_loading_is_tried_again() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" * 2)
            await writer.drain()

    async with serving(script) as port:
        driver = ConnectorDriver(RedisConnector, {"url": f"redis://127.0.0.1:{port}", "streams": ["a"]})
        assert_told(await driver.read(), SourceUnavailable, "loading")


# -- the server and its user -------------------------------------------------------------------------

DATABASE = 8


class Source:
    """A database of the server, with a user for the feed."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        # Its types leave open whether answers are decoded, and some commands without types.
        self.client: Any = server.client(DATABASE)
        self.client.flushdb()
        self.allow("+@all", "~*")

    def allow(self, *rules: str) -> None:
        self.client.acl_deluser("reader")
        self.client.execute_command("ACL", "SETUSER", "reader", "on", ">secret-of-reader", *rules)

    def add(self, stream: str, *records: bytes, **how: Any) -> list[bytes]:
        return [self.client.xadd(stream, {"data": record}, **how) for record in records]

    def driver(
        self, *streams: str, where: str = "", scheme: str = "redis", **options: Any
    ) -> ConnectorDriver:
        source = {
            "url": f"{scheme}://{where or f'127.0.0.1:{self.server.port}'}/{DATABASE}",
            "streams": streams,
            "field": "data",
            "username": "reader",
            "password": "secret-of-reader",
        }
        return ConnectorDriver(RedisConnector, {**source, **options})


@pytest.fixture
def source(valkey: Valkey) -> Iterator[Source]:
    made = Source(valkey)
    yield made
    made.client.close()


@asynccontextmanager
async def relayed(source: Source) -> AsyncIterator[Relay]:
    async with Relay(f"127.0.0.1:{source.server.port}").listening() as relay:
        yield relay


def gaps(logs: Any) -> list[str]:
    return [line["detail"] for line in logs if line["event"] == LogEvent.SOURCE_GAP]
