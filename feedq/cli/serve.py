"""`feedq api`: the HTTP API as a process of its own."""

from __future__ import annotations

import signal
import socket
import sys

import click

from feedq.cli.invocation import Invocation, pass_invocation
from feedq.errors import Unavailable

PORT_USUAL = 5556
"""Beside Flower's 5555."""
KEEP_ALIVE_S = 5
CONNECTIONS_MAX = 500
HEADERS_MAX = 32 * 1024
"""Bytes of the first line and the headers of a request."""
GRACE_S = 3


@click.command("api", short_help="The HTTP API, /api/v1.")
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
    import uvicorn

    from feedq.api.backend import ApiBackend
    from feedq.api.endpoint import PREFIX
    from feedq.api.server import make_app
    from feedq.cli.output import answer
    from feedq.control.store.postgresql import PostgresStore
    from feedq.telemetry.logs import configure_logging

    settings = invocation.settings
    configure_logging(settings)
    store = PostgresStore(settings.database_url.get_secret_value(), application_name="feedq-api")
    listening = _listen(host, port)
    url = f"http://{_shown(host)}:{listening.getsockname()[1]}{PREFIX}"
    config = uvicorn.Config(
        make_app(ApiBackend.of(store, settings)),
        http="h11",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=HEADERS_MAX,
    )
    answer(invocation, {"url": url}, f"the API is at {url}; Ctrl-C stops it")
    sys.stdout.flush()
    # uvicorn ends in order, and then raises the signal once more for whoever heard it before.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        store.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose others with --host and --port"
        ) from None


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
