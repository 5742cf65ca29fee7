"""A row of the control database that somebody has locked and forgotten: it delays its own feed, and no other."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest

from tests.cluster import wait_until
from tests.invariants import landed, mark, wait_resumed
from tests.stage import Stage

pytestmark = pytest.mark.timeout(240)
Measured = Callable[[str, object], None]


@contextmanager
def locked(stage: Stage, name: str) -> Iterator[None]:
    """A person at psql, who has gone to lunch: ``BEGIN; SELECT … FOR UPDATE`` of this feed's lease."""
    session = psycopg2.connect(stage.cluster.database_url)
    try:
        with session.cursor() as cursor:
            cursor.execute(
                "SELECT FROM feedq.lease WHERE feed_id = (SELECT id FROM feedq.feed WHERE name = %s) FOR UPDATE",
                (name,),
            )
            assert cursor.rowcount == 1
        yield
    finally:
        session.close()


def test_a_locked_lease_delays_that_feed_alone(stage: Stage, measured: Measured) -> None:
    victim = stage.busiest()
    held, paused, restarted, *rest = feeds = stage.cluster.feeds_of(victim)
    # What is shown of a feed while its row is locked is what its owner had reported before.
    wait_until(
        lambda: shown(stage, feeds) == {"streaming"}, limit_s=20, what="its feeds are shown as streaming"
    )
    with locked(stage, held):
        # Reports, stops, claims and edits of its neighbours on this worker go on.
        reported = reported_at(stage, rest)
        began = time.monotonic()
        took = wait_until(
            lambda: all(at > reported[name] for name, at in reported_at(stage, rest).items()),
            limit_s=20,
            what="its neighbours report",
        )
        stage.cluster.feedq("feed", "pause", paused)
        wait_until(
            lambda: state(stage, paused) == ("idle", "paused"), limit_s=10, what="a neighbour is paused"
        )
        epoch = stage.cluster.epochs([restarted])[restarted]
        stage.cluster.feedq("feed", "restart", restarted)
        wait_until(
            lambda: (
                stage.cluster.epochs([restarted])[restarted] > epoch
                and state(stage, restarted)[0] == "running"
            ),
            limit_s=15,
            what="a neighbour starts anew",
        )
        # It itself lands on; and nobody says that it is paused while it does.
        stage.cluster.feedq("feed", "pause", held)
        before = landed(stage.cluster)[held].last
        wait_until(lambda: landed(stage.cluster)[held].last > before, limit_s=10, what="it lands on")
        assert shown(stage, [held]) <= {"streaming", "stopping"}
    wait_until(lambda: state(stage, held) == ("idle", "paused"), limit_s=10, what="it is paused at last")
    stage.cluster.feedq("feed", "resume", held, paused)
    wait_until(
        lambda: state(stage, held)[0] == state(stage, paused)[0] == "running", limit_s=10, what="both run"
    )
    stage.wait_landing(limit_s=30)
    stage.check()
    measured("a lease row locked, neighbours report after", took - began)


def test_a_dead_workers_feeds_go_on_elsewhere_though_one_is_locked(stage: Stage, measured: Measured) -> None:
    victim = stage.busiest()
    held, *others = stage.cluster.feeds_of(victim)
    with locked(stage, held):
        took = stage.wait_resumed(others, lambda: victim.signal(signal.SIGKILL), limit_s=30)
        measured("killed with a lease row locked, its other feeds stream elsewhere after", took.last_s)
        before = mark(stage.source)
    wait_resumed(stage.source, [held], after=before, limit_s=30)
    stage.check()


def reported_at(stage: Stage, feeds: list[str]) -> dict[str, Any]:
    rows = stage.cluster.sql(
        "SELECT name, reported_at FROM feedq.feed JOIN feedq.progress ON feed_id = id WHERE name = ANY(%s)",
        (feeds,),
    )
    return {row["name"]: row["reported_at"] for row in rows}


def shown(stage: Stage, feeds: list[str]) -> set[str]:
    rows = stage.cluster.sql("SELECT status FROM feedq_1.feed_status WHERE name = ANY(%s)", (feeds,))
    return {row["status"] for row in rows}


def state(stage: Stage, name: str) -> tuple[str, str | None]:
    lease = stage.cluster.leases()[name]
    return lease.state, lease.reason
