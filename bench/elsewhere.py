"""One of two workers alone is cut off from the source; and a feed without a table, which is then created.

Feeds of 20 records a second stream through a proxy that knows which process dials. Once one worker is cut off, its
feeds have to land on the other, and nothing may be assigned to the first for half a minute, although it is empty.
After every run the invariants are checked: nothing lost, nothing twice.

The feed without a table failed half a minute before it gets one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.report import Figure, at_most, say
from bench.servers import running
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import check_invariants, mark, wait_resumed, wait_streaming
from tests.proxy import SourceProxy
from tests.source_process import Source

FEEDS = 60
WATCHED_S = 30.0
FAILED_S = 30.0
LIMIT_S = 120.0
MUST_S = 15.0


def measure(directory: Path, *, feeds: int = FEEDS) -> Iterator[Figure]:
    names = feed_names(feeds)
    with (
        running(directory) as (postgres, valkey),
        Source() as source,
        SourceProxy(source.url) as proxy,
        SourceProxy(url := postgres.create_database("elsewhere")) as lake,
        Cluster(
            directory, database_url=url, broker_url=valkey.url(), env={"FEEDQ_SINKS__LAKE": lake.url}
        ) as cluster,
    ):
        cluster.add_beat("b1")
        for worker in ("w1", "w2"):
            cluster.add_worker(worker)
        cluster.apply([feed(name, proxy.url) for name in names])
        wait_streaming(source, names)
        yield from _cut_off(cluster, source, proxy, names)
        yield from _mended(cluster, source)
        proxy.let_in(cluster.workers["w1"].pid)
        yield from _cut_off_from_sink(cluster, source, lake)


def _cut_off(cluster: Cluster, source: Source, proxy: SourceProxy, names: list[str]) -> Iterator[Figure]:
    first = cluster.workers["w1"]
    wait_until(lambda: len(cluster.feeds_of(first)) == len(names) // 2, "an even fleet", limit_s=LIMIT_S)
    cut, before, given = cluster.feeds_of(first), mark(source), _assigned(cluster, "w1")
    proxy.cut_off(first.pid)
    took = wait_resumed(source, cut, after=before, limit_s=LIMIT_S)
    say(f"elsewhere: {took}")
    yield at_most("cut off from the source: its feeds land on the other", MUST_S, took.last_s, "s")
    time.sleep(WATCHED_S)
    back = _assigned(cluster, "w1") - given
    yield at_most(f"cut off from the source: come back within {WATCHED_S:g} s", 0, back, "feeds")
    check_invariants(cluster, source, names)


def _cut_off_from_sink(cluster: Cluster, source: Source, lake: SourceProxy) -> Iterator[Figure]:
    names = feed_names(FEEDS // 2, prefix="lake")
    sink = {"name": "lake", "table": "landed"}
    cluster.apply([{**feed(name, source.url), "sink": sink} for name in names])
    wait_streaming(source, names)
    first = cluster.workers["w1"]
    cut = sorted(set(names) & set(cluster.feeds_of(first)))
    assert cut, "the first worker has none of them"

    def landing_since(moment: Any) -> set[str]:
        rows = cluster.sql("SELECT DISTINCT feed FROM landed WHERE received_at > %s AND epoch > 1", (moment,))
        return {row["feed"] for row in rows}

    began, moment = time.monotonic(), cluster.sql("SELECT clock_timestamp() AS now")[0]["now"]
    lake.cut_off(first.pid)
    landed_at = wait_until(
        lambda: landing_since(moment) >= set(cut), "they land by way of the other", limit_s=LIMIT_S
    )
    yield at_most("cut off from the sink: its feeds land by way of the other", MUST_S, landed_at - began, "s")
    given = _assigned(cluster, "w1")
    time.sleep(WATCHED_S)
    back = len(set(names) & set(cluster.feeds_of(first)))
    yield at_most(f"cut off from the sink: come back within {WATCHED_S:g} s", 0, back, "feeds")
    say(f"the first worker was given {_assigned(cluster, 'w1') - given} feeds meanwhile")
    lake.let_in(first.pid)
    check_invariants(cluster, source, names)


def _mended(cluster: Cluster, source: Source) -> Iterator[Figure]:
    sink = {"name": "default", "table": "comes_later", "columns": {"seq": "/seq"}}
    cluster.apply([{**feed("mended", source.url), "sink": sink}])
    wait_until(lambda: cluster.leases()["mended"].last_error is not None, "it has failed", limit_s=LIMIT_S)
    time.sleep(FAILED_S)
    began = time.monotonic()
    cluster.sql("CREATE TABLE comes_later (seq bigint)")
    streams_at = wait_streaming(source, ["mended"], limit_s=LIMIT_S)
    yield at_most(f"table created {FAILED_S:g} s after it failed: streams", MUST_S, streams_at - began, "s")


def _assigned(cluster: Cluster, worker: str) -> int:
    """How many feeds were ever given to it."""
    sql = "SELECT coalesce(sum(count), 0) AS n FROM feedq.event WHERE kind = 'lease_assigned' AND worker_id = %s"
    return int(cluster.sql(sql, (cluster.worker_id(cluster.workers[worker]),))[0]["n"])
