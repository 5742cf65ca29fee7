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


# -- drains ------------------------------------------------------------------------------------------


def test_a_drained_worker_keeps_what_has_no_other_place_until_there_is_one() -> None:
    fleet = FakeFleet()
    for name in "ab":
        fleet.add_worker(name, capacity=3)
    fleet.run(1)
    fleet.add_feeds(5)
    fleet.deal({1: "a", 2: "a", 3: "a", 4: "b", 5: "b"})
    fleet.run(9)
    fleet.lines.clear()
    fleet.drain("a")
    fleet.run(10)
    assert fleet.everything_streams(), "what has no place streams on"
    assert feeds_of(fleet) == {"a": 2, "b": 3}
    fleet.add_worker("c", capacity=3)
    fleet.run(8)
    expect(
        fleet,
        """
        t=10.0 person: drains worker a
        t=10.1 control: asks a to stop feed 1 (drained, for b)
        t=10.2 worker a: releases feed 1 (drained)
        t=10.2 control: assigns 1@2 to b
        t=10.3 worker b: streams feed 1
        t=20.0 worker c: starts
        t=22.1 control: asks a to stop feeds 2,3 (drained, for c)
        t=22.2 worker a: releases feed 2 (drained)
        t=22.2 worker a: releases feed 3 (drained)
        t=22.2 control: assigns 2@2,3@2 to c
        t=22.3 worker c: streams feeds 2,3
        """,
    )
    assert feeds_of(fleet) == {"a": 0, "b": 3, "c": 2}


# -- moves by hand, and what may go wrong ------------------------------------------------------------


def test_a_move_whose_target_dies_goes_anywhere() -> None:
    fleet = streaming_fleet()
    fleet.move(2, "b")
    fleet.kill("b")
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 person: moves feed 2 to b
        t=10.0 control: asks a to stop feed 2 (moved, for b)
        t=10.0 worker b: is killed
        t=10.1 worker a: releases feed 2 (moved)
        t=10.1 worker b: gone
        t=10.1 control: frees feed 3 of b (worker_gone)
        t=10.1 control: assigns 2@2,3@2 to a
        t=10.2 worker a: streams feeds 2,3
        """,
    )
    assert fleet.everything_streams()


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
