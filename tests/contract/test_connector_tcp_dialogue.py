"""What the tcp connector says to a source: several hellos, what they expect, and answers to pings."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from feedq.connectors.wire.connection import UNSENT_BYTES_MAX
from feedq.errors import FeedMisconfigured, SourceUnavailable
from tests.contract.loopback import PATIENCE_S, Harness, records_of, serving, until_closed


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


# -- hello ---------------------------------------------------------------------------------------------


async def test_hellos_are_sent_in_their_order() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(b'LOGIN "acme/orders"\nFROM 17\n')))
        await writer.drain()

    async with serving(script) as port:
        source = {"hello": [r"LOGIN {name}\n", r"FROM {cursor}\n"], "format": "text"}
        batches, _ = await Harness().read_to_end(url(port), after=17, **source)
    assert records_of(batches) == [b'LOGIN "acme/orders"', b"FROM 17"]


async def test_what_a_hello_expects_is_waited_for_and_is_no_record() -> None:
    harness = Harness()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for crumb in (b"Welcome!\nlog", b"in: "):
            writer.write(crumb)
            await writer.drain()
        assert await reader.readline() == b"guest\n"
        assert not harness.connected.is_set()
        writer.write(b"ok\r\n1\n2\n")
        await writer.drain()

    async with serving(script) as port:
        hello = [{"expect": "login: "}, {"send": r"guest\n", "expect": r"ok\r\n"}]
        batches, error = await harness.read_to_end(url(port), hello=hello)
    assert records_of(batches) == [b"1", b"2"]
    assert harness.connected.is_set()
    assert str(error) == f"{url(port)}: closed by the peer"


@pytest.mark.parametrize(
    ("said", "shown"),
    [(b"", "nothing"), (b"bad login\n", r"'bad login\n'"), (b"x" * 900, f"'{'x' * 200}'…")],
)
async def test_a_source_that_says_something_else_is_quoted(said: bytes, shown: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(b"guest"))
        writer.write(said)
        await writer.drain()

    harness = Harness()
    async with serving(script) as port:
        batches, error = await harness.read_to_end(url(port), hello=[{"send": "guest", "expect": "ok"}])
    assert batches == []
    assert isinstance(error, SourceUnavailable)
    assert str(error) == (f"{url(port)}: closed by the peer; source.hello expects 'ok', and it said {shown}")
    assert not harness.connected.is_set()


@pytest.mark.parametrize("cut", [12, 150, 240, 400])
async def test_of_a_source_that_echoes_a_secret_no_part_is_quoted(
    monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    secret = "".join(f"s3cret-{number:03}" for number in range(30))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readuntil(b"!")
        writer.write(said[:cut])
        await writer.drain()

    monkeypatch.setenv("TOKEN", secret)
    async with serving(echo) as port:
        hello = [{"send": "auth {token}!", "expect": "ok"}]
        _, error = await Harness().read_to_end(url(port), hello=hello, secrets={"token": "${env:TOKEN}"})
    assert "and it said 'auth ***" in str(error)
    assert "s3cret" not in str(error)


async def test_a_source_that_never_says_what_is_expected_is_given_up() -> None:
    async def keep_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await until_closed(reader)

    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    hello = [{"send": "guest", "expect": "ok"}]
    async with serving(keep_silent) as port:
        _, error = await Harness().read_to_end(url(port), hello=hello, connect_timeout_s=0.05)
        assert str(error) == (
            f"{url(port)}: no answer within 0.05 s (source.connect_timeout_s); "
            "source.hello expects 'ok', and it said nothing"
        )
    async with serving(babble) as port:
        _, error = await Harness().read_to_end(url(port), hello=hello)
        assert "no answer in its first 65536 bytes; source.hello expects 'ok', and it said 'xxx" in str(error)


# -- pings ---------------------------------------------------------------------------------------------


async def test_pings_are_answered_and_do_not_land() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in (1, 2):
            writer.write(b'{"seq": %d}\nPING %d\n' % (n, n))
            assert await reader.readline() == b"PONG %d\n" % n
        # One that is alone makes no batch.
        writer.write(b"PING 3\n")
        assert await reader.readline() == b"PONG 3\n"

    ping = {"prefix": "PING ", "answer": r"PONG {rest}\n"}
    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port), ping=ping, cursor="/seq")
    assert [batch.split() for batch in batches] == [(b'{"seq": 1}',), (b'{"seq": 2}',)]
    assert batches[-1].cursor == 2
    assert str(error) == f"{url(port)}: closed by the peer"


async def test_a_source_that_never_reads_the_answers_is_left_in_bounded_memory() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"PING\n" * 1_000)
            await writer.drain()

    ping = {"prefix": "PING", "answer": "PONG" * 100}
    async with serving(script) as port:
        _, error = await Harness().read_to_end(url(port), ping=ping, buffer_bytes=1_000)
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"{url(port)}: does not read the answers that it gets"
    assert UNSENT_BYTES_MAX < 2**20


# -- other framings and formats ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("order", ["big", "little"])
async def test_binary_records_come_after_their_length(size: int, order: Any) -> None:
    records = [b"\n\0\r\n", b"x" * 255, bytes(range(200))]

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for record in [*records, b""]:
            writer.write(len(record).to_bytes(size, order) + record)
            await writer.drain()

    source = {"framing": "length", "length_bytes": size, "length_order": order, "format": "bytes"}
    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port), **source)
    assert records_of(batches) == records
    assert str(error) == f"{url(port)}: closed by the peer"


async def test_a_length_that_cannot_be_one_fails_the_feed_after_what_came_before() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'\0\x09{"n":1}\0\1')
        await until_closed(reader)

    framing = {"framing": "length", "length_bytes": 2, "length_counts_itself": True}
    source: dict[str, Any] = {**framing, "cursor": "/n"}
    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port), **source)
    assert records_of(batches) == [b'{"n":1}']
    assert isinstance(error, FeedMisconfigured)
    assert str(error).startswith(f"{url(port)}: what should be the length of a record after cursor 1")


async def test_header_lines_of_csv_do_not_land() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"id,price\r\n1,2.5\r\nid,price\r\n2,3\r\n")
        await writer.drain()

    csv = {"fields": ["id", "price"], "header": True}
    async with serving(script) as port:
        batches, _ = await Harness().read_to_end(url(port), format="csv", csv=csv)
    assert records_of(batches) == [b"1,2.5", b"2,3"]


async def test_stopping_while_an_answer_is_expected_ends_at_once() -> None:
    closed = asyncio.Event()
    greeted = asyncio.Event()
    harness = Harness()

    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        greeted.set()
        await until_closed(reader)
        closed.set()

    async def consume(port: int) -> None:
        hello = [{"send": "guest", "expect": "ok"}]
        async with aclosing(harness.connector(url(port), hello=hello).stream(None)) as stream:
            await anext(stream)

    async with serving(script) as port, asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(consume(port))
        await greeted.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not harness.guard.watched
        await closed.wait()
