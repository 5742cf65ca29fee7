"""What a source sees of a cold start and of a failover: its pace, however many workers, and a failover's burst."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from feedq.core.limits import FAILOVER_BURST_S
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import check_invariants, mark, wait_resumed, wait_streaming
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]
Measured = Callable[[str, object], None]

FEEDS = 200
PACE_PER_S = 20.0
WINDOW_S = 1.0


def most_in_a_window(moments: Iterable[float]) -> int:
    """How many connections began in the busiest second."""
    times = sorted(moments)
    return max(sum(start <= at < start + WINDOW_S for at in times) for start in times)


def test_a_host_sees_its_pace_at_a_cold_start_of_two_workers_and_at_a_failover(
    tmp_path: Path, postgres: Postgres, valkey: Valkey, measured: Measured
) -> None:
    names = feed_names(FEEDS, prefix="paced")
    url = postgres.create_database("ramp")
    pace = json.dumps({"127.0.0.1": PACE_PER_S, "*": 1_000})
    with (
        Source(rate=1.0) as source,
        Cluster(
            tmp_path,
            database_url=url,
            # The stage's nodes bear the same names: keep out of their queues.
            broker_url=valkey.url(database=2),
            env={
                "FEEDQ_HOST_CONNECTS_PER_S": pace,
                "FEEDQ_SETTLE_S": "2",
                "FEEDQ_HEARTBEAT_S": "3",
            },
        ) as cluster,
    ):
        # The last one has another host, and stands behind all the others.
        other = feed("z/other", source.url.replace("127.0.0.1", "localhost"))
        cluster.apply([*(feed(name, source.url) for name in names), other])
        cluster.add_beat("b1")
        for name in ("w1", "w2"):
            cluster.add_worker(name, capacity=2 * FEEDS, ready=False)
        for name in ("w1", "w2"):
            cluster.wait_worker(name)
        wait_streaming(source, [*names, "z/other"])

        began = [(c.connected_at, c.feed) for c in source.connections()]
        first = min(began)[0]
        assert min(at for at, name in began if name == "z/other") - first < 1.5, "it has a pace of its own"
        paced = [at for at, name in began if name != "z/other"]
        took_s = max(paced) - min(paced)
        measured("cold start: most connections in a second", most_in_a_window(paced))
        measured("cold start: seconds for all of them", round(took_s, 2))
        assert most_in_a_window(paced) <= 1.5 * PACE_PER_S * WINDOW_S
        assert took_s < 2 * FEEDS / PACE_PER_S, "and no slower than that"

        victim = cluster.workers["w2"]
        moved = [name for name in cluster.feeds_of(victim) if name != "z/other"]
        assert len(moved) >= FEEDS / 2 - 1
        before = mark(source)
        victim.signal(signal.SIGKILL)
        took = wait_resumed(source, moved, after=before, limit_s=30)
        again = [c.connected_at for c in source.connections(since=before.connections) if c.feed in moved]
        measured("failover: most connections in a second", most_in_a_window(again))
        measured("failover of a worker", took)
        assert most_in_a_window(again) <= PACE_PER_S * (1.5 * WINDOW_S + FAILOVER_BURST_S) < len(moved)
        wait_until(
            lambda: cluster.sql("SELECT 1 FROM feedq.fleet WHERE active_workers = 1"),
            limit_s=20,
            what="one worker has the whole pace",
        )
        check_invariants(cluster, source, [*names, "z/other"])
    postgres.drop_database("ramp")
