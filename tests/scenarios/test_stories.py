"""Fleets ticked by hand: what dies or freezes, how feeds are dispatched, and how they move.

Every step of `FakeFleet` checks that no feed is read twice, lost or given away before it has another place.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from tests.fakes import FakeFleet

pytestmark = pytest.mark.usefixtures("control")


def epochs(fleet: FakeFleet) -> dict[int, int]:
    return {view.feed.id: view.lease.epoch for view in fleet.store.feeds.views()}


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
    assert list(epochs(fleet).values()) == [2, 1, 1, 2], "the feeds of the others were not touched"


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


# -- from the decision to the claim ------------------------------------------------------------------


def feeds_of(fleet: FakeFleet) -> dict[str, int]:
    views = fleet.store.workers.views()
    return {view.worker.name: view.leases for view in views}


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


# -- how the stories begin and are compared ----------------------------------------------------------


def streaming_fleet(*, workers: str = "abc", feeds: int = 4, **options: Any) -> FakeFleet:
    """Every feed streams, the grace period after the start is over, and the transcript is empty.

    With the defaults worker a has feed 2, b has feed 3, and c has feeds 1 and 4; it is t=10. They are dealt by
    hand, the last worker's first: where equal workers fill first is for placement to say, and not for a story.
    """
    fleet = FakeFleet(**options)
    for name in workers:
        fleet.add_worker(name)
    fleet.run(1)
    fleet.add_feeds(feeds)
    fleet.deal({n: (workers[-1] + workers[:-1])[(n - 1) % len(workers)] for n in range(1, feeds + 1)})
    fleet.run(9)
    assert fleet.everything_streams(), fleet.transcript
    fleet.lines.clear()
    return fleet


def expect(fleet: FakeFleet, story: str) -> None:
    """The transcript since the last comparison reads like this."""
    assert fleet.transcript == dedent(story).lstrip()
    fleet.lines.clear()
