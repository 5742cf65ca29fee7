"""Once per tick, whoever is killed, frozen or cut off when.

A seed is printed with the figures; ``FEEDQ_TEST_SEED`` draws the same faults again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random, SystemRandom

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from tests.chaos import ticking
from tests.chaos.storm import Losses, Storm
from tests.cluster import Cluster

pytestmark = pytest.mark.timeout(360)

Measured = Callable[[str, object], None]

STORM_S = 30.0
KILLS_MIN = 30


def seed() -> str:
    return os.environ.get("FEEDQ_TEST_SEED") or str(SystemRandom().randrange(10**6))


def test_every_tick_is_accounted_for_once_however_many_workers_are_killed(
    fleet: Cluster, schedules: ScheduleStore, measured: Measured
) -> None:
    """Thirty schedules in a storm, then in peace until all is quiet."""
    chosen = seed()

    def is_enough(losses: Losses) -> bool:
        return losses.kills.total() >= KILLS_MIN and not losses.missed

    blowing = Storm(fleet, Random(chosen), workers=8)
    for name in ("b1", "b2"):
        fleet.add_beat(name)
    blowing.gather()
    first = ticking.begin(schedules, ticking.ticking())
    blowing.blow(STORM_S, until=is_enough)
    ticking.end_while(blowing.calm, fleet, schedules, first)
    measured(f"schedules in a storm, seed {chosen}", blowing.losses)
    account = ticking.account(fleet, first)
    measured("schedules in a storm", account)
    assert blowing.losses.kills.total() >= KILLS_MIN
    assert blowing.losses.missed == set()
    assert account.ticks >= len(first) * STORM_S
