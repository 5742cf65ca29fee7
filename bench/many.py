"""One worker with 2,000 feeds of five records a second: CPU of the worker and of PostgreSQL, and the delay.

CPU is what the worker's process and all processes of the database server use together, by the kernel's count: the
control database's share is in it, as it is the same server. The delay of a record is from its receipt, which
feedq lands beside it, to the commit of its transaction, which the server keeps (``track_commit_timestamp``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.report import Figure, at_most, say
from bench.servers import COMMIT_TIMES, running
from feedq.local.postgres import Postgres
from tests.cluster import Cluster, feed, feed_names
from tests.invariants import check_invariants, wait_streaming
from tests.source_process import Source

FEEDS = 2_000
RATE = 5.0
SETTLE_S = 8.0
WINDOW_S = 20.0

CPU_MUST_CORES = 1.0
P50_MUST_S = 0.4
P99_MUST_S = 1.0

DELAYS = """
SELECT count(*) AS n, percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (ORDER BY delay_s) AS delays
FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - received_at)::float8 AS delay_s
      FROM landed WHERE received_at BETWEEN to_timestamp(%s) AND to_timestamp(%s)) AS recent
"""


def measure(directory: Path, *, feeds: int = FEEDS) -> Iterator[Figure]:
    with running(directory, settings=COMMIT_TIMES) as (postgres, valkey):
        yield from _measure(directory, postgres, valkey.url(), feeds=feeds)


def _measure(directory: Path, postgres: Postgres, broker_url: str, *, feeds: int) -> Iterator[Figure]:
    url = postgres.create_database("many")
    names = feed_names(feeds)
    with (
        Source(rate=RATE) as source,
        Cluster(directory, database_url=url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("beat")
        worker = cluster.add_worker("w1", capacity=feeds)
        cluster.apply([feed(name, source.url) for name in names])
        wait_streaming(source, names, limit_s=120)
        time.sleep(SETTLE_S)

        began, at = time.monotonic(), time.time()
        before = cpu_s(worker.pid), server_cpu_s(cluster)
        time.sleep(WINDOW_S)
        took_s, until = time.monotonic() - began, time.time()
        after = cpu_s(worker.pid), server_cpu_s(cluster)
        ours, theirs = ((b - a) / took_s for a, b in zip(before, after, strict=True))

        (found,) = cluster.sql(DELAYS, (at, until - 2 * P99_MUST_S))
        p50_s, p99_s, worst_s = found["delays"]
        rate = found["n"] / (took_s - 2 * P99_MUST_S)
        say(f"many: {rate:,.0f} rows/s, worst delay {worst_s:.2f} s")
        load = f"{feeds} feeds of {RATE:g} records/s on one worker"
        split = f"worker {ours:.2f}, PostgreSQL {theirs:.2f}"
        yield at_most(f"{load}: CPU with PostgreSQL's", CPU_MUST_CORES, ours + theirs, "cores", runs=split)
        yield at_most(f"{load}: receipt to commit, p50", P50_MUST_S, p50_s, "s")
        yield at_most(f"{load}: receipt to commit, p99", P99_MUST_S, p99_s, "s")
        assert rate > 0.9 * feeds * RATE, f"only {rate:,.0f} rows/s came: the source did not keep up"
        check_invariants(cluster, source, names)


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, in seconds."""
    times = psutil.Process(pid).cpu_times()
    used: float = times.user + times.system
    return used


def server_cpu_s(cluster: Cluster) -> float:
    """CPU time of all processes of the database server, those that have ended included."""
    (backend,) = cluster.sql("SELECT pg_backend_pid() AS pid")
    server = psutil.Process(backend["pid"]).parent()
    assert server is not None
    own = server.cpu_times()
    ended: float = own.user + own.system + own.children_user + own.children_system
    return ended + sum(cpu_s(child.pid) for child in server.children())
