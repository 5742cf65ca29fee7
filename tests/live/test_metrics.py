"""The metrics port: what it says of a worker, and what it does when the port cannot be had."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from feedq.core.lease import LAGS_S
from feedq.core.model import Status
from feedq.local.process import free_port
from feedq.settings import Settings
from feedq.telemetry.metrics import REGISTRY
from feedq.telemetry.metrics_port import MetricsServer
from feedq.worker.metrics import (
    HELD,
    Signs,
    health,
    readiness,
    refresh,
    serve,
)

WELL = Signs(
    heartbeat_age_s=1.0,
    loop_lag_s=0.0,
    worker="w1@host",
    trusted=True,
    draining=False,
)


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    """The port of a worker that still waits for its database."""
    opened = serve(Settings(metrics_port=free_port()), lambda: None)
    assert opened is not None
    yield opened
    opened.close()


def get(url: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_a_worker_that_is_well_is_healthy_and_ready() -> None:
    assert health(WELL, stall_s=5).well
    assert readiness(WELL).well


def test_a_database_that_is_away_makes_a_worker_unready_but_not_unhealthy() -> None:
    cut_off = replace(WELL, heartbeat_age_s=600.0, trusted=False)
    assert health(cut_off, stall_s=5).well
    assert readiness(cut_off).reason == "no heartbeat was answered for 600.0 s: the leases cannot be trusted"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (
            replace(WELL, stuck="thread feedq-keeper has stood still for 4.0 s"),
            "thread feedq-keeper has stood still for 4.0 s",
        ),
        (replace(WELL, loop_stalled_s=5.0), "the event loop has stood still for 5 s"),
    ],
)
def test_a_process_that_has_stopped_working_is_unhealthy(broken: Signs, reason: str) -> None:
    verdict = health(broken, stall_s=5)
    assert (verdict.well, verdict.reason) == (False, reason)


def test_a_loop_that_gets_no_processor_is_late_and_no_reason_to_restart() -> None:
    starved = replace(WELL, loop_lag_s=60.0, loop_stalled_s=4.9)
    assert health(starved, stall_s=5).well
    verdict = readiness(starved)
    assert (verdict.well, verdict.reason) == (False, "the event loop has stood still for 60 s")
    assert readiness(replace(WELL, loop_lag_s=LAGS_S)).well


def test_the_checks_answer_with_a_reason(server: MetricsServer) -> None:
    status, kind, body = get(f"{server.url}/healthz")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"status": "ok", "reason": "waiting for the control database"}
    status, _, body = get(f"{server.url}/readyz")
    assert status == 503
    assert json.loads(body)["status"] == "unavailable"


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_what_stands_for_a_moment_is_looked_at_when_it_is_asked_for() -> None:
    stuck = replace(WELL, loop_lag_s=12.0, heartbeat_age_s=3.0, unwritten_s=9.0)
    refresh(stuck, Counter({Status.STALLED: 4, Status.FAILING: 1}))
    assert (value("feedq_loop_lag_seconds"), value("feedq_heartbeat_age_seconds")) == (12.0, 3.0)
    assert value("feedq_unwritten_seconds") == 9.0
    told = {status: value("feedq_worker_feeds", status=status.value) for status in HELD}
    assert told == {status: {Status.STALLED: 4, Status.FAILING: 1}.get(status, 0) for status in HELD}


def test_a_port_in_use_is_a_warning_and_no_error(server: MetricsServer) -> None:
    port = int(server.url.rpartition(":")[2])
    assert serve(Settings(metrics_port=port), lambda: None) is None
    assert get(f"{server.url}/healthz")[0] == 200
