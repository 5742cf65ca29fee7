"""`feedq api`: the HTTP API as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import click

from feedq.cli.invocation import Command, Invocation, pass_invocation
from feedq.errors import Unavailable

if TYPE_CHECKING:
    import socket

    from feedq.api.endpoint import Endpoint

PORT_USUAL = 5556
"""Beside Flower's 5555."""


@click.command("api", cls=Command, short_help="The HTTP API, /api/v1.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=PORT_USUAL, show_default=True, help="0 is a free one."
)
@pass_invocation
def serve(invocation: Invocation, *, host: str, port: int) -> None:
    """Serve the HTTP API until it is stopped. Behind anything but this machine it belongs behind TLS.

    \b
    Example:
      feedq api --port 5556
    """
    from feedq.api.endpoint import PREFIX, Endpoint
    from feedq.cli.output import answer
    from feedq.control.store.postgresql import PostgresStore
    from feedq.telemetry.logs import configure_logging

    settings = invocation.settings
    configure_logging(settings)
    store = PostgresStore(settings.database_url.get_secret_value(), application_name="feedq-api")
    listening = _listen(host, port)
    url = f"http://{_shown(host)}:{listening[0].getsockname()[1]}{PREFIX}"
    answer(invocation, {"url": url}, f"the API is at {url}; Ctrl-C stops it")
    sys.stdout.flush()
    try:
        asyncio.run(_served(Endpoint.of(store, settings), listening))
    finally:
        store.close()


async def _served(endpoint: Endpoint, listening: list[socket.socket]) -> None:
    from feedq.api.server import serve

    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    await serve(endpoint, listening, told_to_stop)


def _listen(host: str, port: int) -> list[socket.socket]:
    from tornado.netutil import bind_sockets

    try:
        return bind_sockets(port, host)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose others with --host and --port"
        ) from None


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
