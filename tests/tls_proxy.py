"""TLS before a server that has none, as RDS and ElastiCache have it: what is not encrypted is turned away."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from contextlib import suppress
from typing import Self

SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)
"""With this a client of PostgreSQL asks whether the server speaks TLS."""
CHUNK_BYTES = 64 * 1024


class TlsProxy:
    """Listens on a free loopback port, and passes on what arrives encrypted."""

    def __init__(self, port: int, context: ssl.SSLContext, *, postgresql: bool) -> None:
        self._behind, self._context, self._postgresql = port, context, postgresql
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.passed_on = 0
        """Connections that were encrypted."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> int:
        # PostgreSQL begins in the clear; anything else with the handshake.
        context = None if self._postgresql else self._context
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self._postgresql:
                if await reader.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
                    return writer.close()
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self._context)
            self.passed_on += 1
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(_pass(reader, back_writer), _pass(back_reader, writer))
        return writer.close()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    target.close()
