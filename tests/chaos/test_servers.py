"""Brokers and databases that go away and come back: the feeds stream on, and nothing needs a hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests import faults
from tests.chaos.conftest import Stages
from tests.cluster import Cluster
from tests.faults import (
    PLACED_LIMIT_S,
    broker_in_trouble,
    few_feeds,
    kill_worker,
    place_feed,
    wait_answering,
)
from tests.invariants import Mark, mark, wait_resumed
from tests.proxy import PlainProxy
from tests.stage import Stage

pytestmark = pytest.mark.timeout(240)

Measured = Callable[[str, object], None]

OUTAGE_S = 10.0
"""Longer than a ttl."""


def test_feeds_stream_on_while_the_broker_is_away(stage: Stage, valkey: Valkey) -> None:
    epochs, before = stage.cluster.epochs(stage.feeds), mark(stage.source)
    valkey.stop()
    try:
        end = time.monotonic() + OUTAGE_S
        while time.monotonic() < end:
            stage.wait_landing(limit_s=10)
    finally:
        valkey.start()
    assert_undisturbed(stage, before, epochs)
    assert_heals(stage)


def test_a_broker_that_lost_everything_and_everybody_disturbs_no_feed(stage: Stage, valkey: Valkey) -> None:
    epochs, before = stage.cluster.epochs(stage.feeds), mark(stage.source)
    client = valkey.client()
    try:
        client.flushall()
        for kind in ("normal", "pubsub"):
            client.client_kill_filter(_type=kind, skipme=True)
    finally:
        client.close()
    stage.wait_landing(limit_s=10)
    assert_undisturbed(stage, before, epochs)
    assert_heals(stage)


def test_a_restart_of_postgresql_is_no_failover(stage: Stage, measured: Measured) -> None:
    epochs = stage.cluster.epochs(stage.feeds)
    since_stop, since_return = faults.restart_database(stage)
    measured("PostgreSQL restarted, all land again after its stop", since_stop)
    measured("PostgreSQL restarted, all land again after its return", since_return)
    stage.check(untouched=epochs)
    assert_all_run(stage)
    assert since_return < 15.0


def test_no_session_of_a_worker_is_missed_for_long_when_it_is_terminated(
    stage: Stage, measured: Measured
) -> None:
    victim = stage.busiest()
    epochs = stage.cluster.epochs(stage.feeds)
    kinds = sorted({row["application_name"] for row in stage.cluster.backends(victim)})
    assert kinds
    for kind in kinds:
        backends = [row for row in stage.cluster.backends(victim) if row["application_name"] == kind]
        if backends:
            took = faults.terminate_backend(stage, backends[0])
            measured(f"session terminated ({kind.partition('/')[0]}), all land again after", took)
            assert took < 15.0
    stage.check(untouched=epochs)
    assert_all_run(stage)


def test_feeds_that_the_sink_fenced_off_their_workers_stream_again_at_once(
    stage: Stage, measured: Measured
) -> None:
    def fence() -> float:
        # As a control database does to them that was restored, or a replica that was promoted, and knows less.
        stage.cluster.sql("UPDATE feedq_checkpoint SET epoch = epoch + 100")
        return time.monotonic()

    took = stage.wait_resumed(stage.feeds, fence, limit_s=30)
    measured("fenced off by the sink, all stream again after", took.last_s)
    assert took.last_s < 10, "and not when each worker next compares all it runs, once a minute"
    stage.check()
    assert_all_run(stage)


def assert_undisturbed(stage: Stage, before: Mark, epochs: dict[str, int]) -> None:
    """No feed reconnected or changed hands, and every process is alive."""
    reconnected = [c.feed for c in stage.source.connections(since=before.connections)]
    assert reconnected == []
    stage.check(untouched=epochs)
    assert_all_run(stage)


def assert_all_run(stage: Stage) -> None:
    nodes = [*stage.cluster.workers.values(), *stage.cluster.beats.values()]
    ended = [node.name for node in nodes if not node.is_running()]
    assert ended == []


def assert_heals(stage: Stage) -> None:
    """Celery's remote control reaches every worker again, and a restarted feed gets its new message."""
    faults.wait_answering(stage.cluster)
    chosen = stage.feeds[0]
    before = mark(stage.source)
    stage.cluster.feedq("feed", "restart", chosen)
    wait_resumed(stage.source, [chosen], after=before, limit_s=30)
    stage.check()


# -- a broker that hangs -----------------------------------------------------------------------------


DOCTOR_LIMIT_S = 30.0
"""For all its checks on a busy machine; what it waits for the broker is a third of it at most."""


@pytest.fixture(scope="module")
def proxy(valkey: Valkey) -> Iterator[PlainProxy]:
    client = valkey.client(database=3)
    client.flushdb()
    client.close()
    with PlainProxy(valkey.url(database=3)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def small(
    stages: Stages,
    tmp_path_factory: pytest.TempPathFactory,
    proxy: PlainProxy,
    postgres: Postgres,
) -> Iterator[Stage]:
    """A few feeds, with their broker behind the proxy."""
    stages.discard()  # it would take part of the machine
    cluster = Cluster(
        tmp_path_factory.mktemp("small"),
        database_url=postgres.create_database("broker_hangs"),
        broker_url=proxy.url,
        # Longer than anybody waits here: what waits for the broker fails.
        env={"FEEDQ_BROKER_TIMEOUT_S": "120"},
    )
    with few_feeds(cluster, postgres=postgres) as stage:
        yield stage
    postgres.drop_database("broker_hangs")


@pytest.mark.parametrize("kind", ["frozen", "dropping"])
def test_feeds_are_placed_and_fail_over_while_the_broker_hangs(
    small: Stage, valkey: Valkey, proxy: PlainProxy, measured: Measured, kind: str
) -> None:
    small.heal()
    with broker_in_trouble(kind, valkey.pid, proxy):
        placed_s = place_feed(small, f"new/{kind}")
        took, untouched = kill_worker(small)
        small.check(untouched=untouched)
        measured(f"broker {kind}: feed placed after", placed_s)
        measured(f"broker {kind}: kill -9", took)
        assert placed_s < PLACED_LIMIT_S
        assert took.last_s < PLACED_LIMIT_S
        if kind == "frozen":
            # A worker that starts meanwhile gets its part, and what it held is placed when it dies.
            small.heal()
            took, untouched = kill_worker(small)
            small.check(untouched=untouched)
            assert took.last_s < PLACED_LIMIT_S
    wait_answering(small.cluster)


def test_doctor_says_in_bounded_time_that_the_broker_hangs(small: Stage, proxy: PlainProxy) -> None:
    proxy.hang()
    began = time.monotonic()
    ran = small.cluster.run("doctor")
    assert time.monotonic() - began < DOCTOR_LIMIT_S
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert [line for line in ran.stdout.splitlines() if line.startswith("FAIL") and " broker " in line]
    proxy.resume()
