"""``/metrics``, ``/healthz`` and ``/readyz`` of one worker process, on a port of its own.

A few threads of the standard library's HTTP server, none of which the streams wait for. It starts before the
worker looks for its database, so that a worker that waits can say so, and ends with the process. A port that
cannot be had is a warning: metrics are no reason not to stream.

* healthy: a restart would not help. The lease keeper's threads run and try, and the event loop turns. A control
  database that is away does not make a worker unhealthy: a restart does not bring it back.
* ready: registered, trusted with its leases, its event loop turns, and it is not draining.

Statuses, lags and ages are looked at when somebody asks for them, by the thread that answers: a loop that is stuck
sets no gauge.

One metric speaks of the whole fleet: how many feeds no worker has. Only whoever runs a pass learns it, and that is
another worker each time; so it is left out where the last pass is long ago. Whoever takes the maximum over all
workers sees what is, and never what was an hour ago.
"""

from __future__ import annotations

import socket
import socketserver
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import BoundedSemaphore, Thread
from time import time
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from feedq.lease import LAGS_S
from feedq.model import Status
from feedq.settings import Settings
from feedq.telemetry import (
    CAPACITY,
    FEEDS,
    FEEDS_UNPLACED,
    HEARTBEAT_AGE_SECONDS,
    LOOP_LAG_SECONDS,
    RECONCILED_AT_SECONDS,
    REGISTRY,
    UNWRITTEN_SECONDS,
    UTILISATION,
    LogEvent,
    log,
)
from feedq.worker.supervisor import Supervisor

CONNECTIONS_MAX = 8
"""Scrapers served at a time; more are turned away, because a worker's memory is for its feeds."""
REQUEST_TIMEOUT_S = 3.0
"""What a client that says nothing, or takes nothing, may hold of them."""
STUCK_S = 30.0
"""The lease keeper tries every couple of seconds and each try is bounded; past this it is not trying any more."""
STUCK_HEARTBEATS = 3
FRESH_S = 15.0
FRESH_PASSES = 3
"""Of the interval between passes, if that is longer: one of them may be late, and some worker always knows."""

HELD = (
    *(Status.STREAMING, Status.CONNECTING, Status.STALLED, Status.FAILING, Status.REFUSING),
    *(Status.SINK_UNAVAILABLE, Status.QUARANTINED),
)
"""What a feed that a worker holds can be: each is told, be it 0, so that alerts find it."""

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a health check."""

    well: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Signs:
    """What the checks judge by, and some metrics are made of, at one moment."""

    lease_keeper_runs: bool
    attempt_age_s: float
    """Since a heartbeat was last tried."""
    heartbeat_age_s: float
    """Since a heartbeat that was answered was sent."""
    loop_lag_s: float
    worker: str | None
    """The name it is registered under."""
    trusted: bool
    draining: bool
    loop_stalled_s: float = 0.0
    """For how long the loop has stood still although it could have turned: less than its lag on a busy machine."""
    feeds: int = 0
    capacity: int = 0
    unwritten_s: float = 0.0


def observe(supervisor: Supervisor) -> Signs:
    lease_keeper = supervisor.lease_keeper
    return Signs(
        lease_keeper_runs=lease_keeper.is_running,
        attempt_age_s=lease_keeper.attempt_age_s,
        heartbeat_age_s=lease_keeper.heartbeat_age_s,
        loop_lag_s=supervisor.loop_lag_s,
        worker=supervisor.worker.name if supervisor.worker is not None else None,
        trusted=lease_keeper.trusted,
        draining=supervisor.is_draining,
        loop_stalled_s=supervisor.loop_stalled_s,
        feeds=supervisor.feeds,
        capacity=supervisor.worker.capacity if supervisor.worker is not None else 0,
        unwritten_s=supervisor.unwritten_s,
    )


def health(signs: Signs | None, *, heartbeat_s: float, stall_s: float) -> Verdict:
    """Whether this process should be left alone rather than restarted; None: it has not begun yet."""
    if signs is None:
        return Verdict(True, "waiting for the control database")
    limit_s = max(STUCK_S, STUCK_HEARTBEATS * heartbeat_s)
    if signs.draining:
        # Its threads end one by one now, as they should.
        return Verdict(True, "draining")
    if not signs.lease_keeper_runs:
        return Verdict(False, "a thread of the keeper has ended")
    if signs.attempt_age_s > limit_s:
        return Verdict(False, f"no heartbeat was tried for {signs.attempt_age_s:.0f} s")
    if signs.loop_stalled_s >= (stall_s or limit_s):
        return Verdict(False, f"the event loop has stood still for {signs.loop_stalled_s:.0f} s")
    return Verdict(True, "keeper and event loop are running")


def readiness(signs: Signs | None) -> Verdict:
    """Whether this worker serves; None: it has not begun yet."""
    if signs is None or signs.worker is None:
        return Verdict(False, "not registered yet: waiting for the control database")
    if signs.draining:
        return Verdict(False, "draining")
    if not signs.trusted:
        return Verdict(
            False,
            f"no heartbeat was answered for {signs.heartbeat_age_s:.1f} s: the leases cannot be trusted",
        )
    if signs.loop_lag_s > LAGS_S:
        return Verdict(False, f"the event loop has stood still for {signs.loop_lag_s:.0f} s")
    return Verdict(True, f"registered as {signs.worker}")


def registry() -> CollectorRegistry:
    """feedq's metrics and those of the process."""
    whole = CollectorRegistry()
    whole.register(REGISTRY)
    ProcessCollector(registry=whole)
    PlatformCollector(registry=whole)
    GCCollector(registry=whole)
    return whole


