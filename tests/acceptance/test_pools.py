"""The same feed on Celery's own pools: for connectors that need a thread or a process of their own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import check_invariants, wait_streaming
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

SLOTS = 3


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_feeds_stream_pause_and_drain_on_the_pool(
    tmp_path: Path, database_url: str, broker_url: str, pool: str
) -> None:
    feeds = feed_names(SLOTS, prefix=pool)
    with (
        Source(rate=20) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("b1")
        # One slot stays free for ordinary tasks.
        worker = cluster.add_worker("w1", "-P", pool, capacity=SLOTS + 1)
        cluster.apply([feed(name, source.url) for name in feeds])
        wait_streaming(source, feeds)

        cluster.feedq("feed", "pause", feeds[0])
        wait_until(lambda: feeds[0] not in source.live(), limit_s=20, what="the paused feed lets go")
        assert set(source.live()) == set(feeds[1:])
        cluster.feedq("feed", "resume", feeds[0])
        wait_streaming(source, feeds)

        worker.signal(signal.SIGTERM)
        assert worker.wait(15) == 0, worker.text()[-4000:]
        wait_until(lambda: not source.live(), limit_s=5, what="every connection is closed")
        assert {row.state for row in cluster.leases().values()} == {"idle"}

        # What it had not committed when it let go is asked for again by whoever comes next.
        cluster.add_worker("w2")
        wait_streaming(source, feeds)
        check_invariants(cluster, source, feeds)
