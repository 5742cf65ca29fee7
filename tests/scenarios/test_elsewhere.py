"""Workers that alone cannot reach a source or the sink, and feeds that cannot run as declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from feedq.core.model import Status
from tests.fakes import FakeFleet
from tests.scenarios.story import expect, streaming_fleet
from tests.scenarios.troubled import TroubledWorker


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    """Worker a has feeds 2 and 4, b has 1 and 3."""
    TroubledWorker.missing.clear()
    yield streaming_fleet(workers="ab", worker_type=TroubledWorker)
    TroubledWorker.missing.clear()


def worker(fleet: FakeFleet, name: str) -> TroubledWorker:
    return cast(TroubledWorker, fleet.workers[name])


def cut_off_from_sources(fleet: FakeFleet, *names: str) -> None:
    for name in names:
        fleet.say(f"worker {name}", "is cut off from the sources")
        worker(fleet, name).has_no_source = True
        for stream in worker(fleet, name).streams.values():
            stream.disconnect()


def events(fleet: FakeFleet) -> int:
    return len(fleet.store.database.tables.events)


def test_feeds_leave_a_worker_that_cannot_reach_the_sources_and_one_tries_before_they_come_back() -> None:
    fleet = streaming_fleet(workers="ab", feeds=8, worker_type=TroubledWorker)
    cut_off_from_sources(fleet, "a")
    fleet.run(1400)
    fleet.say("worker a", "reaches the sources again")
    worker(fleet, "a").has_no_source = False
    fleet.run(300)
    expect(
        fleet,
        """
        t=10.0 worker a: is cut off from the sources
        t=13.3 worker a: lets go of feed 2 (no route)
        t=13.3 worker a: lets go of feed 4 (no route)
        t=13.3 worker a: lets go of feed 6 (no route)
        t=13.3 worker a: lets go of feed 8 (no route)
        t=16.6 control: assigns 2@2,4@2,6@2,8@2 to b
        t=16.7 worker b: streams feeds 2,4,6,8
        t=751.6 control: asks b to stop feed 1 (moved, for a)
        t=751.7 worker b: releases feed 1 (moved)
        t=751.7 control: assigns 1@2 to a
        t=754.9 worker a: lets go of feed 1 (no route)
        t=758.2 control: assigns 1@3 to b
        t=758.3 worker b: streams feed 1
        t=1410.0 worker a: reaches the sources again
        t=1503.2 control: asks b to stop feed 3 (moved, for a)
        t=1503.3 worker b: releases feed 3 (moved)
        t=1503.3 control: assigns 3@2 to a
        t=1503.4 worker a: streams feed 3
        t=1653.5 control: asks b to stop feeds 2,5,7 (moved, for a)
        t=1653.6 worker b: releases feed 2 (moved)
        t=1653.6 worker b: releases feed 5 (moved)
        t=1653.6 worker b: releases feed 7 (moved)
        t=1653.6 control: assigns 2@3,5@2,7@2 to a
        t=1653.7 worker a: streams feeds 2,5,7
        """,
    )
    assert fleet.everything_streams()


def test_when_nobody_reaches_the_sources_tries_become_rare_and_feeds_do_not_flap(fleet: FakeFleet) -> None:
    cut_off_from_sources(fleet, "a", "b")
    fleet.run(60)
    before, tries = events(fleet), sum(worker(fleet, name).tries for name in "ab")
    fleet.run(600)
    after = sum(worker(fleet, name).tries for name in "ab") - tries
    assert after <= 4 * 21, "one try of each feed in 30 s"
    assert events(fleet) - before <= 4 * 3 * 5, "an epoch of each feed in 150 s, of three events"
    fleet.lines.clear()
    for name in "ab":
        worker(fleet, name).has_no_source = False
    fleet.run(31)
    assert fleet.everything_streams()
    assert all(not view.lease.avoid for view in fleet.store.feeds.views()), "no worker was to blame"


def test_a_worker_that_cannot_write_to_the_sink_gets_no_feed_until_it_can(fleet: FakeFleet) -> None:
    fleet.say("worker a", "is cut off from the sink")
    worker(fleet, "a").sink_lost_at = fleet.clock.monotonic()
    fleet.run(10)
    fleet.add_feeds(2)
    fleet.run(120)
    expect(
        fleet,
        """
        t=10.0 worker a: is cut off from the sink
        t=15.0 worker a: lets go of feed 2 (no way to the sink)
        t=15.0 worker a: lets go of feed 4 (no way to the sink)
        t=15.0 control: assigns 2@2,4@2 to b
        t=15.1 worker b: streams feeds 2,4
        t=20.0 person: adds feeds 5,6
        t=20.1 control: assigns 5@1,6@1 to b
        t=20.2 worker b: streams feeds 5,6
        """,
    )
    assert fleet.everything_streams()


def test_when_nobody_can_write_to_the_sink_feeds_stay_where_they_are(fleet: FakeFleet) -> None:
    for name in "ab":
        worker(fleet, name).sink_lost_at = fleet.clock.monotonic()
    fleet.run(120)
    expect(fleet, "")
    for name in "ab":
        worker(fleet, name).sink_lost_at = None
    fleet.run(1)
    assert fleet.everything_streams()


def test_a_feed_without_a_table_streams_once_there_is_one(fleet: FakeFleet) -> None:
    TroubledWorker.missing.add(5)
    fleet.add_feeds(1)
    fleet.run(40)
    feed = fleet.store.feeds.view("feed-5")
    assert (feed.status, feed.lease.last_error) == (Status.FAILED, "no table")
    before = events(fleet)
    fleet.run(15)
    assert events(fleet) == before, "history says it once"
    fleet.say("person", "creates the table")
    TroubledWorker.missing.clear()
    fleet.run(13)
    expect(
        fleet,
        """
        t=10.0 person: adds feed 5
        t=10.1 control: assigns 5@1 to a
        t=10.2 worker a: lets go of feed 5 (no table)
        t=20.4 worker b: lets go of feed 5 (no table)
        t=30.6 worker a: lets go of feed 5 (no table)
        t=40.8 worker b: lets go of feed 5 (no table)
        t=51.0 worker a: lets go of feed 5 (no table)
        t=61.2 worker b: lets go of feed 5 (no table)
        t=65.0 person: creates the table
        t=71.4 worker a: streams feed 5
        """,
    )
    assert fleet.everything_streams()
