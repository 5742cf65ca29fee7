"""Workers and beats that are killed, frozen or stopped: feeds go on elsewhere, exactly once, and no other moves.

`make bench` holds the figures to the promise.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg2
import pytest

from tests import faults
from tests.cluster import wait_until
from tests.invariants import mark, wait_resumed
from tests.stage import Stage

pytestmark = pytest.mark.timeout(240)

Measured = Callable[[str, object], None]

TTL_S = 6.0
"""What it takes when nobody hears of an end."""


def test_the_feeds_of_a_killed_worker_stream_elsewhere_before_its_ttl(
    stage: Stage, measured: Measured
) -> None:
    took, untouched = faults.kill_worker(stage)
    measured("kill -9 of a worker", took)
    stage.check(untouched=untouched)
    assert took.last_s < TTL_S


def test_a_frozen_worker_is_replaced_writes_nothing_on_waking_and_serves_again(
    stage: Stage, measured: Measured
) -> None:
    took, untouched, victim = faults.freeze_worker(stage)
    measured("SIGSTOP of a worker", took)
    stage.cluster.wait_worker(victim.name)
    # It serves again, as a newcomer: it gets its part, and nothing else moves.
    part = len(stage.feeds) // len(stage.cluster.workers)
    wait_until(
        lambda: len(stage.cluster.feeds_of(victim)) >= part,
        lambda: f"{victim.name} has {part} feeds, not {len(stage.cluster.feeds_of(victim))}",
    )
    its = set(stage.cluster.feeds_of(victim))
    stage.check(untouched={name: epoch for name, epoch in untouched.items() if name not in its})


HELD_S = 5.0
"""A frozen predecessor keeps its successor waiting no longer than this, once it is declared gone. On a busy
machine; on a quiet one it is well below a second: `make bench ARGS=faults`."""


def test_a_worker_frozen_inside_its_transaction_does_not_hold_up_its_successor(
    stage: Stage, measured: Measured
) -> None:
    took, victim = faults.freeze_inside_transaction(stage)
    measured("SIGSTOP inside the transaction, from gone to streaming", took)
    stage.cluster.wait_worker(victim.name)
    stage.check()
    assert took.last_s < HELD_S


def test_a_stopped_worker_hands_its_feeds_over_and_exits_with_status_zero(
    stage: Stage, measured: Measured
) -> None:
    took, untouched = faults.terminate_worker(stage)
    measured("SIGTERM of a worker", took)
    stage.check(untouched=untouched)
    assert took.last_s < TTL_S


# -- a row that somebody has locked and forgotten ----------------------------------------------------


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


# -- beats -------------------------------------------------------------------------------------------


LEADER_TTL_S = 5.0


def test_a_killed_leader_is_replaced_at_once(stage: Stage, measured: Measured) -> None:
    epochs = stage.cluster.epochs(stage.feeds)
    took = faults.kill_leader(stage)
    measured("kill -9 of the elected beat, another is elected after", took)
    stage.check(untouched=epochs)
    assert took < 3.0


def test_a_frozen_leader_is_replaced_within_its_expiry_and_steps_down_on_waking(
    stage: Stage, measured: Measured
) -> None:
    epochs = stage.cluster.epochs(stage.feeds)
    took, frozen = faults.freeze_leader(stage)
    measured("SIGSTOP of the elected beat, another is elected after", took)
    assert took < LEADER_TTL_S + 5.0

    # Awake again it must be a candidate, not a second leader, and not dead: the next election may pick it.
    successor = stage.cluster.wait_leader()
    assert successor.pid != frozen.pid
    assert frozen.is_running()
    successor.signal(signal.SIGKILL)
    successor.wait(5)
    wait_until(lambda: stage.cluster.leader() is frozen, f"{frozen.name} is elected once more")
    stage.check(untouched=epochs)


def test_a_fleet_without_any_beat_still_heals(stage: Stage, measured: Measured) -> None:
    took, untouched = faults.kill_worker_and_beats(stage)
    measured("kill -9 of a worker without any beat", took)
    stage.check(untouched=untouched)
    assert took.last_s < 30.0
