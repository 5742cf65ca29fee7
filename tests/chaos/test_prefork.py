"""Celery's own pools under fire: children that are killed one by one, or orphaned."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import check_invariants, mark, wait_resumed, wait_streaming
from tests.node import Node
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

FEEDS = feed_names(2, prefix="prefork")


@pytest.fixture
def source() -> Iterator[Source]:
    with Source(rate=20) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as made:
        made.add_beat("b1")
        yield made


def streaming_children(worker: Node, source: Source) -> list[psutil.Process]:
    """The child processes that are connected to the source."""
    return [
        child
        for child in psutil.Process(worker.pid).children(recursive=True)
        if any(c.raddr and c.raddr.port == source.port for c in child.net_connections(kind="tcp"))
    ]


def test_a_feed_whose_child_process_was_killed_streams_again(cluster: Cluster, source: Source) -> None:
    worker = cluster.add_worker("w1", "-P", "prefork", capacity=4)
    cluster.apply([feed(name, source.url) for name in FEEDS])
    wait_streaming(source, FEEDS)
    children = streaming_children(worker, source)
    assert len(children) == len(FEEDS)
    before = mark(source)
    children[0].kill()
    wait_until(lambda: len(source.live()) == len(FEEDS) - 1, limit_s=5, what="its connection is closed")
    lost = set(FEEDS) - set(source.live())
    wait_resumed(source, lost, after=before, limit_s=30)
    check_invariants(cluster, source, FEEDS)
    assert worker.is_running()


def test_the_children_of_a_killed_worker_do_not_stream_on(cluster: Cluster, source: Source) -> None:
    worker = cluster.add_worker("w1", "-P", "prefork", capacity=4)
    cluster.apply([feed(name, source.url) for name in FEEDS])
    wait_streaming(source, FEEDS)
    children = streaming_children(worker, source)
    # One of the children is younger than the worker's own database sessions, and must not keep them open.
    before = mark(source)
    children[0].kill()
    wait_until(lambda: len(source.live()) == len(FEEDS) - 1, limit_s=5, what="its connection is closed")
    wait_resumed(source, set(FEEDS) - set(source.live()), after=before, limit_s=30)
    children = psutil.Process(worker.pid).children(recursive=True)

    cluster.add_worker("w2")
    before = mark(source)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10)
    took = wait_resumed(source, FEEDS, after=before, limit_s=20)
    check_invariants(cluster, source, FEEDS)
    assert took.last_s < 4, "the crash was not noticed before the ttl was over"
    for child in children:
        with suppress(psutil.NoSuchProcess):
            assert child.status() == psutil.STATUS_ZOMBIE
