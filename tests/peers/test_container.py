"""A worker that is the first process of a container: all others end with that, and its last words are heard all
the same. A process namespace is what a container engine makes, too; `unshare` is part of util-linux.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import poison
from tests.cluster import ROOT, Cluster, wait_until
from tests.isolation import declared
from tests.node import Node

pytestmark = pytest.mark.timeout(180)

IN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
ABORTED = 128 + signal.SIGABRT


@pytest.fixture
def cluster(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Cluster]:
    poison.install(tmp_path)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "FEEDQ_STATE_DIR": str(tmp_path / "state")}
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=env) as made:
        made.add_beat("b1")
        yield made


def start_contained(cluster: Cluster, name: str) -> Node:
    celery = [sys.executable, "-m", "celery", "-A", "feedq", "worker", "-n", f"{name}@contained", "-c", "10"]
    node = cluster._node(name, [*IN_NAMESPACE, *celery, "--without-mingle", "--without-gossip"], env=None)
    cluster.workers[name] = node
    wait_until(
        lambda: cluster.sql(
            "SELECT 1 FROM feedq.worker WHERE state = 'active' AND name = %s", (f"{name}@contained",)
        ),
        lambda: f"{name} is registered ({node.status}):\n{node.text()[-3000:]}",
    )
    return node


def first_process(node: Node) -> psutil.Process:
    (first,) = psutil.Process(node.pid).children()
    return first


def test_the_last_words_of_a_contained_worker_are_heard(cluster: Cluster, tmp_path: Path) -> None:
    flag = tmp_path / "poison"
    node = start_contained(cluster, "w1")
    cluster.apply([declared("bad", options={"then": "abort", "while_exists": str(flag)})])
    wait_until(lambda: cluster.leases()["bad"].records_total, "it lands")
    flag.touch()
    assert node.wait(60) == ABORTED
    (lost,) = cluster.sql("SELECT loss FROM feedq.worker WHERE loss IS NOT NULL")
    assert "Aborted" in lost["loss"]
    (lease,) = cluster.sql("SELECT quarantined, blame FROM feedq.lease")
    assert lease["quarantined"]
    assert "poison.py" in lease["blame"]


def test_a_contained_worker_leaves_in_good_order_when_it_is_told_to(cluster: Cluster) -> None:
    node = start_contained(cluster, "w1")
    cluster.apply([declared("good")])
    wait_until(lambda: cluster.leases()["good"].records_total, "it lands")
    first_process(node).send_signal(signal.SIGTERM)
    assert node.wait(60) == 0
    (worker,) = cluster.sql("SELECT state, loss FROM feedq.worker")
    assert worker == {"state": "gone", "loss": None}
    assert cluster.sql("SELECT 1 FROM feedq.event WHERE kind = 'worker_left'")


def test_unshare_works_here() -> None:
    ran = subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"process namespaces are not to be had here (as root they are): {ran.stderr}"
