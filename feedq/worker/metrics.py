"""``/metrics``, ``/healthz`` and ``/readyz`` of one worker process, on a port of its own.

The port opens before the worker looks for its database, so that a worker that waits can say so, and ends with the
process.

* healthy: a restart would not help. Every thread that the worker cannot do without gets on, the event loop among
  them (`feedq.worker.watch`). A control database that is away does not make a worker unhealthy: a restart does not
  bring it back.
* ready: registered, trusted with its leases, its event loop turns, and it is not draining.

Statuses, lags and ages are looked at when somebody asks for them, by the thread that answers: a loop that is stuck
sets no gauge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from feedq.core.lease import LAGS_S
from feedq.core.model import Status
from feedq.settings import Settings
from feedq.telemetry.metrics import (
    CAPACITY,
    HEARTBEAT_AGE_SECONDS,
    LOOP_LAG_SECONDS,
    REGISTRY,
    UNWRITTEN_SECONDS,
    UTILISATION_RATIO,
    WORKER_FEEDS,
)
from feedq.telemetry.metrics_port import MetricsServer, Verdict, open_port
from feedq.worker.supervisor import Supervisor

STALLED_S = 30.0
"""The event loop counts as stuck after this where ``FEEDQ_STALL_S`` is 0."""

HELD = (
    *(Status.STREAMING, Status.CONNECTING, Status.STALLED, Status.FAILING, Status.REFUSING),
    *(Status.SINK_UNAVAILABLE, Status.QUARANTINED),
)
"""What a feed that a worker holds can be: each is told, be it 0, so that alerts find it."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What the checks judge by, and some metrics are made of, at one moment."""

    heartbeat_age_s: float
    """Since a heartbeat that was answered was sent."""
    loop_lag_s: float
    worker: str | None
    """The name it is registered under."""
    trusted: bool
    draining: bool
    stuck: str | None = None
    """The thread that does not get on, and for how long."""
    loop_stalled_s: float = 0.0
    """For how long the loop has stood still although it could have turned: less than its lag on a busy machine."""
    feeds: int = 0
    capacity: int = 0
    unwritten_s: float = 0.0


def observe(supervisor: Supervisor) -> Signs:
    lease_keeper = supervisor.lease_keeper
    return Signs(
        heartbeat_age_s=lease_keeper.heartbeat_age_s,
        loop_lag_s=supervisor.loop_lag_s,
        worker=supervisor.worker.name if supervisor.worker is not None else None,
        trusted=lease_keeper.trusted,
        draining=supervisor.is_draining,
        stuck=stuck.said if (stuck := supervisor.stuck) is not None else None,
        loop_stalled_s=supervisor.loop_stalled_s,
        feeds=supervisor.feeds,
        capacity=supervisor.worker.capacity if supervisor.worker is not None else 0,
        unwritten_s=supervisor.unwritten_s,
    )


def health(signs: Signs | None, *, stall_s: float) -> Verdict:
    """Whether this process should be left alone rather than restarted; None: it has not begun yet."""
    if signs is None:
        return Verdict(True, "waiting for the control database")
    if signs.draining:
        # Its threads end one by one now, as they should.
        return Verdict(True, "draining")
    if signs.stuck is not None:
        return Verdict(False, signs.stuck)
    if signs.loop_stalled_s >= (stall_s or STALLED_S):
        return Verdict(False, f"the event loop has stood still for {signs.loop_stalled_s:.0f} s")
    return Verdict(True, "all threads are running")


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


def refresh(signs: Signs | None, statuses: Mapping[Status, int]) -> None:
    """Bring the gauges up to date, which are looked at when somebody asks."""
    for status in HELD:
        WORKER_FEEDS.labels(status.value).set(statuses.get(status, 0))
    if signs is not None:
        LOOP_LAG_SECONDS.set(signs.loop_lag_s)
        HEARTBEAT_AGE_SECONDS.set(signs.heartbeat_age_s)
        UNWRITTEN_SECONDS.set(signs.unwritten_s)
        CAPACITY.set(signs.capacity)
        UTILISATION_RATIO.set(signs.feeds / signs.capacity if signs.capacity else 0.0)


def serve(s: Settings, supervisor: Callable[[], Supervisor | None]) -> MetricsServer | None:
    """Open the port that the settings name. None when they name none, or when it cannot be had."""

    def signs() -> Signs | None:
        begun = supervisor()
        return None if begun is None else observe(begun)

    def look() -> None:
        begun = supervisor()
        refresh(signs(), {} if begun is None else begun.statuses())

    return open_port(
        (s.metrics_host, s.metrics_port),
        REGISTRY,
        {
            "/healthz": lambda: health(signs(), stall_s=s.stall_s),
            "/readyz": lambda: readiness(signs()),
        },
        before_metrics=look,
    )
