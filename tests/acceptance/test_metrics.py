"""The metrics port of real workers: ready when they serve, healthy while a restart would not help."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from feedq.local.process import free_port
from feedq.telemetry.logs import LogEvent
from feedq.telemetry.metrics_port import CONNECTIONS_MAX
from tests.cluster import Cluster, feed, wait_until
from tests.invariants import wait_streaming
from tests.promql import alerts, questions, series_in
from tests.proxy import PostgresProxy
from tests.source_process import Source


class Port:
    """A client of the metrics port of one worker or beat."""

    def __init__(self, setting: str = "FEEDQ_METRICS_PORT") -> None:
        self.number = free_port()
        self.env = {setting: str(self.number)}

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.number}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def reason(self, path: str) -> str:
        reason: str = json.loads(self.get(path)[1])["reason"]
        return reason

    def wait(self, path: str, status: int, *, limit_s: float = 40.0) -> None:
        wait_until(
            lambda: self.get(path)[0] == status,
            lambda: f"{path} answers {status}; it says {self.get(path)}",
            limit_s=limit_s,
            interval_s=0.1,
        )

    def value(self, name: str, **labels: str) -> float:
        """A sample; 0 while there is none yet."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return 0.0


@pytest.fixture
def port() -> Port:
    return Port()


@pytest.fixture
def proxy(database_url: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(database_url) as made:
        yield made


def test_a_worker_that_cannot_reach_its_database_is_healthy_and_not_ready_and_says_so_to_everybody(
    tmp_path: Path, database_url: str, broker_url: str, proxy: PostgresProxy, port: Port
) -> None:
    Cluster(tmp_path, database_url=database_url, broker_url=broker_url, with_roles=False).close()
    proxy.refuse()
    with Cluster(
        tmp_path, database_url=proxy.url, broker_url=broker_url, migrate=False, with_roles=False
    ) as cluster:
        cluster.add_worker("w1", env=port.env, ready=False)
        port.wait("/healthz", 200)
        assert port.get("/readyz")[0] == 503
        assert port.reason("/readyz") == "not registered yet: waiting for the control database"

        proxy.admit()
        port.wait("/readyz", 200)
        assert port.reason("/readyz").startswith("registered as w1@")

        proxy.refuse()
        port.wait("/readyz", 503)
        assert "the leases cannot be trusted" in port.reason("/readyz")
        assert port.get("/healthz")[0] == 200

        proxy.admit()
        port.wait("/readyz", 200)

        # Clients that say nothing do not keep others out for long.
        silent = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(CONNECTIONS_MAX + 4)]
        port.wait("/readyz", 200, limit_s=20)
        for connection in silent:
            connection.close()


BREAKS = """
from pathlib import Path
from feedq.worker.lease_client import LeaseClient

gather = LeaseClient._gather

def breaking(self):
    group = gather(self)
    if Path({trigger!r}).exists():
        raise MemoryError("for the test")
    return group

LeaseClient._gather = breaking
"""


def test_metrics_count_what_lands_and_a_worker_one_of_whose_threads_has_ended_is_unhealthy(
    tmp_path: Path, database_url: str, broker_url: str, port: Port
) -> None:
    trigger = tmp_path / "trigger"
    (tmp_path / "breaks_a_thread.py").write_text(BREAKS.format(trigger=str(trigger)))
    env = {**port.env, "FEEDQ_IMPORTS": "breaks_a_thread", "PYTHONPATH": str(tmp_path)}
    with (
        Source(rate=50) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("b1")
        worker = cluster.add_worker("w1", env=env)
        cluster.apply([feed("f/1", source.url), feed("f/2", source.url)])
        wait_streaming(source, ["f/1", "f/2"])
        wait_until(
            lambda: (
                port.value("feedq_worker_feeds", status="streaming") == 2
                and port.value("feedq_records_total") > 50
            ),
            lambda: f"two feeds are counted:\n{port.get('/metrics')[1]}",
        )
        landed = cluster.sql("SELECT count(*) AS n FROM landed")[0]["n"]
        assert port.value("feedq_records_total") >= landed - 200
        assert port.value("feedq_bytes_total") > port.value("feedq_records_total")
        assert port.value("feedq_commit_seconds_count") > 0
        assert 0 <= port.value("feedq_heartbeat_age_seconds") < 6
        assert port.value("process_resident_memory_bytes") > 10_000_000

        assert port.get("/healthz")[0] == 200
        trigger.touch()
        port.wait("/healthz", 503)
        assert port.reason("/healthz") == "thread feedq-lease-client has ended: MemoryError"
        (said,) = worker.events(LogEvent.THREAD_ENDED)
        assert "for the test" in said["exception"]


def test_the_elected_beat_tells_how_the_fleet_is_and_every_metric_that_is_asked_for_is_there(
    tmp_path: Path, database_url: str, broker_url: str, port: Port
) -> None:
    leader, other = Port("FEEDQ_BEAT_METRICS_PORT"), Port("FEEDQ_BEAT_METRICS_PORT")
    # By the alerts and dashboards that are shipped.
    expressions = [*(alert.expr for alert in alerts()), *(question.expr for question in questions())]
    asked = {series.name for expr in expressions for series in series_in(expr)}

    def missing() -> set[str]:
        said = "".join(one.get("/metrics")[1] for one in (port, leader))
        families = text_string_to_metric_families(said)
        return asked - {sample.name for family in families for sample in family.samples}

    with (
        Source(rate=50) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("b1", env=leader.env)
        cluster.wait_leader()
        cluster.wait_candidate(cluster.add_beat("b2", env=other.env))
        cluster.add_worker("w1", env=port.env)
        nowhere = {"selector": {"required": {"zone": "moon"}}}
        cluster.apply(
            [
                feed("f/1", source.url),
                feed("f/2", source.url),
                feed("f/3", source.url),
                feed("f/4", source.url) | nowhere,
            ]
        )
        wait_streaming(source, ["f/1", "f/2", "f/3"])
        wait_until(
            lambda: (
                leader.value("feedq_feeds", status="streaming") == 3
                and leader.value("feedq_feeds_unplaced", reason="no_match") == 1
            ),
            lambda: f"the fleet is counted:\n{leader.get('/metrics')[1]}",
            interval_s=0.2,
        )
        assert leader.value("feedq_beat_leads") == 1
        assert leader.value("feedq_workers", state="serving") == 1
        assert 0 < leader.value("feedq_oldest_heartbeat_seconds") < 8
        assert leader.reason("/readyz") == "elected"

        wait_until(lambda: not missing(), lambda: f"exported: {missing()}", interval_s=0.5)

        # The other one says nothing of the fleet, until it is elected.
        assert other.reason("/readyz") == "stands by"
        assert other.value("feedq_beat_leads") == 0
        assert "feedq_feeds{" not in other.get("/metrics")[1]
        cluster.beats["b1"].signal(signal.SIGKILL)
        wait_until(
            lambda: other.value("feedq_feeds", status="streaming") == 3,
            lambda: f"the other beat tells it:\n{other.get('/metrics')[1]}",
            interval_s=0.2,
        )
