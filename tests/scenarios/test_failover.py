"""Workers and databases that die, freeze, or cannot be reached."""

from __future__ import annotations

import pytest

from tests.fakes import FakeFleet
from tests.scenarios.story import expect, streaming_fleet

pytestmark = pytest.mark.usefixtures("control")


def epochs(fleet: FakeFleet) -> list[int]:
    return [view.lease.epoch for view in fleet.store.feeds.views()]


def test_a_killed_workers_feeds_stream_elsewhere_at_once() -> None:
    fleet = streaming_fleet()
    fleet.run(1)
    fleet.kill("c")
    fleet.run(3)
    expect(
        fleet,
        """
        t=11.0 worker c: is killed
        t=11.2 worker c: gone
        t=11.2 control: frees feeds 1,4 of c (worker_gone)
        t=11.2 control: assigns 1@2 to a
        t=11.2 control: assigns 4@2 to b
        t=11.3 worker a: streams feed 1
        t=11.3 worker b: streams feed 4
        """,
    )
    assert fleet.everything_streams()
    assert epochs(fleet) == [2, 1, 1, 2], "the feeds of the others were not touched"


def test_a_frozen_worker_is_replaced_after_its_ttl_and_can_write_nothing_when_it_wakes() -> None:
    fleet = streaming_fleet()
    fleet.freeze("a")
    fleet.run(12)
    assert fleet.everything_streams() is False, "the frozen process still has its socket open"
    fleet.thaw("a")
    fleet.run(1)
    expect(
        fleet,
        """
        t=10.0 worker a: freezes
        t=15.3 worker a: gone
        t=15.3 control: frees feed 2 of a (worker_gone)
        t=15.3 control: assigns 2@2 to b
        t=15.4 worker b: streams feed 2
        t=22.0 worker a: wakes up
        t=22.1 worker a: has lost the checkpoint of feed 2
        t=22.1 worker a: suspends feed 2
        t=22.1 worker a: was declared gone; drops feed 2 and joins anew
        """,
    )
    assert fleet.everything_streams()


def test_a_worker_that_wakes_between_its_successors_fence_and_first_commit_writes_nothing() -> None:
    fleet = streaming_fleet(rate_hz=20.0)
    fleet.freeze("a")
    fleet.run_until(lambda: "b" in fleet.source.owners(2), limit_s=10)
    landed = len(fleet.sink.rows[2])
    fleet.thaw("a")
    fleet.step(order=["a"])
    assert len(fleet.sink.rows[2]) == landed, "a wrote under an epoch that had passed"
    fleet.run(1)
    expect(
        fleet,
        """
        t=10.0 worker a: freezes
        t=15.3 worker a: gone
        t=15.3 control: frees feed 2 of a (worker_gone)
        t=15.3 control: assigns 2@2 to b
        t=15.4 worker b: streams feed 2
        t=15.4 worker a: wakes up
        t=15.5 worker a: has lost the checkpoint of feed 2
        t=15.5 worker a: suspends feed 2
        t=15.5 worker a: was declared gone; drops feed 2 and joins anew
        """,
    )
    assert fleet.everything_streams()


def test_an_outage_fails_nobody_over_but_a_worker_that_dies_in_it_and_that_one_ttl_after_it() -> None:
    fleet = streaming_fleet()
    fleet.database_goes_away()
    fleet.run(15)
    fleet.kill("c")
    fleet.run(15)
    fleet.database_comes_back()
    fleet.run(8)
    expect(
        fleet,
        """
        t=10.0 database: goes away
        t=10.5 beat: finds no database
        t=14.2 worker a: suspends feed 2
        t=14.2 worker b: suspends feed 3
        t=14.2 worker c: suspends feeds 1,4
        t=25.0 worker c: is killed
        t=40.0 database: comes back
        t=40.2 worker a: streams feed 2
        t=40.2 worker b: streams feed 3
        t=46.2 worker c: gone
        t=46.2 control: frees feeds 1,4 of c (worker_gone)
        t=46.2 control: assigns 1@2 to a
        t=46.2 control: assigns 4@2 to b
        t=46.3 worker a: streams feed 1
        t=46.3 worker b: streams feed 4
        """,
    )
    assert fleet.everything_streams()
