"""A backfill of a million records beside its feed: how late live records land, and whether each is there once.

The source numbers its records and says when each was due. The live stream begins after the first million, and each
row notes when it landed. The worker that has the backfill is killed twice on the way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.report import Figure, at_most, say
from bench.servers import running
from tests.cluster import Cluster, feed, wait_until
from tests.source_process import Source

PAST = 1_000_000
RATE = 1_000.0
QUIET_S = 10.0
DELAY_MAX_S = 1.0
LIMIT_S = 170.0
LIVE = "bench/live"
CHILD = f"{LIVE}~backfill"
WORKERS = ("w1", "w2", "w3")


def measure(directory: Path) -> Iterator[Figure]:
    with (
        running(directory) as (postgres, valkey),
        Source(rate=RATE, age_s=PAST / RATE) as source,
        Cluster(
            directory, database_url=postgres.create_database("backfill"), broker_url=valkey.url()
        ) as cluster,
    ):
        cluster.sql(
            "CREATE TABLE numbers (seq bigint PRIMARY KEY, at double precision, "
            "landed_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        cluster.add_beat("b1")
        for name in WORKERS:
            cluster.add_worker(name)
        sink = {"table": "numbers", "columns": {"seq": "/seq", "at": "/at"}, "key": ["seq"]}
        cluster.apply([feed(LIVE, source.url) | {"sink": sink, "initial_cursor": PAST}])
        wait_until(lambda: _landed(cluster, PAST + 1), "the live stream lands", limit_s=LIMIT_S)
        time.sleep(QUIET_S)
        alone = _last(cluster)
        yield at_most("live stream alone: delay p99", DELAY_MAX_S, _delay_s(cluster, PAST, alone), "s")
        began = time.monotonic()
        cluster.feedq("feed", "backfill", "begin", LIVE, "--from", "0", "--to", str(PAST))
        for part in (3, 2):
            wait_until(partial(_landed, cluster, PAST // part), f"1/{part} landed", limit_s=LIMIT_S)
            _kill(cluster)
        wait_until(lambda: _status(cluster) == "finished", "it is finished", limit_s=LIMIT_S)
        took_s = time.monotonic() - began
        yield at_most(
            f"{RATE:g} live records/s beside a backfill whose worker is killed twice: delay p99",
            DELAY_MAX_S,
            _delay_s(cluster, alone, _last(cluster)),
            "s",
        )
        (row,) = cluster.sql("SELECT count(*) AS rows, max(seq) AS last FROM numbers")
        missing = row["last"] - row["rows"]
        yield Figure(f"of {row['last']:,} records", "each once", f"{missing} missing", missing == 0)
        yield Figure(f"backfill of {PAST:,} records", "-", f"{took_s:.0f} s, {PAST / took_s:,.0f}/s", None)


def _kill(cluster: Cluster) -> None:
    """Kill the worker that has the backfill, and start it again."""
    wait_until(lambda: _owner(cluster, CHILD) is not None, "it has a worker", limit_s=LIMIT_S)
    name = _owner(cluster, CHILD)
    assert name is not None
    say(f"backfill: {name} is killed (the live stream is on {_owner(cluster, LIVE)})")
    cluster.workers[name].end()
    cluster.heal(workers=WORKERS)


def _owner(cluster: Cluster, of: str) -> str | None:
    worker = cluster.leases()[of].worker
    return None if worker is None else worker.partition("@")[0]


def _landed(cluster: Cluster, seq: int) -> bool:
    return bool(cluster.sql("SELECT 1 FROM numbers WHERE seq = %s", (seq,)))


def _last(cluster: Cluster) -> int:
    (row,) = cluster.sql("SELECT max(seq) AS last FROM numbers")
    return int(row["last"])


def _status(cluster: Cluster) -> str:
    time.sleep(0.3)  # a command each
    return str(json.loads(cluster.feedq("feed", "backfill", "show", LIVE, "--json"))["status"])


def _delay_s(cluster: Cluster, after: int, upto: int) -> float:
    (row,) = cluster.sql(
        "SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM landed_at) - at) AS p99 "
        "FROM numbers WHERE seq > %s AND seq <= %s",
        (after, upto),
    )
    return float(row["p99"])
