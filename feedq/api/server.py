"""The server of `feedq api`. Whoever serves closes the store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from tornado import web
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

from feedq.api.calls import TIMEOUT_S, Calls
from feedq.api.endpoint import JSON_TYPE, Endpoint
from feedq.api.handler import ApiHandler, Served

CONNECTIONS_MAX: Final = 500
"""Others are closed at once."""
IDLE_S: Final = 10.0
"""A connection is closed that takes longer to begin a request and to send its first line and headers."""
HEADERS_MAX: Final = 64 * 1024
"""Bytes of the first line and the headers of a request."""
GRACE_S: Final = 3.0
"""Requests under way are answered for so long after the server was told to stop."""


class ApiServer(HTTPServer):
    """Serves no more than `CONNECTIONS_MAX` connections."""

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            stream.close()
        else:
            super().handle_stream(stream, address)


class Health(web.RequestHandler):
    """The process answers, whatever the servers behind it do."""

    def get(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Type", JSON_TYPE)
        self.finish(b'{"status":"ok"}')


async def serve(endpoint: Endpoint, listening: Sequence[socket.socket], told_to_stop: asyncio.Event) -> None:
    """Serve the API on these sockets until told to stop."""
    served = Served(endpoint, Calls())
    application = web.Application(
        [(r"/healthz", Health), (r".*", ApiHandler, {"served": served})], log_function=lambda _: None
    )
    server = ApiServer(
        application,
        # Who asks is known by address, and not by what headers say: no `xheaders`.
        idle_connection_timeout=IDLE_S,
        body_timeout=TIMEOUT_S,
        max_header_size=HEADERS_MAX,
    )
    server.add_sockets(listening)
    await told_to_stop.wait()
    server.stop()
    if served.requests:
        await asyncio.wait(served.requests, timeout=GRACE_S)
    await server.close_all_connections()
    # Streams hear of it with their next event.
    if served.requests:
        await asyncio.wait(served.requests, timeout=GRACE_S)
