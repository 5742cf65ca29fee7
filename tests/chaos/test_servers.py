"""Brokers and databases that go away and come back: the feeds stream on, and nothing needs a hand."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from feedq.local.valkey import Valkey
from tests import faults
from tests.invariants import Mark, mark, wait_resumed
from tests.stage import Stage

pytestmark = pytest.mark.timeout(180)

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
