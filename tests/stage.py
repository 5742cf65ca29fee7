"""`Stage`: the cluster that every fault is tried on, and what brings it back between two of them.

60 feeds of 20 records a second, 3 workers, 2 beats, default settings: the set-up that the promises of the
README are about. A fault begins on a stage where everything streams and ends on one where it does again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedq.control.reconcile import CALM_FEEDS
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import Took, check_invariants, landed, mark, wait_resumed, wait_streaming
from tests.node import Node
from tests.source_process import Source

FEEDS = 60
RATE = 20.0
WORKERS = ("w1", "w2", "w3")
BEATS = ("b1", "b2")
CAPACITY = 100
TTL_S = 6.0
SETTLE_S = 1.5


class Stage:
    """A running cluster with its source and its servers."""

    def __init__(self, cluster: Cluster, source: Source, feeds: Sequence[str], *, postgres: Postgres) -> None:
        self.cluster = cluster
        self.source = source
        self.feeds = list(feeds)
        self.postgres = postgres
        self.frozen: set[int] = set()
        """Connections of processes that were frozen: those cannot be closed by their owner."""

    def heal(self, *, workers: Sequence[str] = WORKERS) -> None:
        """Start again what ended, and wait until everything streams."""
        self.cluster.heal(workers=workers, capacity=CAPACITY)
        self.cluster.wait_leader()
        wait_streaming(self.source, self.feeds)
        wait_until(self._is_settled, "the fleet's first ttl is over")
        wait_until(self._is_even, lambda: f"nothing is about to move: {self._held()}")
        wait_streaming(self.source, self.feeds)  # those that moved as well

    def _is_settled(self) -> bool:
        """Whether crashes count as such: after a start or an outage everyone gets one full ttl first."""
        rows = self.cluster.sql(
            "SELECT greatest(alive_since, pg_postmaster_start_time()) "
            "+ make_interval(secs => %s) < clock_timestamp() AS settled FROM feedq.fleet",
            (TTL_S,),
        )
        return bool(rows[0]["settled"])

    def _is_even(self) -> bool:
        """Whether a worker that came back has its part, so that nothing moves because of it any more."""
        workers = self._held()
        capacity = sum(row["capacity"] for row in workers)
        parts = [(row["running"], len(self.feeds) * row["capacity"] / capacity) for row in workers]
        return (
            all(row["looked_at"] for row in workers)
            and sum(running for running, _ in parts) == len(self.feeds)
            and all(abs(running - part) <= CALM_FEEDS for running, part in parts)
        )

    def _held(self) -> list[dict[str, Any]]:
        return self.cluster.sql(
            """
            SELECT w.name, w.capacity, count(l.feed_id) FILTER (WHERE l.state = 'running') AS running,
                   fleet.pass_at > w.started_at + make_interval(secs => %s) AS looked_at
            FROM feedq.fleet, feedq.worker w LEFT JOIN feedq.lease l ON l.worker_id = w.id
            WHERE w.state <> 'gone' GROUP BY w.id, fleet.pass_at
            """,
            (SETTLE_S,),
        )

    def busiest(self) -> Node:
        """The worker that holds most feeds."""
        return max(self._running(), key=lambda node: len(self.cluster.feeds_of(node)))

    def _running(self) -> list[Node]:
        return [node for node in self.cluster.workers.values() if node.status == "running"]

    def epochs_but(self, feeds: Collection[str]) -> dict[str, int]:
        """The epochs of all feeds but these: what a fault of theirs must leave alone."""
        return {name: epoch for name, epoch in self.cluster.epochs(self.feeds).items() if name not in feeds}

    def check(self, *, untouched: Mapping[str, int] | None = None) -> None:
        check_invariants(
            self.cluster, self.source, self.feeds, untouched=untouched, frozen=tuple(self.frozen)
        )

    def wait_landing(self, *, limit_s: float) -> float:
        """Wait until everything that was sent by now has landed; returns the moment it had."""
        sent = self.source.sent()

        def behind() -> int:
            have = landed(self.cluster)
            return sum(name not in have or have[name].last < sent[name] for name in self.feeds)

        return wait_until(
            lambda: behind() == 0,
            lambda: f"all feeds land again; {behind()} do not",
            limit_s=limit_s,
            interval_s=0.05,
        )

    def wait_resumed(self, feeds: Collection[str], fault: Callable[[], float], *, limit_s: float) -> Took:
        """Do the fault, which returns its moment, and wait until ``feeds`` stream on new connections."""
        before = mark(self.source)
        moment = fault()
        return wait_resumed(self.source, feeds, after=before, since=moment, limit_s=limit_s)


@contextmanager
def staged(directory: Path, *, postgres: Postgres, valkey: Valkey, database: str) -> Iterator[Stage]:
    """Set the stage, and clear it afterwards."""
    client = valkey.client()
    client.flushall()
    client.close()
    url = postgres.create_database(database)
    with (
        Source(rate=RATE) as source,
        Cluster(directory, database_url=url, broker_url=valkey.url()) as cluster,
    ):
        names = feed_names(FEEDS)
        for name in BEATS:
            cluster.add_beat(name)
        cluster.add_workers(WORKERS, capacity=CAPACITY)
        cluster.apply([feed(name, source.url) for name in names])
        stage = Stage(cluster, source, names, postgres=postgres)
        stage.heal()
        yield stage
    postgres.drop_database(database)


def wall_clock(monotonic: float) -> float:
    """The epoch seconds of a monotonic moment, to compare it with the database's stamps on this machine."""
    return time.time() - time.monotonic() + monotonic
