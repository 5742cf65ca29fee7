"""A connection as asyncio's pair of streams, for libraries that speak their protocol over such a pair.

It is dialed as every connection is (`feedq.connectors.wire.dialing`); what the library does with the pair
afterwards, closing it included, is its own business, and the guard's hold on the socket does not depend on it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from feedq.connectors.base import Context
from feedq.connectors.wire.dialing import GuardedSocket, dial_host
from feedq.connectors.wire.remote import RemoteOptions
from feedq.connectors.wire.tls import client_context

READ_AHEAD_BYTES = 256 * 1024
"""Twice this may wait in a reader before the source is held back."""


@dataclass(frozen=True, slots=True)
class Streams:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    guarded: GuardedSocket

    def close(self) -> None:
        """Cut it at once; what has not been sent is dropped. May be repeated."""
        self.guarded.cut()
        self.writer.transport.abort()


async def open_streams(
    options: RemoteOptions, context: Context, *, give_up_at: float, tls: ssl.SSLContext | None
) -> Streams:
    """Connect, and shake hands if there is a TLS context.

    To be called inside `bounded`, which explains what it raises.
    """
    location = options.location
    dialed = await dial_host(
        location.host, location.port, where=location, context=context, give_up_at=give_up_at
    )
    try:
        # From here on the socket belongs to the transport, which closes it in its own time.
        reader, writer = await asyncio.open_connection(
            sock=dialed.sock,
            limit=READ_AHEAD_BYTES,
            ssl=tls,
            server_hostname=server_name(options) if tls is not None else None,
        )
    except BaseException:
        dialed.guarded.cut()
        raise
    return Streams(reader, writer, dialed.guarded)


async def tls_context(options: RemoteOptions) -> ssl.SSLContext | None:
    """None without TLS. Raises `FeedMisconfigured` for a file that is missing or wrong."""
    if not options.location.tls:
        return None
    return await asyncio.to_thread(client_context, options.tls_files)


def server_name(options: RemoteOptions) -> str:
    """The name that the source's certificate must bear."""
    return options.server_name or options.location.host
