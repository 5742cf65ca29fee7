"""A port with ``/metrics`` and health checks, which a worker or a beat opens about itself.

A few threads of the standard library's HTTP server, none of which the streams wait for. A port that cannot be had
is a warning: metrics are no reason not to stream.

``/healthz`` fails once a thread of feedq has ended by an exception (`watch_threads`): only a restart helps.
"""

from __future__ import annotations

import socket
import socketserver
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.watched_threads import ended_threads

CONNECTIONS_MAX = 8
"""Scrapers served at a time; more are turned away, because a worker's memory is for its feeds."""
REQUEST_TIMEOUT_S = 3.0
"""What a client that says nothing, or takes nothing, may hold of them."""

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a health check."""

    well: bool
    reason: str


def open_port(
    address: tuple[str, int],
    metrics: Collector,
    checks: Mapping[str, Callable[[], Verdict]],
    *,
    before_metrics: Callable[[], None] = lambda: None,
) -> MetricsServer | None:
    """Serve these metrics, those of the process, and these checks. None for port 0, or when it cannot be had."""
    host, port = address
    if not port:
        return None
    try:
        server = MetricsServer(address, _with_process(metrics), checks, before_metrics=before_metrics)
    except OSError as error:
        logger.warning(LogEvent.METRICS_OFF, host=host, port=port, error=str(error))
        return None
    logger.info(LogEvent.METRICS_SERVED, url=server.url)
    return server


def _with_process(metrics: Collector) -> CollectorRegistry:
    whole = CollectorRegistry()
    whole.register(metrics)
    ProcessCollector(registry=whole)
    PlatformCollector(registry=whole)
    GCCollector(registry=whole)
    return whole


class MetricsServer(socketserver.ThreadingMixIn, HTTPServer):
    """Serves until it is closed. Raises `OSError` when the port cannot be had."""

    daemon_threads = True
    block_on_close = False
    # Another worker's port must be an error, not something to share with it.
    allow_reuse_port = False

    def __init__(
        self,
        address: tuple[str, int],
        collectors: CollectorRegistry,
        checks: Mapping[str, Callable[[], Verdict]],
        *,
        before_metrics: Callable[[], None],
    ) -> None:
        family, *_ = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.collectors, self.checks, self.before_metrics = collectors, checks, before_metrics
        self._slots = BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, _Handler)
        Thread(target=self.serve_forever, name="feedq-metrics", daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the resolver for this host's name and may wait for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # a scraper that hangs up is its own affair
            logger.error(LogEvent.UNEXPECTED, where="metrics", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = REQUEST_TIMEOUT_S
    server_version = "feedq"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.server.before_metrics()
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(self.server.collectors), content_type)
        elif path in self.server.checks:
            verdict = self.server.checks[path]()
            if path == "/healthz" and (ended := ended_threads()):
                said = "; ".join(f"thread {name} has ended: {why}" for name, why in ended.items())
                verdict = Verdict(False, said)
            document = {"status": "ok" if verdict.well else "unavailable", "reason": verdict.reason}
            self._answer(200 if verdict.well else 503, msgspec.json.encode(document), "application/json")
        else:
            self._answer(404, b"/metrics, /healthz and /readyz are here\n", "text/plain")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line a scrape would drown the log."""
