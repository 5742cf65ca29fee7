"""People who edit, pause, remove and drain: only what they name is touched."""

from __future__ import annotations

from feedq.model import LeaseState
from tests.fakes import FakeFleet
from tests.scenarios.story import expect, streaming_fleet


def epochs(fleet: FakeFleet) -> dict[int, int]:
    return {view.feed.id: view.lease.epoch for view in fleet.store.feeds.views()}


def test_an_edit_restarts_that_feed_and_no_other() -> None:
    fleet = streaming_fleet()
    fleet.edit(2)
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 person: edits feed 2
        t=10.1 control: asks a to stop feed 2 (edited)
        t=10.2 worker a: releases feed 2 (edited)
        t=10.2 control: assigns 2@2 to a
        t=10.3 worker a: streams feed 2
        """,
    )
    assert fleet.everything_streams()
    assert epochs(fleet) == {1: 1, 2: 2, 3: 1, 4: 1}


def test_two_edits_in_a_row_are_one_restart() -> None:
    fleet = streaming_fleet()
    fleet.edit(2)
    fleet.edit(2)
    fleet.run(3)
    assert fleet.everything_streams()
    assert epochs(fleet)[2] == 2
    view = fleet.store.feeds.view("feed-2")
    assert view.lease.generation == view.feed.generation == 3


def test_a_paused_feed_stays_where_it_is_until_it_is_resumed() -> None:
    fleet = streaming_fleet()
    fleet.pause(2)
    fleet.run(20)
    landed = len(fleet.sink.rows[2])
    fleet.run(10)
    assert len(fleet.sink.rows[2]) == landed
    fleet.resume(2)
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 person: pauses feed 2
        t=10.1 control: asks a to stop feed 2 (paused)
        t=10.2 worker a: releases feed 2 (paused)
        t=40.0 person: resumes feed 2
        t=40.1 control: assigns 2@2 to a
        t=40.2 worker a: streams feed 2
        """,
    )
    assert fleet.everything_streams()


def test_a_pause_taken_back_before_the_worker_let_go_leaves_the_feed_streaming() -> None:
    fleet = streaming_fleet()
    fleet.pause(2)
    fleet.run(0.1)
    fleet.resume(2)
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 person: pauses feed 2
        t=10.1 control: asks a to stop feed 2 (paused)
        t=10.1 person: resumes feed 2
        t=10.2 worker a: releases feed 2 (paused)
        t=10.2 control: assigns 2@2 to a
        t=10.3 worker a: streams feed 2
        """,
    )
    assert fleet.everything_streams()


def test_a_removed_feed_is_gone_with_its_lease_and_its_rows_stay() -> None:
    fleet = streaming_fleet()
    fleet.remove(2)
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 person: removes feed 2
        t=10.1 control: asks a to stop feed 2 (removed)
        t=10.2 worker a: releases feed 2 (removed)
        """,
    )
    assert [view.feed.id for view in fleet.store.feeds.views()] == [1, 3, 4]
    assert len(fleet.sink.rows[2]) > 0


def test_a_feed_removed_while_its_worker_is_frozen_goes_when_the_worker_is_gone() -> None:
    fleet = streaming_fleet()
    fleet.freeze("a")
    fleet.remove(2)
    fleet.run(8)
    expect(
        fleet,
        """
        t=10.0 worker a: freezes
        t=10.0 person: removes feed 2
        t=10.1 control: asks a to stop feed 2 (removed)
        t=15.3 worker a: gone
        t=15.3 control: frees feed 2 of a (worker_gone)
        """,
    )
    assert [view.feed.id for view in fleet.store.feeds.views()] == [1, 3, 4]
    fleet.thaw("a")
    fleet.run(3)


def test_a_worker_that_gets_sigterm_hands_over_at_once() -> None:
    fleet = streaming_fleet()
    fleet.terminate("c")
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 worker c: gets SIGTERM
        t=10.1 worker c: drains feeds 1,4
        t=10.1 worker c: leaves
        t=10.1 control: assigns 1@2 to b
        t=10.1 control: assigns 4@2 to a
        t=10.2 worker a: streams feed 4
        t=10.2 worker b: streams feed 1
        """,
    )
    assert fleet.everything_streams()


def test_a_worker_that_is_drained_by_hand_hands_over_and_takes_no_more() -> None:
    fleet = streaming_fleet()
    fleet.drain("c")
    fleet.run(3)
    fleet.add_feeds(3)
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 person: drains worker c
        t=10.1 control: asks c to stop feed 1 (drained, for b)
        t=10.1 control: asks c to stop feed 4 (drained, for a)
        t=10.2 worker c: releases feed 1 (drained)
        t=10.2 worker c: releases feed 4 (drained)
        t=10.2 control: assigns 1@2 to b
        t=10.2 control: assigns 4@2 to a
        t=10.3 worker a: streams feed 4
        t=10.3 worker b: streams feed 1
        t=13.0 person: adds feeds 5,6,7
        t=13.1 control: assigns 5@1 to a
        t=13.1 control: assigns 6@1,7@1 to b
        t=13.2 worker a: streams feed 5
        t=13.2 worker b: streams feeds 6,7
        """,
    )
    assert fleet.everything_streams()
    assert "c" in fleet.workers, "its process goes on"


def test_a_rolling_restart_loses_nothing_and_ends_with_every_feed_streaming() -> None:
    fleet = streaming_fleet(feeds=9)
    for old, new in (("a", "d"), ("b", "e"), ("c", "f")):
        fleet.add_worker(new)
        fleet.run(3)
        fleet.terminate(old)
        fleet.run(3)
        assert fleet.everything_streams(), fleet.transcript
    assert sorted(fleet.workers) == ["d", "e", "f"]
    assert all(view.lease.state is LeaseState.RUNNING for view in fleet.store.feeds.views())
