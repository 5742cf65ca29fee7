"""Beats that are killed or frozen, and a fleet without any: reconcile goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests import faults
from tests.cluster import wait_until
from tests.stage import Stage

pytestmark = pytest.mark.timeout(180)

Measured = Callable[[str, object], None]

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
    wait_until(
        lambda: stage.cluster.leader() is frozen, limit_s=20, what=f"{frozen.name} is elected once more"
    )
    stage.check(untouched=epochs)


def test_a_fleet_without_any_beat_still_heals(stage: Stage, measured: Measured) -> None:
    took, untouched = faults.kill_worker_and_beats(stage)
    measured("kill -9 of a worker without any beat", took)
    stage.check(untouched=untouched)
    assert took.last_s < 30.0
