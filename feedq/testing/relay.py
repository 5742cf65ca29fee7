"""A relay between a connector and its source, which can break, hold up and count what passes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from feedq.testing.loopback import reset, serving

SEND_BUFFER_BYTES = 64 * 1024
"""Small, so that what a connector does not read shows here instead of resting in the kernel."""


class Relay:
    """Passes bytes between a connector and ``upstream``; bytes *down* go to the connector.

    It counts over all connections: a protocol that opens several is cut just as one that keeps to one.
    """

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.rpartition(":")
        self._port = int(port)
        self.where = ""
        """``host:port`` for the connector to dial."""
        self.accepted = 0
        self.open = 0
        """Connections that the connector has not closed."""
        self.down_bytes = 0
        self.up_bytes = 0
        self.chunk_bytes = 256 * 1024
        """How much is passed down at once."""
        self._cut_after: int | None = None
        self._hold_after: int | None = None
        self._flood = b""
        self._pouring: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Relay]:
        """Serve until the end."""
        async with serving(self._serve) as port:
            self.where = f"127.0.0.1:{port}"
            yield self

    def cut_after(self, down_bytes: int) -> None:
        """Reset all connections, once, when this many bytes have gone down."""
        self._cut_after = down_bytes

    def hold_after(self, down_bytes: int) -> None:
        """Pass nothing more down, and keep the connection, when this many bytes have gone down."""
        self._released.clear()
        self._hold_after = down_bytes

    def release(self) -> None:
        """Pass on what was held up."""
        self._hold_after = None
        self._released.set()

    def flood(self, piece: bytes) -> None:
        """From now on pass down this without an end, whatever the source says."""
        self._flood = piece * (self.chunk_bytes // len(piece) + 1)
        self.release()
        for writer in list(self._connections):
            task = asyncio.ensure_future(self._pour(writer))
            self._pouring.add(task)
            task.add_done_callback(self._pouring.discard)

    async def _pour(self, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(self._flood)
                await writer.drain()
                self.down_bytes += len(self._flood)

    def reset_all(self) -> None:
        """Reset every connection there is."""
        for writer in list(self._connections):
            reset(writer)

    def close_all(self) -> None:
        """End every connection there is, in order."""
        for writer in list(self._connections):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self._connections.add(writer)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        # Draining waits until all is with the kernel: only then has it gone down.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self._connections.discard(writer)
            self.open -= 1
            raise
        ways = {
            asyncio.ensure_future(self._pass_up(reader, up_writer)),
            asyncio.ensure_future(self._pass_down(up_reader, writer)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up_writer.transport.abort()
            self._connections.discard(writer)
            self.open -= 1

    async def _pass_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.up_bytes += len(data)
            writer.write(data)
            await writer.drain()

    async def _pass_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._heed()
            data = await reader.read(self.chunk_bytes)
            if not data:
                # The source has ended it; what is on its way still arrives, then the end.
                writer.close()
                await writer.wait_closed()
                return
            while data:
                await self._heed()
                limits = [limit for limit in (self._cut_after, self._hold_after) if limit is not None]
                room = min([self.chunk_bytes, *(limit - self.down_bytes for limit in limits)])
                part, data = data[:room], data[room:]
                self.down_bytes += len(part)
                writer.write(part)
                await writer.drain()

    async def _heed(self) -> None:
        if self._cut_after is not None and self.down_bytes >= self._cut_after:
            self._cut_after = None
            self.reset_all()
            raise ConnectionResetError
        if self._flood:
            await asyncio.Event().wait()
        while self._hold_after is not None and self.down_bytes >= self._hold_after:
            await self._released.wait()
