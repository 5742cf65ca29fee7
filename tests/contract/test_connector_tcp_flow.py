"""How the tcp connector holds a source back, and how its connection ends when we end it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from contextlib import aclosing
from typing import Any

import pytest

from feedq.connectors.base import Context
from feedq.connectors.tcp import TcpOptions
from feedq.connectors.wire.connection import READ_BYTES, Connection, open_connection
from feedq.errors import SourceUnavailable
from tests.contract.loopback import (
    PATIENCE_S,
    Harness,
    serving,
    until,
    until_closed,
)


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


# -- backpressure --------------------------------------------------------------------------------------


async def test_a_consumer_that_does_not_pull_holds_the_source_back_within_the_bound() -> None:
    line = b"x" * 99 + b"\n"
    total = 50 * 10**6

    bound = 64 * 1024
    held_back = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(total // 10**6):
            writer.write(line * 10**4)
            if writer.transport.get_write_buffer_size() > 0:
                held_back.set()
            await writer.drain()

    harness = Harness()
    async with serving(script) as port:
        options = TcpOptions(url=url(port), buffer_bytes=bound).connection_options()
        context = Context("acme/orders", harness.clock, harness.guard, harness.connected.set, {})
        connection = await open_connection(options, context)
        try:
            await until(lambda: connection.is_paused and held_back.is_set())
            assert bound <= connection.buffered <= bound + READ_BYTES
            taken = 0
            while data := await received(connection):
                taken += len(data)
                assert connection.buffered <= bound + READ_BYTES
        finally:
            connection.close()
    assert taken == total


async def received(connection: Connection) -> bytearray:
    async with asyncio.timeout(PATIENCE_S):
        return await connection.receive()


async def test_a_stream_that_waits_for_its_consumer_loses_nothing() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in range(2_000):
            writer.write(b'{"seq": %d, "pad": "%s"}\n' % (n, b"x" * 500))
            await writer.drain()

    harness = Harness()
    async with serving(script) as port:
        connector = harness.connector(url(port), buffer_bytes=1, cursor="/seq")
        seen: list[int] = []
        try:
            async for batch in connector.stream(None):
                seen += [json.loads(record)["seq"] for record in batch.split()]
                assert batch.cursor == seen[-1]
                await asyncio.sleep(0)
        except SourceUnavailable as error:
            ended = str(error)
    assert ended == f"{url(port)}: closed by the peer"
    assert seen == list(range(2_000))


# -- the end of a stream -------------------------------------------------------------------------------


@pytest.mark.parametrize("while_waiting", [True, False])
async def test_ending_the_stream_closes_the_socket_at_once(while_waiting: bool) -> None:
    closed = asyncio.Event()
    harness = Harness()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n")
        await until_closed(reader)
        closed.set()

    async def consume() -> None:
        async with aclosing(harness.connector(url(port)).stream(None)) as stream:
            async for _ in stream:
                got_one.set()
                if not while_waiting:
                    return

    async with serving(script) as port:
        got_one = asyncio.Event()
        task = asyncio.create_task(consume())
        await got_one.wait()
        if while_waiting:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        assert not harness.guard.watched
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()


async def test_the_guard_can_cut_the_socket_from_another_thread() -> None:
    closed = asyncio.Event()
    harness = Harness()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n")
        await until_closed(reader)
        closed.set()

    async with serving(script) as port:
        stream = harness.connector(url(port)).stream(None)
        await anext(stream)
        other_thread = threading.Thread(target=harness.guard.shut_all)
        other_thread.start()
        with pytest.raises(SourceUnavailable):
            await anext(stream)
        other_thread.join()
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()
    assert not harness.guard.watched


async def test_keepalive_is_on_unless_it_is_turned_off() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n")
        await until_closed(reader)

    async def keeps_alive(**source: Any) -> int:
        harness = Harness()
        async with aclosing(harness.connector(url(port), **source).stream(None)) as stream:
            await anext(stream)
            (fileno,) = harness.guard.watched
            with socket.socket(fileno=os.dup(fileno)) as sock:
                return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    async with serving(script) as port:
        assert await keeps_alive()
        assert not await keeps_alive(keepalive=False)


async def test_an_open_connection_takes_one_descriptor() -> None:
    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    harness = Harness()
    async with serving(script) as port:
        context = Context("acme/orders", harness.clock, harness.guard, harness.connected.set, {})
        options = TcpOptions(url=url(port)).connection_options()
        connections = [await open_connection(options, context)]
        before, opened = len(os.listdir("/dev/fd")), 20
        connections += [await open_connection(options, context) for _ in range(opened)]
        # Ours, and the source's, which is in this process as well.
        await until(lambda: len(os.listdir("/dev/fd")) == before + 2 * opened)
        assert len(harness.guard.watched) == opened + 1
        for connection in connections:
            connection.close()
        assert not harness.guard.watched
