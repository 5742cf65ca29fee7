"""Commits whose answer is lost, or that reach the database late: the checkpoint decides, and nobody guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests import faults
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import mark, wait_resumed
from tests.proxy import Fault, PostgresProxy
from tests.source_process import Source
from tests.stage import Stage, wall_clock

Measured = Callable[[str, object], None]

FEEDS = feed_names(20, prefix="commit")
WRITER = "feedq-writer/"
LOST = "answer to a commit was lost; asking the checkpoint"
REPEATS = 5
HELD_S = 5.0
"""A frozen predecessor keeps its successor waiting no longer than this, once it is declared gone. On a busy
machine; on a quiet one it is well below a second: `make bench ARGS=faults`."""


@pytest.fixture(scope="module")
def proxied(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, valkey: Valkey
) -> Iterator[tuple[Stage, PostgresProxy]]:
    """Two workers whose sink, but not whose control database, lies behind the proxy."""
    url = postgres.create_database("commits")
    with (
        PostgresProxy(url) as proxy,
        Source(rate=20) as source,
        Cluster(
            tmp_path_factory.mktemp("commits"),
            database_url=url,
            broker_url=valkey.url(database=2),
            env={"FEEDQ_SINKS__DEFAULT": proxy.url},
        ) as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_workers(("w1", "w2"))
        cluster.apply([feed(name, source.url) for name in FEEDS])
        stage = Stage(cluster, source, FEEDS, postgres=postgres)
        stage.heal(workers=("w1", "w2"))
        yield stage, proxy
    postgres.drop_database("commits")


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.CUT_BEFORE, Fault.STRAND])
def test_a_commit_without_an_answer_loses_and_doubles_nothing(
    proxied: tuple[Stage, PostgresProxy], fault: Fault
) -> None:
    stage, proxy = proxied
    epochs = stage.cluster.epochs(stage.feeds)
    before = mark(stage.source)
    asked = sum(len(node.events(LOST)) for node in stage.cluster.workers.values())
    for _ in range(REPEATS):
        trap = proxy.arm(fault, "COMMIT", application=WRITER)
        assert trap.tripped.wait(20), "no writer committed"
        trap.release()
        stage.wait_landing(limit_s=20)
    stage.check(untouched=epochs)
    assert stage.source.connections(since=before.connections) == []
    assert sum(len(node.events(LOST)) for node in stage.cluster.workers.values()) == asked + REPEATS


def test_a_commit_of_a_frozen_worker_that_arrives_after_its_successor_changes_nothing(
    proxied: tuple[Stage, PostgresProxy], measured: Measured
) -> None:
    stage, proxy = proxied
    victim = stage.busiest()
    worker_id = stage.cluster.worker_id(victim)
    trap = proxy.arm(Fault.HOLD, "COMMIT", application=f"{WRITER}{worker_id}")
    assert trap.tripped.wait(20), f"{victim.name} did not commit"
    before = mark(stage.source)
    with faults.frozen_worker(stage, victim) as (feeds, _):
        wait_until(
            lambda: faults.gone_at(stage.cluster, worker_id) is not None, f"{victim.name} is declared gone"
        )
        gone = faults.gone_at(stage.cluster, worker_id)
        assert gone is not None
        since = gone - wall_clock(0.0)
        took = wait_resumed(stage.source, feeds, after=before, since=since, limit_s=30)
        trap.release()
    measured("SIGSTOP while its COMMIT is under way, from gone to streaming", took)
    assert took.last_s < HELD_S
    stage.cluster.wait_worker(victim.name)
    stage.check()
