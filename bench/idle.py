"""An installation with nothing to do: what it costs over all its processes, and how soon it sees a crash.

Three workers as the documentation starts them, two beats, Flower, PostgreSQL and Valkey, and three feeds that are
connected and silent. The CPU is that of all processes together, over a window without any change. A crash is seen
when the elected beat says so in its log; its event is written by the pass that follows. Both are timed from the
moment at which the source saw a connection of the killed worker close.
"""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psutil

from bench.report import Figure, at_most, say
from bench.servers import running
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from feedq.telemetry.logs import LogEvent
from tests.cluster import ROOT, Cluster, feed, feed_names, wait_until
from tests.flower import Flower
from tests.invariants import wait_streaming
from tests.node import Node
from tests.source_process import Source

WORKERS = ("w1", "w2", "w3")
FEEDS = 3
RECORDS_PER_S = 0.001
"""One on connecting, and then none for as long as this takes."""
CALM_S = 15.0
"""After the start: moves are over, sinks that were written to are left alone, pools are at rest."""
WINDOW_S = 30.0
KILLS = 7
LIMIT_S = 60.0

CPU_MUST_CORES = 0.03
SEEN_MUST_S = 0.005
MEMORY_MUST_MB = 115.0


def measure(directory: Path) -> Iterator[Figure]:
    with (
        running(directory) as (postgres, valkey),
        idle_fleet(directory, postgres, valkey) as (cluster, source, pids),
    ):
        time.sleep(CALM_S)
        largest = max(psutil.Process(pid).memory_info().rss for pid in pids["workers"])
        yield at_most("idle: memory of a worker without feeds", MEMORY_MUST_MB, largest / 1e6, "MB")
        names = feed_names(FEEDS)
        cluster.apply([feed(name, source.url) for name in names])
        wait_streaming(source, names, limit_s=LIMIT_S)
        time.sleep(CALM_S)
        before = processor_s(pids)
        time.sleep(WINDOW_S)
        used = processor_s(pids)
        parts = {kind: (seconds - before[kind]) / WINDOW_S for kind, seconds in used.items()}
        said = ", ".join(f"{kind} {cores:.4f}" for kind, cores in sorted(parts.items()))
        say(f"idle: {said}")
        yield at_most(
            "idle: 3 workers, 2 beats, Flower, servers, 3 feeds",
            CPU_MUST_CORES,
            sum(parts.values()),
            "cores",
            runs=said,
        )
        crashes = [_crash(cluster, source) for _ in range(KILLS)]
        seen_s, told_s = (sorted(each) for each in zip(*crashes, strict=True))
        for what, took_s, must_s in (("it is seen", seen_s, SEEN_MUST_S), ("its event", told_s, None)):
            say(f"idle: from a crash until {what}, ms: " + ", ".join(f"{1000 * s:.1f}" for s in took_s))
            median = statistics.median(took_s)
            yield Figure(
                f"idle: kill -9 of a worker, from its sockets' close until {what}, {KILLS} times",
                "" if must_s is None else f"median <= {1000 * must_s:g} ms",
                f"median {1000 * median:.1f} ms, last {1000 * took_s[-1]:.1f} ms",
                None if must_s is None else median <= must_s,
            )


@contextmanager
def idle_fleet(
    directory: Path, postgres: Postgres, valkey: Valkey
) -> Iterator[tuple[Cluster, Source, Mapping[str, list[int]]]]:
    """The installation without feeds, a source for them, and its processes by kind; children count with them."""
    with (
        Source(rate=RECORDS_PER_S) as source,
        Cluster(directory, database_url=postgres.create_database("idle"), broker_url=valkey.url()) as cluster,
    ):
        beats = [cluster.add_beat(name, env={"FEEDQ_LOG_FORMAT": "json"}) for name in ("b1", "b2")]
        cluster.add_workers(WORKERS, gossip=True)
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "flower", "--port=0", "--address=127.0.0.1"]
        node = Node("flower", argv, env=cluster.env, cwd=ROOT, log=directory / "flower.log")
        try:
            Flower(node)
            yield (
                cluster,
                source,
                {
                    "PostgreSQL": [postgres.pid],
                    "Valkey": [valkey.pid],
                    "workers": [worker.pid for worker in cluster.workers.values()],
                    "beats": [beat.pid for beat in beats],
                    "Flower": [node.pid],
                },
            )
        finally:
            node.end()


def processor_s(pids: Mapping[str, list[int]]) -> dict[str, float]:
    """Seconds that these processes have used, with their children; monitors of workers apart."""
    used: defaultdict[str, float] = defaultdict(float)
    for kind, roots in pids.items():
        for root in map(psutil.Process, roots):
            used[kind] += _used_s(root)
            for child in root.children(recursive=True):
                used["monitors" if kind == "workers" else kind] += _used_s(child)
    return used


def _used_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _crash(cluster: Cluster, source: Source) -> tuple[float, float]:
    """Kill a worker that has a feed, and start it again. How soon it was seen, and written down."""
    held = {row.worker.partition("@")[0]: name for name, row in cluster.leases().items() if row.worker}
    name, held_feed = next(
        (worker, feed_name) for worker, feed_name in held.items() if worker in cluster.workers
    )
    victim = cluster.workers[name]
    worker_id = cluster.worker_id(victim)
    (connection,) = [c for c in source.connections() if c.feed == held_feed and c.is_live()]
    victim.signal(signal.SIGKILL)
    gone = (
        "SELECT extract(epoch FROM at)::float8 AS at FROM feedq.event "
        "WHERE kind = 'worker_gone' AND worker_id = %s"
    )
    wait_until(lambda: cluster.sql(gone, (worker_id,)), "the crash is seen")
    (row,) = cluster.sql(gone, (worker_id,))
    wall_s = time.time() - time.monotonic()
    said = [line for beat in cluster.beats.values() for line in beat.events(LogEvent.WORKER_CRASHED)]
    seen_at = max(datetime.fromisoformat(line["timestamp"]).timestamp() for line in said) - wall_s
    (closed_at,) = [c.closed_at for c in source.connections() if c.id == connection.id]
    assert closed_at is not None
    victim.wait(10)
    cluster.add_worker(name, gossip=True)
    wait_until(lambda: len(source.live()) == FEEDS, "all feeds are connected again")
    time.sleep(2.5)  # the new one has settled, has its part of the feeds, and is waited for
    return seen_at - closed_at, float(row["at"]) - wall_s - closed_at
