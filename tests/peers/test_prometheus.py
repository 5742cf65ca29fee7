"""The alerts and dashboards of ``deploy/`` in a real Prometheus that reads a running fleet."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedq.local.process import free_port
from tests import promql
from tests.cluster import Cluster, feed, wait_until
from tests.invariants import wait_streaming
from tests.peers.prometheus import Prometheus
from tests.peers.servers import program
from tests.source_process import Source

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def ports() -> dict[str, int]:
    return {"worker": free_port(), "beat": free_port()}


@pytest.fixture
def fleet(tmp_path: Path, ports: dict[str, int], database_url: str, broker_url: str) -> Iterator[Cluster]:
    """A worker with two feeds, and a beat."""
    with (
        Source(rate=50) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("b1", env={"FEEDQ_BEAT_METRICS_PORT": str(ports["beat"])})
        cluster.add_worker("w1", env={"FEEDQ_METRICS_PORT": str(ports["worker"])})
        cluster.apply([feed("f/1", source.url), feed("f/2", source.url)])
        wait_streaming(source, ["f/1", "f/2"])
        yield cluster


@pytest.mark.usefixtures("fleet")
def test_every_panel_and_every_alert_has_data_of_a_running_fleet(
    peer_dir: Path, ports: dict[str, int]
) -> None:
    asked = {q.where: q.expr for q in promql.questions()}
    asked |= {alert.name: alert.measured for alert in promql.alerts()}
    with Prometheus(peer_dir, ports) as prometheus:

        def without_data() -> list[str]:
            return [where for where, expr in asked.items() if not prometheus.query(expr)]

        wait_until(
            lambda: not without_data(),
            limit_s=40,
            interval_s=0.5,
            what=lambda: f"data for {without_data()}",
        )
        assert prometheus.query('max(feedq_feeds{status="streaming"})') == [2]
        assert prometheus.query("sum(feedq_worker_feeds)") == [2]


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("process", ["worker", "beat"])
def test_promtool_finds_nothing_wrong_with_the_metrics(process: str, ports: dict[str, int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[process]}/metrics", timeout=10) as answer:
        said = answer.read()
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=said, capture_output=True, timeout=30, check=False
    )
    found = [line for line in checked.stderr.decode().splitlines() if line.startswith("feedq_")]
    assert found == []
    assert b"feedq_build_info" in said


def test_promtool_accepts_the_rules() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "rules", "--lint-fatal", str(promql.RULES)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
