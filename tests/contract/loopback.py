"""A scripted source on the loopback interface, and what a runner would give a connector.

Everything happens in the event loop under test, so a script and the connector see each other's steps in a
fixed order; waiting is for events, never for time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from feedq.connectors.base import Context
from feedq.connectors.tcp import TcpConnector, TcpOptions
from feedq.errors import FeedqError
from feedq.model import JSON, Batch
from feedq.secrets import resolve_secrets
from feedq.testing.clock import ManualClock

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing one waits this long."""

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RecordingGuard:
    """A `SocketGuard` that holds its caller to the contract: a socket is forgotten while it is still open."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.seen = 0

    def watch(self, fileno: int) -> None:
        assert fileno not in self.watched
        assert is_socket(fileno)
        self.watched.add(fileno)
        self.seen += 1

    def forget(self, fileno: int) -> None:
        assert fileno in self.watched
        assert is_socket(fileno)
        self.watched.remove(fileno)

    def shut_all(self) -> None:
        """What the keeper does, from its own thread, when the worker may no longer act as owner."""
        for fileno in set(self.watched):
            with socket.socket(fileno=os.dup(fileno)) as sock:
                sock.shutdown(socket.SHUT_RDWR)


def is_socket(fileno: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fileno).st_mode)
    except OSError:
        return False


@dataclass
class Harness:
    """One feed's side: its clock, its guard, and whether it was connected."""

    clock: ManualClock = field(default_factory=ManualClock)
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    connected: asyncio.Event = field(default_factory=asyncio.Event)

    def connector(self, url: str, **source: Any) -> TcpConnector:
        options = TcpOptions.model_validate({"url": url, **source})
        secrets = resolve_secrets(options.secrets)
        context = Context("acme/orders", self.clock, self.guard, self.connected.set, secrets)
        return TcpConnector(options, context)

    async def read_to_end(
        self, url: str, *, after: JSON = None, **source: Any
    ) -> tuple[list[Batch], FeedqError]:
        """All batches of one connection that resumes ``after`` a cursor, and the error that ended it."""
        batches: list[Batch] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for batch in self.connector(url, **source).stream(after):
                    batches.append(batch)
        except FeedqError as error:
            return batches, error
        raise AssertionError("a stream ended without an error")


def run_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    """Run a test; afterwards no task, no socket and no unhandled error of it may remain."""
    unhandled: list[dict[str, Any]] = []

    async def watched() -> None:
        before = open_sockets()
        await main
        await until(lambda: len(asyncio.all_tasks()) == 1 and open_sockets() <= before)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.run(watched())
    assert not unhandled


def open_sockets() -> int:
    return sum(map(is_socket, map(int, os.listdir("/dev/fd"))))


def records_of(batches: list[Batch]) -> list[bytes]:
    return [record for batch in batches for record in batch.split()]


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run ``script`` for each connection; its port. All connections are cut at the end."""
    scripts: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        scripts.add(task)
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the connector cut the connection, or the test is over
        except BaseException as error:
            failures.append(error)
        finally:
            writer.transport.abort()
            scripts.discard(task)

    server = await asyncio.start_server(play, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(scripts):
            task.cancel()
        await until(lambda: not scripts)
        assert not failures, failures


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Return when the connector's end of the connection is gone."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        return


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
