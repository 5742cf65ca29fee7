"""Once per tick, whoever is killed, frozen or cut off when.

A seed is printed with the figures; ``FEEDQ_TEST_SEED`` draws the same faults again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Any

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.spec import Semantics
from feedq.telemetry.logs import LogEvent
from tests.chaos import ticking
from tests.chaos.storm import Losses, Storm, is_stopped
from tests.cluster import Cluster, wait_until
from tests.node import Node
from tests.schedules import never

pytestmark = pytest.mark.timeout(360)

Measured = Callable[[str, object], None]

STORM_S = 30.0
KILLS_MIN = 30
LIMIT_S = 40.0


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


# -- zombies -----------------------------------------------------------------------------------------


def wait_run(fleet: Cluster, run_id: int, *states: str) -> dict[str, Any]:
    def found() -> dict[str, Any]:
        return fleet.sql("SELECT * FROM feedq.run WHERE id = %s", (run_id,))[0]

    wait_until(lambda: found()["state"] in states, limit_s=LIMIT_S, what=lambda: f"{states}: {found()}")
    return found()


def effects_of(fleet: Cluster, name: str) -> list[dict[str, Any]]:
    return fleet.sql("SELECT * FROM effect WHERE schedule = %s ORDER BY id", (name,))


def wake(fleet: Cluster, zombie: Node) -> None:
    """Let it go on, and wait until it has begun anew."""
    zombie.thaw()
    wait_until(
        lambda: zombie.events(LogEvent.WORKER_DECLARED_GONE),
        limit_s=LIMIT_S,
        what=lambda: zombie.text()[-3000:],
    )
    fleet.wait_worker(zombie.name)


def test_what_a_transactional_job_wrote_is_rolled_back_when_its_worker_wakes_too_late(
    fleet: Cluster, schedules: ScheduleStore
) -> None:
    fleet.add_beat("b1")
    zombie = fleet.add_worker("w0", env={"FEEDQ_TEST_DOOM": "complete:entry:stop:1"})
    schedules.add(
        never(
            "transferred",
            task="effects.transferred",
            args=[0.1],
            semantics=Semantics.TRANSACTIONAL,
        )
    )
    run = schedules.trigger("transferred")
    wait_until(lambda: is_stopped(zombie), limit_s=LIMIT_S, what=lambda: zombie.text()[-3000:])
    assert effects_of(fleet, "transferred") == []
    fleet.add_worker("w1")
    ended = wait_run(fleet, run.id, "succeeded")
    wake(fleet, zombie)
    # It works on, as another worker session; by then its old job has ended.
    fleet.workers["w1"].signal(signal.SIGTERM)
    assert fleet.workers["w1"].wait(LIMIT_S) == 0
    schedules.trigger("transferred", key="later")
    wait_until(
        lambda: [row for row in effects_of(fleet, "transferred") if row["pid"] == zombie.pid],
        limit_s=LIMIT_S,
        what=lambda: zombie.text()[-3000:],
    )
    first, second = effects_of(fleet, "transferred")
    assert (first["key"], first["attempt"], first["fence"]) == (run.key, 2, ended["fence"])
    assert second["key"] == "trigger:later"
    assert fleet.sql("SELECT * FROM feedq.run WHERE id = %s", (run.id,))[0] == ended
