"""What is said of feeds that fare badly, by the command, the checks and the metrics of a real worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import poison
from tests.acceptance.test_metrics import Port
from tests.cluster import ROOT, Cluster, feed, wait_until
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

NEIGHBOURS = ["f/1", "f/2"]


def statuses(cluster: Cluster) -> dict[str, tuple[str, str | None]]:
    rows: list[dict[str, Any]] = json.loads(cluster.feedq("feed", "list", "--json"))
    return {row["feed"]["spec"]["name"]: (row["status"], row["because"]) for row in rows}


def wait_for(cluster: Cluster, wanted: dict[str, str]) -> None:
    wait_until(
        lambda: {name: status for name, (status, _) in statuses(cluster).items()}.items() >= wanted.items(),
        lambda: f"{wanted}; they are {statuses(cluster)}",
        interval_s=0.2,
    )


def test_no_feed_streams_that_refuses_fails_or_is_on_a_worker_that_stands_still(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    poison.install(tmp_path / "connectors")
    flag, port = tmp_path / "now", Port()
    env = {"PYTHONPATH": f"{tmp_path / 'connectors'}:{ROOT}", "FEEDQ_STALL_S": "0", **port.env}
    with (
        Source(rate=20) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=env) as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        cluster.make("CREATE TABLE narrow (seq bigint CHECK (seq < 0))")
        refused = feed("odd/refused", source.url, table="narrow")
        refused["sink"]["columns"] = {"seq": "/seq"}
        stuck = {
            "name": "odd/stuck",
            "connector": "numbers",
            "source": {"then": "sleep", "while_exists": str(flag)},
            "sink": {"table": "numbers"},
        }
        dead = feed("odd/dead", "tcp://127.0.0.1:1")
        cluster.apply([*(feed(name, source.url) for name in NEIGHBOURS), refused, stuck, dead])
        well = dict.fromkeys([*NEIGHBOURS, "odd/stuck"], "streaming")
        wait_for(cluster, {**well, "odd/refused": "refusing", "odd/dead": "failing"})
        _, why = statuses(cluster)["odd/dead"]
        assert why is not None
        assert why.startswith("tcp://127.0.0.1:1"), "its last error stands first"
        assert "failures in a row, and nothing landed since" in why
        said = cluster.feedq("status")
        for part in (
            "failing: 1 feed: odd/dead (tcp://127.0.0.1:1",
            "refusing: 1 feed: odd/refused",
            "dead letters: ",
        ):
            assert part in said
        port.wait("/readyz", 200)
        assert port.value("feedq_worker_feeds", status="streaming") == 3
        assert port.value("feedq_worker_feeds", status="refusing") == 1

        flag.touch()
        wait_for(cluster, dict.fromkeys([*NEIGHBOURS, "odd/stuck", "odd/refused"], "stalled"))
        _, why = statuses(cluster)["f/1"]
        assert why is not None
        assert why.startswith("its worker w1@")
        assert "has stood still for" in why
        assert "streaming" not in cluster.feedq("feed", "list")
        assert "FAIL: loops: w1@" in cluster.feedq("status")
        doctor = cluster.run("doctor")
        assert doctor.returncode == 1
        assert "has stood still for" in doctor.stdout
        port.wait("/readyz", 503)
        assert "the event loop has stood still" in port.reason("/readyz")
        assert port.value("feedq_worker_feeds", status="streaming") == 0
        assert port.value("feedq_worker_feeds", status="stalled") >= 4
        assert port.value("feedq_loop_lag_seconds") > 2
