"""Feeds that go on elsewhere while their worker lives: newcomers, drains, moves by hand, restarts; and faults in
each.

Every step of `FakeFleet` checks that no feed is read twice, lost or given away before it has another place.
"""

from __future__ import annotations

import pytest

from feedq import control
from feedq.errors import Conflict
from feedq.model import LeaseState, Reason
from tests.fakes import FakeFleet
from tests.fakes.durations import DURATIONS
from tests.scenarios.story import expect, streaming_fleet

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


def test_an_even_fleet_stays_as_it_is() -> None:
    fleet = streaming_fleet(workers="abc", feeds=9)
    fleet.run(120)
    expect(fleet, "")


def test_moves_stay_within_their_budget() -> None:
    settings = DURATIONS.model_copy(update={"moves_per_pass": 3, "reconcile_interval_s": 0.1})
    fleet = streaming_fleet(workers="ab", feeds=12, settings=settings)
    fleet.add_worker("c")
    most = 0
    for _ in range(200):
        fleet.step()
        promised = sum(x.promised_to is not None for x in fleet.store.database.tables.leases.values())
        most = max(most, promised)
    assert most == 3
    assert feeds_of(fleet) == {"a": 4, "b": 4, "c": 4}
    assert sum(epochs(fleet).values()) == 12 + 4, "none moved more than once"


def test_while_one_owner_does_not_let_go_the_others_give_no_more_than_their_part() -> None:
    fleet = streaming_fleet(workers="ab", feeds=12)
    fleet.become_stubborn("a")
    fleet.add_worker("c")
    fleet.run(20)
    assert fleet.everything_streams()
    assert feeds_of(fleet) == {"a": 4, "b": 4, "c": 4}
    assert sum(epochs(fleet).values()) == 12 + 4, "some moved more than once"


