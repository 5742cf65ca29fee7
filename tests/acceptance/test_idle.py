"""A fleet with nothing to do leaves processors and database alone, and still sees at once that a worker died."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from feedq.local.process import free_port
from tests import thread_names
from tests.cluster import ROOT, Cluster, Place, feed, wait_until
from tests.invariants import wait_streaming
from tests.source_process import Source

WINDOW_S = 2.0
TRANSACTIONS_MAX_PER_S = 40
"""Three workers and two beats make about ten once they have settled; with a look each 10 ms they would be about a
hundred."""
CORES_MAX = 0.3
"""Of all workers and beats, on a machine that is busy with other things; about a tenth of that on a quiet one."""
THREADS_MAX, SESSIONS_MAX = 9, 4
CALM_LIMIT_S = 180.0
"""On a machine where all is slow, two passes often overlap, and each needs a thread and a session for a while."""
SEEN_MAX_S = 3.0
"""Less than a ttl, which is what it takes when nobody hears of the death."""


@pytest.fixture
def fleet(place: Place) -> Iterator[Cluster]:
    with place.cluster() as cluster:
        for name in ("b1", "b2"):
            cluster.add_beat(name)
        cluster.add_workers(("w1", "w2", "w3"), gossip=True)
        yield cluster


def test_an_idle_fleet_costs_next_to_nothing_and_a_crash_is_heard_of(fleet: Cluster) -> None:
    waiting = """
        SELECT count(*) AS n FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'feedq-waiter/%'
            AND wait_event_type = 'Lock' AND wait_event = 'advisory'
    """
    # One for each worker, and one of the beat that stands by.
    wait_until(lambda: fleet.sql(waiting)[0]["n"] == 4, "each session waits for another")
    rates: list[tuple[float, float]] = []

    def is_calm() -> bool:
        before, began = (transactions(fleet), used_s(fleet)), time.monotonic()
        time.sleep(WINDOW_S)  # that is measured
        after, took_s = (transactions(fleet), used_s(fleet)), time.monotonic() - began
        rates.append(((after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s))
        return rates[-1][0] <= TRANSACTIONS_MAX_PER_S and rates[-1][1] <= CORES_MAX

    wait_until(is_calm, lambda: f"transactions a second and cores: {rates}")

    victim = fleet.workers["w1"]
    worker_id = fleet.worker_id(victim)
    killed_at = victim.signal(signal.SIGKILL)
    gone = "SELECT 1 FROM feedq.event WHERE kind = 'worker_gone' AND worker_id = %s"
    seen_at = wait_until(lambda: fleet.sql(gone, (worker_id,)), "its end is seen")
    assert seen_at - killed_at <= SEEN_MAX_S


def test_a_worker_with_one_sink_in_use_has_few_threads_and_sessions(place: Place) -> None:
    """What each of them is for: docs/explanation/worker.md."""
    with Source(rate=5) as source, place.cluster() as cluster:
        cluster.add_beat("b1")
        names = cluster.directory / "threads"
        env = {
            "FEEDQ_METRICS_PORT": str(free_port()),
            "FEEDQ_IMPORTS": "tests.thread_names",
            thread_names.VARIABLE: str(names),
        }
        worker = cluster.add_worker("w1", env=env, gossip=True)
        cluster.apply([feed("a", source.url)])
        wait_streaming(source, ["a"])

        def sessions() -> list[str]:
            return [row["application_name"] for row in cluster.backends(worker)]

        def is_calm() -> bool:
            return len(names.read_text().split()) <= THREADS_MAX and len(sessions()) <= SESSIONS_MAX

        wait_until(is_calm, lambda: f"{names.read_text().split()}, {sessions()}", limit_s=CALM_LIMIT_S)
        documented = (ROOT / "docs" / "explanation" / "worker.md").read_text()
        for name in names.read_text().split():
            stem = re.sub(r"-(default|[0-9]+)$", "-…", name).replace("MainThread", "main")
            assert f"| {stem} |" in documented or f"| `{stem}` |" in documented


def transactions(fleet: Cluster) -> int:
    """Of all sessions in the control database, as far as they have told."""
    (row,) = fleet.sql(
        "SELECT xact_commit + xact_rollback AS n FROM pg_stat_database WHERE datname = current_database()"
    )
    return int(row["n"])


def used_s(fleet: Cluster) -> float:
    nodes = [*fleet.workers.values(), *fleet.beats.values()]
    times = [psutil.Process(node.pid).cpu_times() for node in nodes]
    return float(sum(one.user + one.system for one in times))
