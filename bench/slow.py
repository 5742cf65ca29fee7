"""2,000 slow feeds into typed columns: CPU of worker and PostgreSQL, against another commit.

By hand only (``make bench ARGS="slow --before COMMIT"``, three minutes; without a commit it is the one before). A
worker of each commit streams feeds of five records a second into one table, both at the same time: what else the
machine does falls on both alike. Each has its own source, broker and PostgreSQL. The other commit needs to know
nothing of this benchmark. CPU is counted as in `bench.many`, for each row that lands; the ratio is the median of
several windows.
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
WINDOW_S: Final = 20.0
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
    """CPU of each side in a window, in cores at the rate of the source: a busy machine may be behind."""
    rows, used = [side.rows() for side in sides], [side.cpu_s() for side in sides]
    time.sleep(WINDOW_S)
    used = [side.cpu_s() - before for side, before in zip(sides, used, strict=True)]
    rows = [side.rows() - before for side, before in zip(sides, rows, strict=True)]
    due = FEEDS * RATE * WINDOW_S
    assert min(rows) > due / 2, f"only {rows} of {due:,.0f} rows landed"
    return tuple(cpu_s / landed * FEEDS * RATE for cpu_s, landed in zip(used, rows, strict=True))
