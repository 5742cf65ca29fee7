"""nats-py's transport over streams that we opened: see `nats.aio.transport.Transport`, whose words these are.

It upholds what the URL says about TLS, which the library leaves to the server: with ``tls://`` nothing, and no
password, is sent in the clear, and with ``nats://`` a server that demands TLS is told apart from one that fails.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from nats.aio.transport import Transport

from feedq.connectors.wire.streams import READ_AHEAD_BYTES, Streams
from feedq.errors import FeedMisconfigured


class DialedTransport(Transport):
    """One connection; it is not made anew."""

    def __init__(self, streams: Streams, *, where: object, wants_tls: bool) -> None:
        self._streams = streams
        self._reader, self._writer = streams.reader, streams.writer
        self._where = where
        self._wants_tls = wants_tls
        self._has_tls = False

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """It is connected."""

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Go on with TLS on the same connection; ``uri`` is the name that the certificate must bear."""
        if not self._wants_tls:
            raise FeedMisconfigured(f"{self._where}: the server demands TLS; write tls:// in source.url")
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=READ_AHEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        transport = await loop.start_tls(
            self._writer.transport, protocol, ssl_context, server_hostname=str(uri)
        )
        assert transport is not None
        self._reader.set_transport(transport)
        self._plain_writer, self._writer = (
            self._writer,
            asyncio.StreamWriter(transport, protocol, self._reader, loop),
        )
        self._has_tls = True

    def write(self, payload: bytes) -> None:
        self.writelines([payload])

    def writelines(self, payload: Iterable[bytes]) -> None:
        if self._wants_tls and not self._has_tls:
            raise FeedMisconfigured(
                f"{self._where}: the server offers no TLS; write nats:// in source.url to do without"
            )
        # What ended the connection is for the reader to find: the library writes while it closes, too, and does
        # not expect an error then.
        if not self._writer.transport.is_closing():
            self._writer.writelines(payload)

    async def read(self, buffer_size: int) -> bytes:
        return await self._reader.read(buffer_size)

    async def readline(self) -> bytes:
        return await self._reader.readline()

    async def drain(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()

    async def wait_closed(self) -> None:
        """There is nothing to wait for: it is cut."""

    def close(self) -> None:
        self._writer.transport.abort()
        self._streams.close()

    def at_eof(self) -> bool:
        return self._reader.at_eof()

    def __bool__(self) -> bool:
        return True
