"""A row of the control database that somebody has locked and forgotten delays its own feed, and no other."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg2
import pytest

from tests.invariants import mark, wait_resumed
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


def test_a_dead_workers_feeds_go_on_elsewhere_though_one_is_locked(stage: Stage, measured: Measured) -> None:
    victim = stage.busiest()
    held, *others = stage.cluster.feeds_of(victim)
    with locked(stage, held):
        took = stage.wait_resumed(others, lambda: victim.signal(signal.SIGKILL), limit_s=30)
        measured("killed with a lease row locked, its other feeds stream elsewhere after", took.last_s)
        before = mark(stage.source)
    wait_resumed(stage.source, [held], after=before, limit_s=30)
    stage.check()
