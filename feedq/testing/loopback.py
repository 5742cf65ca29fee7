"""Scripted servers on the loopback interface, a relay before them, and a loop that is clean when a test is over.

Everything happens in the event loop under test, so a script and a connector see each other's steps in a
fixed order; waiting is for events, never for time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import ssl
import stat
import struct
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any, Final

from feedq.connectors.base import Sockets
from feedq.connectors.wire.dialing import name_servers

PATIENCE_S: Final = 20.0
"""How long a test waits for what must happen; only a failing one waits this long."""

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RecordingGuard(Sockets):
    """Sockets that hold their caller to the contract: a socket is forgotten while it is still open."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: set[int] = set()
        self._inodes: set[int] = set()
        self.faults: list[str] = []
        """For a test to look at: what is raised on the way out of a connector may get lost in it."""

    @property
    def seen(self) -> int:
        """Sockets, by however many descriptors they were watched."""
        return len(self._inodes)

    @property
    def unread_bytes(self) -> int:
        """What the kernel holds for the caller, who has not read it: it may take tens of megabytes by itself."""
        unread = (fcntl.ioctl(fileno, termios.FIONREAD, bytes(4)) for fileno in self.watched)
        return max((int.from_bytes(size, sys.byteorder) for size in unread), default=0)

    def watch(self, fileno: int) -> None:
        self._expect(fileno not in self.watched, f"watched {fileno} twice")
        self._expect(is_socket(fileno), f"watched {fileno}, which is not an open socket")
        self.watched.add(fileno)
        self._inodes.add(os.fstat(fileno).st_ino)
        super().watch(fileno)

    def forget(self, fileno: int) -> None:
        self._expect(fileno in self.watched, f"forgot {fileno}, which was not watched")
        self._expect(is_socket(fileno), f"forgot {fileno} when it was closed already")
        self.watched.remove(fileno)
        super().forget(fileno)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(otherwise)
            raise AssertionError(otherwise)


class Journal:
    """The records of a scripted source, and whoever waits for more of them."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._grown = asyncio.Event()

    async def send(self, records: Sequence[bytes]) -> None:
        """Add records; those who wait in `after` get them."""
        self.records += records
        self._grown.set()
        self._grown = asyncio.Event()

    async def after(self, position: int) -> list[bytes]:
        """All records behind the first ``position`` ones, as soon as there are any."""
        while len(self.records) <= position:
            await self._grown.wait()
        return self.records[position:]

    async def send_all(
        self, writer: asyncio.StreamWriter, put: Callable[[int, bytes], bytes], *, after: int = 0
    ) -> None:
        """Write what ``put`` makes of each record and its number, those to come included, until cancelled."""
        while True:
            for record in await self.after(after):
                after += 1
                writer.write(put(after, record))
                await writer.drain()  # so that the source can be held back


def run_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    """Run a test; afterwards no task, no descriptor, no thread and no unhandled error of it may remain."""
    unhandled: list[dict[str, Any]] = []
    name_servers()  # keeps its descriptors and threads
    threads = set(threading.enumerate())

    async def watched() -> None:
        before = open_descriptors()
        await main
        await until(lambda: len(asyncio.all_tasks()) == 1 and open_descriptors() <= before)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.run(watched())
    assert not unhandled, unhandled
    # The loop has ended the threads of its own pool; one that has said its last word may be on its way out.
    give_up_at = time.monotonic() + PATIENCE_S
    while left := set(threading.enumerate()) - threads:
        assert time.monotonic() < give_up_at, f"threads are left: {left}"
        time.sleep(0.001)


def open_descriptors() -> int:
    """How many files, pipes and sockets are open; uvloop keeps the null device once it has listened."""
    return sum(not stat.S_ISCHR(_mode(int(fileno))) for fileno in os.listdir("/dev/fd"))


def is_socket(fileno: int) -> bool:
    return stat.S_ISSOCK(_mode(fileno))


def _mode(fileno: int) -> int:
    try:
        return os.fstat(fileno).st_mode
    except OSError:  # closed since it was listed
        return stat.S_IFCHR


async def until(condition: Callable[[], bool]) -> None:
    """Look until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Run ``script`` for each connection; its port. All connections are cut at the end."""
    scripts: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        scripts.add(task)
        try:
            await script(reader, writer)
            # What it has written arrives before the end does.
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the connector cut the connection, or the test is over
        except BaseException as error:  # noqa: BLE001 - a test must hear of it, whatever it is
            # A script may stumble over the end of its connection, but what it asserts stands.
            if isinstance(error, AssertionError) or not (reader.at_eof() or writer.is_closing()):
                failures.append(error)
        finally:
            writer.transport.abort()
            scripts.discard(task)

    server = await asyncio.start_server(play, host, port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(scripts):
            task.cancel()
        await until(lambda: not scripts)
        assert not failures, failures


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


SEND_BUFFER_BYTES = 64 * 1024
"""Small, so that what a connector does not read shows here instead of resting in the kernel."""


class Relay:
    """Passes bytes between a connector and ``upstream``; bytes *down* go to the connector.

    It counts over all connections: a protocol that opens several is cut just as one that keeps to one.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.where = upstream
        """``host:port`` for the connector to dial."""
        self.accepted = 0
        self.down_bytes = 0
        self.chunk_bytes = 256 * 1024
        """How much is passed down at once."""
        self._limit = inf
        self._at_limit: Callable[[asyncio.StreamWriter], Awaitable[None]] = self._reset
        self._connections: set[asyncio.StreamWriter] = set()

    async def closed(self) -> None:
        """Return when the connector has closed all its connections."""
        await until(lambda: not self._connections)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Relay]:
        """Serve until the end."""
        async with serving(self._serve) as port:
            self.where = f"127.0.0.1:{port}"
            yield self

    def cut_after(self, down_bytes: int) -> None:
        """Reset all connections, once, instead of passing down more than this."""
        self._limit, self._at_limit = down_bytes, self._reset

    def hold_after(self, down_bytes: int) -> None:
        """Pass no more than this down, and keep the connection."""
        self._limit, self._at_limit = down_bytes, self._hold

    def flood(self, piece: bytes) -> None:
        """Pass down this without an end, as soon as the source sends something, and nothing of what it sends."""
        self._limit, self._at_limit = self.down_bytes, partial(self._pour, piece * self.chunk_bytes)

    def end_all(self, end: Callable[[asyncio.StreamWriter], None]) -> None:
        """End every connection there is, by `reset` or in order (``asyncio.StreamWriter.close``)."""
        for writer in list(self._connections):
            end(writer)

    async def _reset(self, _: asyncio.StreamWriter) -> None:
        self._limit = inf
        self.end_all(reset)
        raise ConnectionResetError

    async def _hold(self, _: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def _pour(self, flood: bytes, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._send(writer, flood)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.down_bytes += len(data)
        writer.write(data)
        await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        # Draining waits until all is with the kernel: only then has it gone down.
        writer.transport.set_write_buffer_limits(high=0)
        host, _, port = self._upstream.rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        self._connections.add(writer)
        ways = [
            asyncio.ensure_future(self._pass_up(reader, up_writer)),
            asyncio.ensure_future(self._pass_down(up_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up_writer.transport.abort()
            self._connections.discard(writer)

    async def _pass_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(self.chunk_bytes):
            writer.write(data)
            await writer.drain()

    async def _pass_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(self.chunk_bytes):
            while data:
                if self.down_bytes >= self._limit:
                    await self._at_limit(writer)
                part = data[: int(min(len(data), self._limit - self.down_bytes))]
                await self._send(writer, part)
                data = data[len(part) :]
