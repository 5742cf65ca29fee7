"""The tcp connector against real sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from feedq.connectors.wire.dialing import dial
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from tests.contract.loopback import (
    Harness,
    records_of,
    reset,
    serving,
    until_closed,
)

HELLO = r'{"feed": {name}, "from": {cursor}}\n'


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


# -- what comes through --------------------------------------------------------------------------------


async def test_hello_carries_name_cursor_and_secret_and_records_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "s3cret")

    hellos = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.readline())
        writer.write(b'{"seq": 18}\r\n\n{"seq": 19}\n')
        await writer.drain()

    harness = Harness()
    async with serving(script) as port:
        source = {
            "hello": r'{"feed": {name}, "from": {cursor}, "token": "{token}"}\n',
            "secrets": {"token": "${env:ACME_TOKEN}"},
            "cursor": "/seq",
        }
        batches, error = await harness.read_to_end(url(port), after=17, **source)
    assert hellos == [b'{"feed": "acme/orders", "from": 17, "token": "s3cret"}\n']
    assert records_of(batches) == [b'{"seq": 18}', b'{"seq": 19}']
    assert batches[-1].cursor == 19
    assert batches[-1].received_at == harness.clock.now()
    assert harness.connected.is_set()
    assert str(error) == f"{url(port)}: closed by the peer"


async def test_a_source_that_breaks_off_at_any_place_is_resumed_without_loss_or_double() -> None:
    stream = b"".join(b'{"seq": %d, "pad": "%s"}\n' % (n, b"x" * n) for n in range(1, 31))

    cut_at = 7

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut_at
        last = json.loads(await reader.readline())["from"] or 0
        rest = b"".join(line for line in stream.splitlines(True) if json.loads(line)["seq"] > last)
        writer.write(rest[:cut_at])
        cut_at += 13
        await writer.drain()

    harness = Harness()
    landed, cursor = [], None
    async with serving(script) as port:
        while cursor != 30:
            batches, error = await harness.read_to_end(url(port), after=cursor, hello=HELLO, cursor="/seq")
            assert isinstance(error, SourceUnavailable)
            landed += records_of(batches)
            cursor = batches[-1].cursor if batches else cursor
    assert landed == stream.splitlines()


async def test_a_delimiter_of_any_bytes_ends_records() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"one\ntwo\0\xff\0\xffthree\0\xffincomplete")
        await writer.drain()

    source = {"framing": "delimiter", "delimiter": r"\0\xff", "format": "bytes"}
    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port), **source)
    assert records_of(batches) == [b"one\ntwo", b"three"]
    assert "in the middle of a record (10 bytes)" in str(error)


async def test_garbage_in_lines_comes_through_and_leaves_the_cursor() -> None:
    garbage = bytes(byte for byte in range(256) if byte not in b"\r\n")

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"seq": 5}\n' + garbage + b"\n\n\n")
        await writer.drain()

    async with serving(script) as port:
        batches, _ = await Harness().read_to_end(url(port), cursor="/seq")
    assert records_of(batches) == [b'{"seq": 5}', garbage]
    assert batches[-1].cursor == 5


async def test_without_a_pointer_the_cursor_stays_what_it_was() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"seq": 5}\n')
        await writer.drain()

    async with serving(script) as port:
        batches, _ = await Harness().read_to_end(url(port), after=3)
    assert [batch.cursor for batch in batches] == [3]


async def test_keep_alives_make_no_batches() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(5):
            writer.write(b"\r\n")
            await writer.drain()

    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port))
    assert batches == []
    assert "closed by the peer" in str(error)


# -- what goes wrong -----------------------------------------------------------------------------------


async def test_a_refused_connection_says_so() -> None:
    with socket.socket() as bound_but_deaf:
        bound_but_deaf.bind(("127.0.0.1", 0))
        where = url(bound_but_deaf.getsockname()[1])
        harness = Harness()
        batches, error = await harness.read_to_end(where)
    assert batches == []
    assert isinstance(error, SourceUnavailable)
    assert str(error).startswith(f"{where}: connection refused")
    assert not harness.connected.is_set()
    assert harness.guard.seen == 1
    assert not harness.guard.watched


async def test_a_socket_that_tcp_connected_to_itself_counts_as_refused() -> None:
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await dial(sock, sock.getsockname(), keepalive=False)


async def test_a_host_that_does_not_resolve_says_so() -> None:
    # Too long for any name, so that no name server is asked.
    host = ".".join(["a" * 60] * 5)

    _, error = await Harness().read_to_end(f"tcp://{host}:7001")
    assert isinstance(error, SourceUnavailable)
    assert "cannot be resolved" in str(error)
    assert "source.url" in str(error)


async def test_every_address_of_a_host_is_tried() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n")
        await writer.drain()

    # Where localhost is ::1 first, that one refuses.
    async with serving(script) as port:
        batches, _ = await Harness().read_to_end(f"tcp://localhost:{port}")
    assert records_of(batches) == [b"1"]


async def test_a_reset_connection_says_so_and_keeps_what_came_before() -> None:
    received = asyncio.Event()

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n2\n")
        await received.wait()
        reset(writer)

    async with serving(script) as port:
        stream = Harness().connector(url(port)).stream(None)
        records = list((await anext(stream)).split())
        received.set()
        with pytest.raises(SourceUnavailable, match=f"^{url(port)}: connection reset by the peer$"):
            records += (await anext(stream)).split()
    assert records == [b"1", b"2"]


async def test_a_source_that_accepts_and_never_answers_is_silent() -> None:
    harness = Harness()

    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await until_closed(reader)

    async with serving(script) as port:
        _, error = await harness.read_to_end(url(port), idle_timeout_s=0.05)
    assert isinstance(error, SourceSilent)
    assert str(error) == (f"{url(port)}: connected, but nothing received for 0.05 s (source.idle_timeout_s)")
    assert harness.connected.is_set()
    assert not harness.guard.watched


async def test_a_source_that_falls_silent_in_the_middle_keeps_what_came_before() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n2\n3")
        await until_closed(reader)

    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port), idle_timeout_s=0.2)
    assert records_of(batches) == [b"1", b"2"]
    assert isinstance(error, SourceSilent)


@pytest.mark.parametrize("framing", [{"framing": "lines"}, {"framing": "delimiter", "delimiter": r"\n"}])
async def test_an_oversize_record_fails_the_feed_after_everything_before_it(framing: dict[str, str]) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"seq": 1}\n{"seq": 2}\n{"seq": 3, "pad": "' + b"x" * 100)
        await until_closed(reader)

    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port), cursor="/seq", max_record_bytes=50, **framing)
    assert records_of(batches) == [b'{"seq": 1}', b'{"seq": 2}']
    assert isinstance(error, FeedMisconfigured)
    assert str(error) == (
        f"{url(port)}: record of more than 50 bytes after cursor 2; "
        "raise source.max_record_bytes, or check source.framing"
    )


async def test_an_endless_stream_without_an_end_mark_fails_the_feed_in_bounded_memory() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"\0\xff" * 10_000)
            await writer.drain()

    async with serving(script) as port:
        batches, error = await Harness().read_to_end(url(port))
    assert batches == []
    assert isinstance(error, FeedMisconfigured)
    assert "more than 1048576 bytes after cursor null" in str(error)


async def test_a_source_that_closes_before_it_sends_anything_says_so() -> None:
    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readline()

    async with serving(script) as port:
        _, error = await Harness().read_to_end(url(port), hello=HELLO)
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"{url(port)}: closed by the peer before it sent anything"
