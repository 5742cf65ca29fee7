"""One worker with 2,000 feeds of one record a second: start, memory, CPU and database sessions.

The cold start counts from the launch of the worker and the beat, with the feeds declared beforehand, to the
first record of the last feed. The connect pace is off: all feeds are of one host, to which a fleet otherwise opens
200 connections a second (`FEEDQ_HOST_CONNECTS_PER_S`). Memory is resident memory over that of the same worker
before it had feeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.report import Figure, at_most, say
from bench.servers import running
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import Cluster, feed, feed_names
from tests.faults import PACE_OFF
from tests.invariants import check_invariants, wait_streaming
from tests.node import Node
from tests.source_process import Source

FEEDS = 2_000
SETTLE_S = 5.0
"""Before memory is read, of the idle worker and of the busy one: imports and first buffers are in place."""
WINDOW_S = 15.0

START_MUST_S = 6.0
RSS_MUST_KB = 40.0
CPU_MUST_CORES = 0.5
SESSIONS_MUST = 6


def measure(directory: Path, *, feeds: int = FEEDS) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        yield from _measure(directory, postgres, valkey, feeds=feeds)


def _measure(directory: Path, postgres: Postgres, valkey: Valkey, *, feeds: int) -> Iterator[Figure]:
    url = postgres.create_database("fleet")
    names = feed_names(feeds)
    with (
        Source(rate=1.0) as source,
        Cluster(directory, database_url=url, broker_url=valkey.url(), env=PACE_OFF) as cluster,
    ):
        before_bytes = idle_rss(cluster, feeds)
        cluster.apply([feed(name, source.url) for name in names])

        launched = time.monotonic()
        cluster.add_beat("beat")
        worker = cluster.add_worker("w1", capacity=feeds, ready=False)
        wait_streaming(source, names, limit_s=120)
        streaming = max(c.first_record_at or 0.0 for c in source.live().values())
        say(f"fleet: {feeds} feeds stream {streaming - launched:.2f} s after the launch")
        yield at_most(f"cold start, {feeds} feeds on one worker", START_MUST_S, streaming - launched, "s")

        time.sleep(SETTLE_S)
        cores = _cores(worker, WINDOW_S)
        rss = psutil.Process(worker.pid).memory_info().rss
        sessions = len(cluster.backends(worker))
        yield at_most(
            "memory of a feed over the idle worker", RSS_MUST_KB, (rss - before_bytes) / feeds / 1000, "kB"
        )
        yield at_most(f"CPU of the worker at {feeds} records/s", CPU_MUST_CORES, cores, "cores")
        yield at_most("PostgreSQL sessions of the worker", SESSIONS_MUST, sessions, "")
        check_invariants(cluster, source, names)


def idle_rss(cluster: Cluster, capacity: int) -> int:
    """Resident memory of a worker that has no feeds, in bytes."""
    worker = cluster.add_worker("idle", capacity=capacity)
    time.sleep(SETTLE_S)
    rss: int = psutil.Process(worker.pid).memory_info().rss
    worker.end(grace_s=10)
    del cluster.workers["idle"]
    return rss


def _cores(node: Node, window_s: float) -> float:
    process = psutil.Process(node.pid)
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(window_s)
    after, took_s = process.cpu_times(), time.monotonic() - began
    used: float = after.user + after.system - before.user - before.system
    return used / took_s
