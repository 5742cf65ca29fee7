"""One worker process with 10,000 feeds of one record a second, and everything else on the same machine.

The cold start counts from the launch of worker and beat, with the feeds declared beforehand and pacing off, to
the first record of the last feed: processes that start, a fleet that settles, placement, messages, claims,
fences and connects are all in it. Memory is resident memory over that of the same worker before it had feeds.
The delay of a record is from its receipt, which feedq lands beside it, to the commit of its transaction, which
the server keeps. The age of the worker's heartbeat is asked for ten times a second, from the launch to the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psutil
import psycopg2

from bench.fleet import idle_rss
from bench.many import DELAYS, cpu_s, server_cpu_s
from bench.report import Figure, at_most, say
from bench.servers import COMMIT_TIMES, running
from feedq.local.postgres import Postgres
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.faults import PACE_OFF
from tests.invariants import check_invariants
from tests.source_process import Source

FEEDS = 10_000
DECLARED_AT_ONCE = 1_000
START_LIMIT_S = 180.0
SETTLE_S = 10.0
WINDOW_S = 20.0
HEARTBEAT_POLL_S = 0.1

START_MUST_S = 10.0
RSS_MUST_KB = 20.0
CPU_MUST_CORES = 0.4
P99_MUST_S = 1.5
SESSIONS_MUST = 6
HEARTBEAT_MUST_S = 3.0
"""One is sent every 2 s; after 5 s the worker would stop its streams, after 6 s it would be gone."""

HEARTBEAT_AGE = """
SELECT max(extract(epoch FROM clock_timestamp() - heartbeat_at))::float8 FROM feedq.worker WHERE state = 'active'
"""


def measure(directory: Path, *, feeds: int = FEEDS) -> Iterator[Figure]:
    with running(directory, settings=COMMIT_TIMES) as (postgres, valkey):
        yield from _measure(directory, postgres, valkey.url(), feeds=feeds)


def _measure(directory: Path, postgres: Postgres, broker_url: str, *, feeds: int) -> Iterator[Figure]:
    url = postgres.create_database("scale")
    names = feed_names(feeds)
    with (
        Source(rate=1.0) as source,
        Cluster(directory, database_url=url, broker_url=broker_url, env=PACE_OFF) as cluster,
    ):
        before_bytes = idle_rss(cluster, feeds)
        for begin in range(0, feeds, DECLARED_AT_ONCE):
            cluster.apply([feed(name, source.url) for name in names[begin : begin + DECLARED_AT_ONCE]])
        with _heartbeat_ages(url) as ages_s:
            yield _cold_start(cluster, source, feeds=feeds)
            time.sleep(SETTLE_S)
            yield from _steady(cluster, source, feeds=feeds, before_bytes=before_bytes)
        yield at_most(f"{feeds} feeds: oldest heartbeat, start included", HEARTBEAT_MUST_S, max(ages_s), "s")
        check_invariants(cluster, source, names)


def _cold_start(cluster: Cluster, source: Source, *, feeds: int) -> Figure:
    servers_before_s = server_cpu_s(cluster)
    launched = time.monotonic()
    cluster.add_beat("beat")
    cluster.add_worker("w1", capacity=feeds, ready=False)
    wait_until(
        lambda: source.streaming().feeds == feeds,
        lambda: f"all of {feeds} feeds stream: {source.streaming().feeds} do",
        limit_s=START_LIMIT_S,
        interval_s=0.1,
    )
    took_s = source.streaming().last_began_at - launched
    used_s = cpu_s(cluster.workers["w1"].pid), server_cpu_s(cluster) - servers_before_s, source.cpu_s()
    spent = "CPU: worker {:.1f} s, PostgreSQL {:.1f} s, source {:.1f} s".format(*used_s)
    return at_most(
        f"cold start, {feeds} feeds on one worker, pacing off", START_MUST_S, took_s, "s", runs=spent
    )


def _steady(cluster: Cluster, source: Source, *, feeds: int, before_bytes: int) -> Iterator[Figure]:
    worker = cluster.workers["w1"]
    began, at = time.monotonic(), time.time()
    before = cpu_s(worker.pid), server_cpu_s(cluster), source.cpu_s()
    time.sleep(WINDOW_S)
    took_s, until = time.monotonic() - began, time.time()
    after = cpu_s(worker.pid), server_cpu_s(cluster), source.cpu_s()
    ours, servers, sources = ((b - a) / took_s for a, b in zip(before, after, strict=True))
    more_bytes = psutil.Process(worker.pid).memory_info().rss - before_bytes

    (found,) = cluster.sql(DELAYS, (at, until - 2 * P99_MUST_S))
    p50_s, p99_s, worst_s = found["delays"]
    rate = found["n"] / (took_s - 2 * P99_MUST_S)
    say(f"scale: {rate:,.0f} rows/s, delay p50 {p50_s:.2f} s, worst {worst_s:.2f} s")
    assert rate > 0.9 * feeds, f"only {rate:,.0f} rows/s came: the source did not keep up"
    besides = f"PostgreSQL {servers:.2f}, source {sources:.2f}"
    yield at_most(f"{feeds} feeds: memory of a feed", RSS_MUST_KB, more_bytes / feeds / 1000, "kB")
    yield at_most(f"{feeds} feeds: CPU of the worker", CPU_MUST_CORES, ours, "cores", runs=besides)
    yield at_most(f"{feeds} feeds: receipt to commit, p99", P99_MUST_S, p99_s, "s")
    yield at_most(f"{feeds} feeds: PostgreSQL sessions", SESSIONS_MUST, len(cluster.backends(worker)), "")


@contextmanager
def _heartbeat_ages(database_url: str) -> Iterator[list[float]]:
    """The ages of the oldest heartbeat of the fleet, in seconds, as they were while the block ran."""
    ages_s: list[float] = []
    over = Event()

    def ask() -> None:
        connection = psycopg2.connect(database_url, application_name="feedq-bench")
        connection.autocommit = True
        with connection.cursor() as cursor:
            while not over.wait(HEARTBEAT_POLL_S):
                cursor.execute(HEARTBEAT_AGE)
                ages_s.extend(age_s for (age_s,) in cursor.fetchall() if age_s is not None)
        connection.close()

    thread = Thread(target=ask, name="heartbeat-ages", daemon=True)
    thread.start()
    try:
        yield ages_s
    finally:
        over.set()
        thread.join()
