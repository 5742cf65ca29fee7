"""The cluster as Celery and its tools see it, through pytest-celery's own setup."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_celery import (
    CeleryBrokerCluster,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    RedisTestBroker,
)

from feedq.local.valkey import Valkey
from tests.acceptance.celery_nodes import ValkeyContainer, WorkerContainer
from tests.cluster import Cluster, Place, feed, feed_names, wait_until
from tests.invariants import check_invariants, mark, wait_resumed, wait_streaming
from tests.source_process import Source

FEEDS = feed_names(8, prefix="celery")


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with Source(rate=20) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(place: Place, source: Source) -> Iterator[Cluster]:
    with place.cluster() as running:
        running.add_beat("b1")
        running.add_workers(("w1", "w2"), "--include", "tests.acceptance.ordinary")
        running.apply([feed(name, source.url) for name in FEEDS])
        wait_streaming(source, FEEDS)
        yield running


@pytest.fixture
def celery_broker_cluster(valkey: Valkey) -> Iterator[CeleryBrokerCluster]:
    brokers = CeleryBrokerCluster(RedisTestBroker(ValkeyContainer(valkey)))
    yield brokers
    brokers.teardown()


@pytest.fixture
def celery_backend_cluster() -> None:
    """feedq keeps its results in its own tables."""


@pytest.fixture
def celery_worker_cluster(cluster: Cluster) -> Iterator[CeleryWorkerCluster]:
    workers = CeleryWorkerCluster(
        *(CeleryTestWorker(WorkerContainer(node), app=None) for node in cluster.workers.values())
    )
    yield workers
    workers.teardown()


def active(setup: CeleryTestSetup) -> dict[str, str]:
    """The running streams by task id, with the node that runs each, as ``inspect active`` lists them."""
    answers = setup.app.control.inspect(timeout=2.0).active() or {}
    return {
        task["id"]: node for node, tasks in answers.items() for task in tasks if "stream_feed" in task["name"]
    }


def test_every_node_is_ready_and_answers_a_ping(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(control=True, docker=True)
    workers = {worker.hostname() for worker in celery_setup.worker_cluster}

    def answering() -> set[str]:
        return {name for answer in celery_setup.app.control.ping(timeout=2.0) for name in answer}

    wait_until(lambda: answering() == workers, lambda: f"all of {workers} answer")


def test_inspect_active_lists_every_running_feed_on_its_worker(
    celery_setup: CeleryTestSetup, cluster: Cluster
) -> None:
    leases = cluster.leases().values()
    owners = {f"{row.feed_id}-{row.epoch}": row.worker for row in leases}
    wait_until(lambda: active(celery_setup) == owners, lambda: f"Celery shows {owners}")


def test_revoke_with_terminate_ends_one_stream_and_the_feed_starts_anew(
    celery_setup: CeleryTestSetup, cluster: Cluster, source: Source
) -> None:
    chosen = FEEDS[0]
    row = cluster.leases()[chosen]
    others = cluster.epochs(FEEDS[1:])
    before = mark(source)
    celery_setup.app.control.revoke(f"{row.feed_id}-{row.epoch}", terminate=True)
    wait_resumed(source, [chosen], after=before, limit_s=40)
    assert cluster.leases()[chosen].epoch > row.epoch
    check_invariants(cluster, source, FEEDS, untouched=others)


def test_revoke_with_terminate_also_ends_a_feed_in_quarantine_which_starts_anew_there(
    celery_setup: CeleryTestSetup, cluster: Cluster, source: Source
) -> None:
    chosen = FEEDS[1]
    others = cluster.epochs([feed for feed in FEEDS if feed != chosen])
    cluster.feedq("feed", "pause", chosen)
    wait_until(lambda: cluster.leases()[chosen].state == "idle", "paused")
    cluster.sql(
        "UPDATE feedq.lease SET quarantined = true, blamed = 2, blamed_at = clock_timestamp() WHERE feed_id = %s",
        (cluster.leases()[chosen].feed_id,),
    )
    before = mark(source)
    cluster.feedq("feed", "resume", chosen)
    wait_resumed(source, [chosen], after=before, limit_s=40)
    row = cluster.leases()[chosen]
    wait_until(lambda: f"{row.feed_id}-{row.epoch}" in active(celery_setup), "Celery shows the task")
    before = mark(source)
    celery_setup.app.control.revoke(f"{row.feed_id}-{row.epoch}", terminate=True)
    wait_resumed(source, [chosen], after=before, limit_s=40)
    assert cluster.leases()[chosen].epoch > row.epoch
    (lease,) = cluster.sql("SELECT quarantined, blamed FROM feedq.lease WHERE feed_id = %s", (row.feed_id,))
    assert (lease["quarantined"], lease["blamed"]) == (True, 2), "nobody was lost"
    check_invariants(cluster, source, FEEDS, untouched=others)


def test_an_ordinary_task_runs_beside_the_streams_and_is_acknowledged_at_its_end(
    celery_setup: CeleryTestSetup, cluster: Cluster, valkey: Valkey, source: Source
) -> None:
    client = valkey.client()
    try:
        celery_setup.app.send_task("tests.ordinary", args=("ordinary",), queue="feedq")
        wait_until(lambda: client.get("ordinary/begun") == b"1", "the task began")
        unacked = client.hlen("unacked")
        client.set("ordinary/go", "1")
        wait_until(lambda: client.get("ordinary/ended") == b"1", "the task ended")
        assert unacked >= 1
        wait_until(lambda: client.hlen("unacked") == 0, "the task was acknowledged")
    finally:
        client.close()
    check_invariants(cluster, source, FEEDS)
