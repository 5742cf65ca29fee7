"""SIGTERM while a server does not answer: the worker leaves in time, and with status 0, all the same."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, feed, feed_names
from tests.invariants import wait_streaming
from tests.proxy import PlainProxy, PostgresProxy
from tests.source_process import Source

FEEDS = feed_names(20, prefix="leaving")


@pytest.fixture
def proxies(database_url: str, broker_url: str) -> Iterator[dict[str, PostgresProxy]]:
    with PostgresProxy(database_url) as database, PlainProxy(broker_url) as broker:
        yield {"database": database, "broker": broker}


@pytest.mark.parametrize(
    ("hang", "end"),
    [
        pytest.param(["database", "broker"], [], id="both-hang"),
        pytest.param([], ["database", "broker"], id="both-gone"),
    ],
)
def test_a_worker_leaves_in_time_whatever_does_not_answer(
    tmp_path: Path,
    database_url: str,
    broker_url: str,
    proxies: dict[str, PostgresProxy],
    hang: list[str],
    end: list[str],
) -> None:
    through = {
        "FEEDQ_DATABASE_URL": proxies["database"].url,
        "FEEDQ_BROKER_URL": proxies["broker"].url,
    }
    with (
        Source(rate=20) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("b1")
        worker = cluster.add_worker("w1", env=through)
        cluster.apply([feed(name, source.url) for name in FEEDS])
        wait_streaming(source, FEEDS)
        for name in hang:
            proxies[name].hang()
        for name in end:
            proxies[name].refuse()
        time.sleep(0.5)  # long enough for the worker to run into it
        began = worker.signal(signal.SIGTERM)
        status = worker.wait(20)
        took = time.monotonic() - began
        assert status == 0, worker.text()[-4000:]
        # Two seconds is the promise; the rest is for a busy machine.
        assert took < 5, worker.text()[-4000:]
