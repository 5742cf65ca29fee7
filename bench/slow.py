"""2,000 slow feeds into typed columns: CPU of worker and PostgreSQL, against another commit.

By hand only (``make bench ARGS="slow --before COMMIT"``, two minutes; without a commit it is the one before). A
worker of each commit streams feeds of five records a second into one table, both at the same time: what else the
machine does falls on both alike. Each has its own source, broker and PostgreSQL. The other commit needs to
know nothing of this benchmark. CPU is counted as in `bench.many`; the ratio is the median of some windows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.before import ROOT, checked_out
from bench.many import FEEDS, RATE, SETTLE_S, cpu_s, server_cpu_s
from bench.report import Figure, at_most, say
from bench.servers import running
from tests.cluster import Cluster, feed, feed_names
from tests.invariants import wait_streaming
from tests.node import Node
from tests.source_process import Source

WINDOWS: Final = 5
WINDOW_S: Final = 10.0
MUST: Final = 0.9
TABLE: Final = "CREATE TABLE landed (feed text, seq bigint, at double precision, pad text, epoch bigint)"
COLUMNS: Final = {"feed": "/feed", "seq": "/seq", "at": "/at", "pad": "/pad", "epoch": "$epoch"}


@dataclass(frozen=True, slots=True)
class Side:
    """The installation of one commit."""

    cluster: Cluster
    worker: Node

    def cpu_s(self) -> float:
        return cpu_s(self.worker.pid) + server_cpu_s(self.cluster)

    def rows(self) -> int:
        (found,) = self.cluster.sql("SELECT count(*) AS n FROM landed")
        count: int = found["n"]
        return count


def measure(directory: Path, *, commit: str = "HEAD~1") -> Iterator[Figure]:
    with (
        checked_out(directory, commit) as tree,
        _side(directory / "one", tree) as before,
        _side(directory / "two", ROOT) as now,
    ):
        time.sleep(SETTLE_S)
        windows = [_window(before, now) for _ in range(WINDOWS)]
    for then, ours in windows:
        say(f"slow: now {ours:.3f} cores, {commit} {then:.3f}, ratio {ours / then:.2f}")
    case = f"{FEEDS} feeds of {RATE:g} records/s into columns: CPU with PostgreSQL's, this commit / {commit}"
    runs = "; ".join(f"{ours:.2f}/{then:.2f} cores" for then, ours in windows)
    yield at_most(case, MUST, statistics.median(ours / then for then, ours in windows), "", runs=runs)


@contextmanager
def _side(directory: Path, code: Path) -> Iterator[Side]:
    directory.mkdir()
    directory.chmod(0o711)
    names = feed_names(FEEDS)
    with running(directory) as (postgres, valkey), Source(rate=RATE) as source:
        url = postgres.create_database("slow")
        with Cluster(
            directory, database_url=url, broker_url=valkey.url(), migrate=False, forks=False, tree=code
        ) as cluster:
            cluster.feedq("db", "upgrade")
            cluster.sql(TABLE)
            cluster.add_beat("beat")
            worker = cluster.add_worker("w1", capacity=FEEDS)
            declared = [feed(name, source.url) for name in names]
            cluster.apply([{**one, "sink": {**one["sink"], "columns": COLUMNS}} for one in declared])
            wait_streaming(source, names, limit_s=300)
            yield Side(cluster, worker)


def _window(*sides: Side) -> tuple[float, ...]:
    """CPU that each side uses in a window, in cores."""
    rows = [side.rows() for side in sides]
    began, used = time.monotonic(), [side.cpu_s() for side in sides]
    time.sleep(WINDOW_S)
    took_s = time.monotonic() - began
    cores = tuple((side.cpu_s() - cpu) / took_s for side, cpu in zip(sides, used, strict=True))
    rates = [(side.rows() - count) / took_s for side, count in zip(sides, rows, strict=True)]
    assert min(rates) > 0.9 * FEEDS * RATE, f"only {rates} rows/s landed: the source did not keep up"
    return cores
