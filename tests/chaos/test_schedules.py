"""Once per tick, whoever is killed, frozen or cut off when.

A seed is printed with the figures; ``FEEDQ_TEST_SEED`` draws the same faults again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from random import Random, SystemRandom

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.spec import Overlap
from tests.chaos import ticking
from tests.chaos.storm import Losses, Storm
from tests.cluster import Cluster, wait_until
from tests.node import Node

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


# -- servers that go away, and fleets that change ----------------------------------------------------


EACH = 3
OVERLAPS = (Overlap.ALLOW_ALL, Overlap.BUFFER_ALL)
BEATS = ("b1", "b2")
MANY = 8
LIMIT_S = 40.0
TICKS = 2


@contextmanager
def accounted(fleet: Cluster, schedules: ScheduleStore) -> Iterator[Mapping[str, datetime]]:
    """Schedules that tick through what happens in the block, every tick to be run; and their account."""
    specs = ticking.ticking(each=EACH, most_s=0.1, overlaps=OVERLAPS)
    first = ticking.begin(schedules, specs)
    wait_ticks(fleet)
    yield first
    wait_ticks(fleet)
    ticking.end(fleet, schedules, first)


def wait_ticks(fleet: Cluster) -> None:
    """Wait until every schedule has succeeded with a few ticks that are later than now."""
    (now,) = (row["now"] for row in fleet.sql("SELECT clock_timestamp() AS now"))
    succeeded = """
        SELECT s.name FROM feedq.schedule s WHERE %s > (
            SELECT count(*) FROM feedq.run r
            WHERE r.schedule_id = s.id AND r.state = 'succeeded' AND r.tick_at > %s)
    """
    wait_until(
        lambda: not fleet.sql(succeeded, (TICKS, now)),
        lambda: f"every schedule goes on: {fleet.sql(succeeded, (TICKS, now))}",
        interval_s=0.1,
    )


def leave(node: Node) -> None:
    node.signal(signal.SIGTERM)
    assert node.wait(LIMIT_S) == 0, node.text()[-3000:]


def test_no_tick_is_lost_in_a_fleet_that_grows_shrinks_and_is_replaced(
    fleet: Cluster, schedules: ScheduleStore, measured: Measured
) -> None:
    for name in BEATS:
        fleet.add_beat(name)
    fleet.add_worker("w0")
    with accounted(fleet, schedules) as first:
        for n in range(1, MANY):
            fleet.add_worker(f"w{n}", ready=False)
        for n in range(1, MANY):
            fleet.wait_worker(f"w{n}")
        wait_ticks(fleet)
        for n in range(1, MANY):
            leave(fleet.workers.pop(f"w{n}"))
        wait_ticks(fleet)
        # One after another is replaced, the newcomer first.
        for n in range(1, 4):
            fleet.add_worker(f"w{n}")
            leave(fleet.workers.pop(f"w{n - 1}"))
        wait_ticks(fleet)
        for beat in fleet.beats.values():
            beat.signal(signal.SIGKILL)
            beat.wait(10)
        wait_ticks(fleet)
        # Nobody is left who would see that it died; the watchdog of the other does.
        fleet.add_worker("w9")
        fleet.workers["w3"].signal(signal.SIGKILL)
        wait_ticks(fleet)
        for name in BEATS:
            fleet.add_beat(name)
    account = ticking.account(fleet, first)
    measured("1 to 8 to 1 workers, a rolling restart, all beats dead", account)
    # The end of a worker that is told to is no loss; of the one that was killed it may be.
    lost = fleet.sql(
        "SELECT r.reason FROM feedq.run r JOIN feedq.worker w ON w.id = r.worker_id "
        "WHERE r.state <> 'succeeded' AND w.name NOT LIKE 'w3@%'"
    )
    assert lost == []