def refresh(
    signs: Signs | None, statuses: Mapping[Status, int], *, now: float, reconcile_interval_s: float
) -> None:
    """Bring the metrics that are not counted as things happen up to date; ``now`` is Unix time."""
    for status in HELD:
        FEEDS.labels(status.value).set(statuses.get(status, 0))
    if signs is not None:
        LOOP_LAG_SECONDS.set(signs.loop_lag_s)
        HEARTBEAT_AGE_SECONDS.set(signs.heartbeat_age_s)
        UNWRITTEN_SECONDS.set(signs.unwritten_s)
        CAPACITY.set(signs.capacity)
        UTILISATION.set(signs.feeds / signs.capacity if signs.capacity else 0.0)
    (sample,) = (sample for family in RECONCILED_AT_SECONDS.collect() for sample in family.samples)
    if now - sample.value > max(FRESH_S, FRESH_PASSES * reconcile_interval_s):
        FEEDS_UNPLACED.clear()


class MetricsServer:
    """Serves until it is closed. Raises `OSError` when the port cannot be had."""

    def __init__(self, s: Settings, supervisor: Callable[[], Supervisor | None]) -> None:
        def signs() -> Signs | None:
            begun = supervisor()
            return None if begun is None else observe(begun)

        def statuses() -> Mapping[Status, int]:
            begun = supervisor()
            return {} if begun is None else begun.statuses()

        checks: dict[str, Callable[[], Verdict]] = {
            "/healthz": lambda: health(signs(), heartbeat_s=s.heartbeat_s, stall_s=s.stall_s),
            "/readyz": lambda: readiness(signs()),
        }
        self._server = _Server(
            (s.metrics_host, s.metrics_port),
            registry(),
            checks,
            before_metrics=lambda: refresh(
                signs(), statuses(), now=time(), reconcile_interval_s=s.reconcile_interval_s
            ),
        )
        self._thread = Thread(target=self._server.serve_forever, name="feedq-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(s: Settings, supervisor: Callable[[], Supervisor | None]) -> MetricsServer | None:
    """Open the port that the settings name. None when they name none, or when it cannot be had."""
    if not s.metrics_port:
        return None
    try:
        server = MetricsServer(s, supervisor)
    except OSError as error:
        logger.warning(LogEvent.METRICS_OFF, host=s.metrics_host, port=s.metrics_port, error=str(error))
        return None
    logger.info(LogEvent.METRICS_SERVED, url=server.url)
    return server


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False
    # Another worker's port must be an error, not something to share with it.
    allow_reuse_port = False

    def __init__(
        self,
        address: tuple[str, int],
        collectors: CollectorRegistry,
        checks: dict[str, Callable[[], Verdict]],
        *,
        before_metrics: Callable[[], None],
    ) -> None:
        family, *_ = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.collectors = collectors
        self.checks = checks
        self.before_metrics = before_metrics
        self._slots = BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, _Handler)

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
    server: _Server
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
            document = {"status": "ok" if verdict.well else "unavailable", "reason": verdict.reason}
            self._answer(200 if verdict.well else 503, orjson.dumps(document), "application/json")
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