def test_a_pass_that_looks_at_few_feeds_first_moves_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feeds that have run longest may not move to the newcomer; all others are found behind them."""
    monkeypatch.setattr(control, "MOVABLE_FIRST", 4)
    fleet = FakeFleet()
    for name in "ab":
        fleet.add_worker(name, labels={"region": "eu"})
    fleet.add_feeds(12, required={"region": "eu"})
    fleet.run(5)
    fleet.add_feeds(12)
    fleet.run(5)
    fleet.add_worker("c")
    fleet.run(8)
    assert feeds_of(fleet) == {"a": 8, "b": 8, "c": 8}
    assert sum(epochs(fleet).values()) == 24 + 8, "each moved once"


def test_a_fleet_that_is_to_move_nothing_moves_nothing() -> None:
    fleet = streaming_fleet(
        workers="ab", feeds=6, settings=DURATIONS.model_copy(update={"moves_per_pass": 0})
    )
    fleet.add_worker("c")
    fleet.run(20)
    assert feeds_of(fleet) == {"a": 3, "b": 3, "c": 0}


def test_a_change_of_one_feed_moves_no_other() -> None:
    fleet = streaming_fleet(workers="abc", feeds=9)
    fleet.pause(1)
    fleet.remove(4)
    fleet.edit(2)
    fleet.run(60)
    assert epochs(fleet) == {1: 1, 2: 2, 3: 1, **dict.fromkeys(range(5, 10), 1)}


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


def test_a_drain_ends_although_another_feed_has_no_place_at_all() -> None:
    fleet = streaming_fleet(workers="ab", feeds=4)
    fleet.add_feeds(1, required={"zone": "nowhere"})
    fleet.drain("a")
    fleet.run(5)
    assert feeds_of(fleet) == {"a": 0, "b": 4}


def test_a_cordoned_worker_keeps_what_it_has_and_gets_no_more_until_it_serves_again() -> None:
    fleet = streaming_fleet(workers="ab", feeds=2)
    fleet.cordon("a")
    fleet.add_feeds(4)
    fleet.run(5)
    assert feeds_of(fleet) == {"a": 1, "b": 5}
    fleet.uncordon("a")
    fleet.run(8)
    assert feeds_of(fleet) == {"a": 3, "b": 3}


# -- moves by hand, and what may go wrong ------------------------------------------------------------


def test_a_feed_moved_by_hand_goes_on_there() -> None:
    fleet = streaming_fleet()
    fleet.move(2, "b")
    fleet.run(2)
    expect(
        fleet,
        """
        t=10.0 person: moves feed 2 to b
        t=10.0 control: asks a to stop feed 2 (moved, for b)
        t=10.1 worker a: releases feed 2 (moved)
        t=10.1 control: assigns 2@2 to b
        t=10.2 worker b: streams feed 2
        """,
    )
    assert fleet.everything_streams()


def test_a_move_whose_source_dies_is_a_failover_like_any_other() -> None:
    fleet = streaming_fleet()
    fleet.become_stubborn("a")
    fleet.move(2, "b")
    fleet.run(1)
    fleet.kill("a")
    fleet.run(3)
    assert fleet.everything_streams()
    (lease,) = [v.lease for v in fleet.store.feeds.views() if v.feed.id == 2]
    assert (lease.state, lease.promised_to, lease.stop_by) == (LeaseState.RUNNING, None, None)


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


def test_a_move_whose_target_is_cordoned_meanwhile_goes_anywhere_else() -> None:
    fleet = streaming_fleet()
    fleet.move(2, "b")
    fleet.cordon("b")
    fleet.run(3)
    assert fleet.everything_streams()
    assert feeds_of(fleet)["b"] == 1


def test_an_owner_that_does_not_let_go_is_waited_for_so_long_and_no_longer() -> None:
    fleet = streaming_fleet()
    fleet.become_stubborn("a")
    fleet.move(2, "b")
    fleet.run(13)
    expect(
        fleet,
        """
        t=10.0 worker a: hears no stop request any more
        t=10.0 person: moves feed 2 to b
        t=10.0 control: asks a to stop feed 2 (moved, for b)
        t=20.0 control: waits no longer for a to let go of feed 2
        t=20.0 control: assigns 2@2 to b
        t=20.1 worker b: streams feed 2
        t=20.6 worker a: is fenced off feed 2@1
        """,
    )
    assert fleet.everything_streams()


def test_an_owner_that_does_not_let_go_of_a_paused_feed_loses_it_and_it_stays_paused() -> None:
    fleet = streaming_fleet()
    fleet.become_stubborn("a")
    fleet.pause(2)
    fleet.run(14)
    (lease,) = [v.lease for v in fleet.store.feeds.views() if v.feed.id == 2]
    assert (lease.state, lease.reason) == (LeaseState.IDLE, Reason.PAUSED)
    assert fleet.source.owners(2) == []


@pytest.mark.parametrize("verb", ["pause", "remove", "edit"])
def test_a_feed_that_is_changed_while_it_moves_ends_as_the_change_says(verb: str) -> None:
    fleet = streaming_fleet()
    fleet.move(2, "b")
    getattr(fleet, verb)(2)
    fleet.run(5)
    assert fleet.everything_streams()
    assert (fleet.source.owners(2) == []) == (verb != "edit")
    assert not any(x.promised_to for x in fleet.store.database.tables.leases.values())
    if verb == "edit":
        view = fleet.store.feeds.view("feed-2")
        assert (view.lease.generation, view.worker) == (view.feed.generation, "b")


def test_a_pass_that_is_killed_before_its_commit_has_asked_for_nothing() -> None:
    fleet = streaming_fleet(workers="ab", feeds=6)
    fleet.add_worker("c")
    fleet.run(1)
    fleet.store.fail_commits(3)
    fleet.run(30)
    assert fleet.everything_streams()
    assert feeds_of(fleet) == {"a": 2, "b": 2, "c": 2}


def test_a_move_that_makes_no_sense_is_refused() -> None:
    fleet = streaming_fleet()
    with pytest.raises(Conflict, match="is there already"):
        fleet.move(2, "a")
    fleet.pause(2)
    with pytest.raises(Conflict, match="paused"):
        fleet.move(2, "b")
    fleet.cordon("b")
    with pytest.raises(Conflict, match="cordoned"):
        fleet.move(1, "b")


# -- announced restarts ------------------------------------------------------------------------------


def test_the_feeds_of_a_restarted_worker_wait_for_its_successor() -> None:
    fleet = holding_fleet()
    fleet.terminate("c")
    fleet.run(1)
    fleet.add_worker("c")
    fleet.run(3)
    expect(
        fleet,
        """
        t=10.0 worker c: gets SIGTERM
        t=10.1 worker c: drains feeds 1,4
        t=10.1 worker c: leaves
        t=11.0 worker c: starts
        t=11.1 control: assigns 1@2,4@2 to c
        t=11.2 worker c: streams feeds 1,4
        """,
    )
    assert fleet.everything_streams()


def test_a_successor_that_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    fleet = holding_fleet()
    fleet.terminate("c")
    fleet.run(HOLD_S + 2)
    expect(
        fleet,
        """
        t=10.0 worker c: gets SIGTERM
        t=10.1 worker c: drains feeds 1,4
        t=10.1 worker c: leaves
        t=15.1 control: assigns 1@2 to b
        t=15.1 control: assigns 4@2 to a
        t=15.2 worker a: streams feed 4
        t=15.2 worker b: streams feed 1
        """,
    )
    assert fleet.everything_streams()
    fleet.add_worker("c")
    fleet.run(10)
    assert sum(epochs(fleet).values()) == 4 + 2 + 1, "who comes too late gets its part as any newcomer does"


def test_a_crash_never_waits() -> None:
    fleet = holding_fleet()
    fleet.kill("c")
    fleet.run(1)
    assert fleet.everything_streams()


def test_a_hold_beyond_all_patience_ends_when_the_successor_is_there() -> None:
    fleet = streaming_fleet(settings=DURATIONS.model_copy(update={"restart_hold_s": 86_400.0}))
    fleet.terminate("c")
    fleet.run(60)
    assert not fleet.everything_streams()
    fleet.add_worker("c")
    fleet.run(3)
    assert fleet.everything_streams()
    assert epochs(fleet) == {1: 2, 2: 1, 3: 1, 4: 2}


def test_a_held_feed_may_be_moved_by_hand() -> None:
    fleet = holding_fleet()
    fleet.terminate("c")
    fleet.run(0.5)
    fleet.move(1, "a")
    fleet.run(0.5)
    assert fleet.source.owners(1) == ["a"]
    assert fleet.source.owners(4) == []


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


def test_while_feeds_wait_for_a_successor_its_part_is_left_to_it() -> None:
    fleet = holding_fleet(workers="abc", feeds=12)
    fleet.add_worker("d")
    fleet.terminate("a")
    fleet.run(3)
    assert feeds_of(fleet) == {"b": 4, "c": 4, "d": 0}, "a newcomer waits as well"
    fleet.add_worker("a")
    fleet.run(10)
    assert feeds_of(fleet) == dict.fromkeys("abcd", 3)
    assert sum(epochs(fleet).values()) == 12 + 4 + 3, "four went back, and three to the newcomer"


def test_when_no_successor_comes_the_fleet_is_even_after_the_hold() -> None:
    fleet = holding_fleet(workers="abc", feeds=12)
    fleet.add_worker("d")
    fleet.terminate("a")
    fleet.run(HOLD_S + 10)
    assert feeds_of(fleet) == {"b": 4, "c": 4, "d": 4}
    assert sum(epochs(fleet).values()) == 12 + 4, "all of them what was held"


def test_feeds_that_are_not_claimed_yet_when_a_worker_joins_move_to_it_once_they_run() -> None:
    fleet = FakeFleet()
    fleet.add_worker("a", capacity=4)
    fleet.run(3)
    fleet.workers["a"].is_deaf = True
    fleet.add_feeds(4)
    fleet.run(1)
    fleet.add_worker("b", capacity=100)
    fleet.run(5)
    assert fleet.workers["a"].streams == {}, "all are assigned, and none can be moved"
    fleet.workers["a"].is_deaf = False
    fleet.run(10)
    assert sorted(fleet.workers["b"].streams) == [1, 2, 3, 4]
