"""Workers that are killed, frozen or stopped: their feeds go on elsewhere, exactly once, and no other moves.

`make bench` holds the figures to the promise.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import faults
from tests.cluster import wait_until
from tests.stage import Stage

pytestmark = pytest.mark.timeout(180)

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
        limit_s=30,
        what=lambda: f"{victim.name} has {part} feeds, not {len(stage.cluster.feeds_of(victim))}",
    )
    its = set(stage.cluster.feeds_of(victim))
    stage.check(untouched={name: epoch for name, epoch in untouched.items() if name not in its})


HELD_S = 1.0
"""A frozen predecessor keeps its successor waiting no longer than this, once it is declared gone."""


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
