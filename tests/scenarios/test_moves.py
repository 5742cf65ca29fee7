"""Feeds that go on elsewhere while their worker lives: newcomers, drains, moves by hand, announced restarts.

Every step of `FakeFleet` checks that no feed is read twice, lost or given away before it has another place.
"""

from __future__ import annotations

import pytest

from tests.fakes import FakeFleet
from tests.fakes.durations import DURATIONS
from tests.scenarios.story import expect, streaming_fleet

pytestmark = pytest.mark.usefixtures("control")

HOLD_S = 5.0


def holding_fleet(*, workers: str = "abc", feeds: int = 4) -> FakeFleet:
    settings = DURATIONS.model_copy(update={"restart_hold_s": HOLD_S})
    return streaming_fleet(workers=workers, feeds=feeds, settings=settings)


def feeds_of(fleet: FakeFleet) -> dict[str, int]:
    views = fleet.store.workers.views()
    return {view.worker.name: view.leases for view in views}


def epochs(fleet: FakeFleet) -> dict[int, int]:
    return {view.feed.id: view.lease.epoch for view in fleet.store.feeds.views()}


# -- newcomers ---------------------------------------------------------------------------------------


def test_a_third_worker_gets_its_part_once_it_has_settled_and_no_feed_moves_twice() -> None:
    fleet = streaming_fleet(workers="ab", feeds=6)
    fleet.add_worker("c")
    fleet.run(8)
    expect(
        fleet,
        """
        t=10.0 worker c: starts
        t=12.1 control: asks b to stop feed 1 (moved, for c)
        t=12.1 control: asks a to stop feed 2 (moved, for c)
        t=12.2 worker a: releases feed 2 (moved)
        t=12.2 worker b: releases feed 1 (moved)
        t=12.2 control: assigns 1@2,2@2 to c
        t=12.3 worker c: streams feeds 1,2
        """,
    )
    assert fleet.everything_streams()
    assert feeds_of(fleet) == {"a": 2, "b": 2, "c": 2}
    assert sorted(epochs(fleet).values()) == [1, 1, 1, 1, 2, 2], "each moved once, and no other"


# -- announced restarts ------------------------------------------------------------------------------


def test_a_rolling_restart_gives_each_feed_back_to_its_own_worker() -> None:
    fleet = holding_fleet(workers="abcd", feeds=12)
    owners = {n: fleet.source.owners(n) for n in range(1, 13)}
    for name in "abcd":
        fleet.terminate(name)
        fleet.run(3)
        fleet.add_worker(name)
        fleet.run_until(fleet.everything_streams, limit_s=2)
    fleet.run(30)
    assert {n: fleet.source.owners(n) for n in range(1, 13)} == owners
    assert set(epochs(fleet).values()) == {2}
