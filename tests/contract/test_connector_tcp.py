"""The tcp connector against real sockets: its dialogue with a source, framing, bounds and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from feedq.connectors.tcp import TcpConnector
from feedq.core.model import Batch
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.testing.loopback import serving
from tests.contract.loopback import Feed, records_of, until_closed

HELLO = r'{"feed": {name}, "from": {cursor}, "token": "{token}"}\n'


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def says(data: bytes, *, stays: bool = False) -> Callable[..., Awaitable[None]]:
    """A source that sends this and, unless it ``stays``, closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if stays:
            await until_closed(reader)

    return script


async def ended(script: Callable[..., Awaitable[None]], **source: Any) -> tuple[list[Batch], FeedqError, str]:
    """What is read from a source, the error that ends it, and the source's name in messages."""
    async with serving(script) as port:
        batches, error = await Feed(TcpConnector).read_to_end(url(port), **source)
    return batches, error, url(port)


# -- hello ---------------------------------------------------------------------------------------------


async def test_hello_carries_name_cursor_and_secret_and_records_come_back() -> None:
    hellos = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.readline())
        writer.write(b'{"seq": 18}\r\n\n{"seq": 19}\n')
        await writer.drain()

    feed = Feed(TcpConnector, secrets={"token": "s3cret"})
    async with serving(script) as port:
        batches, error = await feed.read_to_end(url(port), after=17, hello=HELLO, cursor="/seq")
    assert hellos == [b'{"feed": "acme/orders", "from": 17, "token": "s3cret"}\n']
    assert records_of(batches) == [b'{"seq": 18}', b'{"seq": 19}']
    assert batches[-1].cursor == 19
    assert str(error) == f"{url(port)}: closed by the peer"


async def test_what_a_hello_expects_is_waited_for_and_is_no_record() -> None:
    feed = Feed(TcpConnector)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for crumb in (b"Welcome!\nlog", b"in: "):
            writer.write(crumb)
            await writer.drain()
        assert await reader.readline() == b"guest\n"
        assert not feed.connected
        writer.write(b"ok\r\n1\n2\n")
        await writer.drain()

    async with serving(script) as port:
        hello = [{"expect": "login: "}, {"send": r"guest\n", "expect": r"ok\r\n"}]
        batches, error = await feed.read_to_end(url(port), hello=hello)
    assert records_of(batches) == [b"1", b"2"]
    assert feed.connected
    assert str(error) == f"{url(port)}: closed by the peer"


@pytest.mark.parametrize(
    ("said", "shown"),
    [(b"", "nothing"), (b"bad login\n", r"'bad login\n'"), (b"x" * 900, f"'{'x' * 200}'…")],
)
async def test_a_source_that_says_something_else_is_quoted(said: bytes, shown: str) -> None:
    batches, error, where = await ended(says(said), hello=[{"expect": "ok"}])
    assert batches == []
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"{where}: closed by the peer; source.hello expects 'ok', and it said {shown}"


@pytest.mark.parametrize("cut", [12, 150, 240, 400])
async def test_of_a_source_that_echoes_a_secret_no_part_is_quoted(cut: int) -> None:
    secret = "".join(f"s3cret-{number:03}" for number in range(30))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readuntil(b"!")
        writer.write(said[:cut])
        await writer.drain()

    async with serving(echo) as port:
        hello = [{"send": "auth {token}!", "expect": "ok"}]
        _, error = await Feed(TcpConnector, secrets={"token": secret}).read_to_end(url(port), hello=hello)
    assert "and it said 'auth ***" in str(error)
    assert "s3cret" not in str(error)


async def test_a_source_that_never_says_what_is_expected_is_given_up() -> None:
    hello = [{"send": "guest", "expect": "ok"}]
    _, error, where = await ended(says(b"", stays=True), hello=hello, connect_timeout_s=0.05)
    assert str(error) == (
        f"{where}: no answer within 0.05 s (source.connect_timeout_s); "
        "source.hello expects 'ok', and it said nothing"
    )
    _, error, _ = await ended(says(b"x" * 10**6, stays=True), hello=hello)
    assert "no answer in its first 65536 bytes; source.hello expects 'ok', and it said 'xxx" in str(error)


async def test_a_source_that_closes_before_it_sends_anything_says_so() -> None:
    _, error, where = await ended(says(b""))
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"{where}: closed by the peer before it sent anything"


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
    batches, error, where = await ended(script, ping=ping, cursor="/seq")
    assert [batch.split() for batch in batches] == [(b'{"seq": 1}',), (b'{"seq": 2}',)]
    assert batches[-1].cursor == 2
    assert str(error) == f"{where}: closed by the peer"


# -- records that cannot be --------------------------------------------------------------------------------


async def test_a_length_that_cannot_be_one_fails_the_feed_after_what_came_before() -> None:
    framing = {"framing": "length", "length_bytes": 2, "length_counts_itself": True}
    batches, error, where = await ended(says(b'\0\x09{"n":1}\0\1', stays=True), cursor="/n", **framing)
    assert records_of(batches) == [b'{"n":1}']
    assert isinstance(error, FeedMisconfigured)
    assert str(error).startswith(f"{where}: what should be the length of a record after cursor 1")


# -- sockets -------------------------------------------------------------------------------------------
