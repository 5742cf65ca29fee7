"""Every duration that a fleet lives by, at the smallest value that is permitted and at the largest.

Each setting has two stories, one for each end: what the value means comes true, no sooner and no later than
follows from it. And with each value the same fleet lives its life: it starts, a worker is killed, another
freezes and wakes up, a third is restarted; feeds come back within the time that the settings say, and while
nothing happens nothing is done more often than they say. `FakeFleet` checks its invariants at every step.
What a setting does in one process alone is tested with that part.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feedq.celery.beat import LOOK_INTERVAL_S
from feedq.core import limits
from feedq.core.lease import TRUST_MARGIN
from feedq.core.model import LeaseState, Status
from feedq.settings import HEARTBEAT_MIN_S, Settings
from tests.fakes.fleet import TICK_MIN_S
from tests.simulation.durations import TimedFleet, at_largest, at_lowest

pytestmark = pytest.mark.usefixtures("control")

Story = Callable[[TimedFleet], None]


def lives(fleet: TimedFleet) -> None:
    """Whatever the settings are, this holds."""
    s = fleet.settings
    fleet.start()
    silent_s = s.ttl_s + s.reconcile_interval_s if s.reconcile_interval_s < LOOK_INTERVAL_S else s.ttl_s

    fleet.kill("a")
    fleet.until_it_streams(LOOK_INTERVAL_S)

    fleet.freeze("b")
    frozen_at, theirs = fleet.clock.monotonic(), fleet.feeds_of("b")
    assert theirs
    heartbeat_s = max(s.heartbeat_s, HEARTBEAT_MIN_S)
    fleet.run(max(0.0, s.ttl_s - heartbeat_s - 2 * fleet.step_s))
    assert fleet.feeds_of("b") == theirs, "it may still be heard from"
    fleet.run_until(lambda: not fleet.feeds_of("b"), limit_s=s.ttl_s + silent_s + fleet.slack_s)
    fleet.thaw("b")
    fleet.until_it_streams(s.handoff_timeout_s)
    assert fleet.clock.monotonic() - frozen_at >= s.ttl_s - heartbeat_s - 2 * fleet.step_s

    fleet.terminate("c")
    fleet.run(3 * fleet.step_s)
    fleet.add_worker("c")
    fleet.until_it_streams(max(s.settle_s, s.heartbeat_s))
    rests(fleet)


def rests(fleet: TimedFleet) -> None:
    """While nothing happens, nothing is done more often than the settings say."""
    s = fleet.settings
    # What the newcomer is given is on its way, or it has just settled.
    fleet.run(min(s.settle_s, 600 * fleet.step_s) + fleet.slack_s)
    beats = {name: worker.heartbeats for name, worker in fleet.workers.items()}
    passes, looks = fleet.passes, fleet.looks
    for_s = 200 * fleet.step_s
    fleet.run(for_s)
    assert fleet.passes - passes <= for_s / max(s.reconcile_interval_s, TICK_MIN_S) + 2
    assert fleet.looks - looks <= for_s / max(LOOK_INTERVAL_S, fleet.step_s) + 2
    for name, worker in fleet.workers.items():
        assert worker.heartbeats - beats[name] <= for_s / max(s.heartbeat_s, HEARTBEAT_MIN_S) + 2
    assert fleet.everything_streams()


# -- the stories ---------------------------------------------------------------------------------------


def a_cut_off_worker_lets_go_before_its_feeds_start_elsewhere(fleet: TimedFleet) -> None:
    s = fleet.settings
    fleet.start()
    theirs = fleet.feeds_of("a")
    fleet.cut_off("a")
    fleet.run(s.ttl_s * (1 - TRUST_MARGIN) + fleet.step_s)
    assert all("a" not in fleet.source.owners(feed_id) for feed_id in theirs)
    fleet.until_it_streams(s.ttl_s * TRUST_MARGIN + fleet.noticed_s)
    assert not fleet.feeds_of("a")


def what_is_not_claimed_goes_elsewhere_after_the_time_out(fleet: TimedFleet) -> None:
    s = fleet.settings
    if not fleet.everything_streams():
        fleet.start()
    for name in "abc":
        fleet.become_deaf(name)
    fleet.add_feeds(1)
    fleet.run(5 * fleet.step_s)
    (one,) = (v for v in fleet.store.feeds.views() if v.lease.state is LeaseState.ASSIGNED)
    fleet.run(limits.DISPATCH_TIMEOUT_S - 7 * fleet.step_s)
    assert fleet.store.feeds.view(one.feed.name).lease.epoch == one.lease.epoch
    fleet.run_until(
        lambda: fleet.store.feeds.view(one.feed.name).lease.epoch > one.lease.epoch,
        limit_s=s.reconcile_interval_s + fleet.slack_s,
    )
    for worker in fleet.workers.values():
        worker.is_deaf = False
    fleet.until_it_streams(s.heartbeat_s)


def what_is_on_its_way_is_not_withdrawn(fleet: TimedFleet) -> None:
    """Each feed that is added wakes a pass; a worker hears of what it was assigned half a second later."""
    fleet.start()
    fleet.broker.to_lose = 1_000
    fleet.control.notifications_take_s = 0.5
    for _ in range(30):
        fleet.add_feeds(1)
        fleet.step()
    first = [fleet.store.feeds.view(f"feed-{n}") for n in range(7, 17)]
    assert {(v.lease.state, v.lease.epoch) for v in first} == {(LeaseState.RUNNING, 1)}
    fleet.broker.to_lose = 0
    fleet.control.notifications_take_s = 0.0
    fleet.until_it_streams(0.5)
    what_is_not_claimed_goes_elsewhere_after_the_time_out(fleet)


def nothing_is_placed_before_the_first_worker_has_settled(fleet: TimedFleet) -> None:
    s = fleet.settings
    fleet.run(max(0.0, s.settle_s - fleet.step_s))
    if s.settle_s:
        assert all(v.lease.state is LeaseState.IDLE for v in fleet.store.feeds.views())
    fleet.until_it_streams(0.0)


def a_newcomer_is_given_nothing(fleet: TimedFleet) -> None:
    fleet.start()
    fleet.add_worker("d")
    fleet.drain("a")
    fleet.run(fleet.settings.settle_s + 2 * fleet.settings.reconcile_interval_s + fleet.slack_s)
    assert not fleet.feeds_of("d")
    assert fleet.feeds_of("a")
    fleet.uncordon("a")


def a_newcomer_is_given_its_part_and_a_drained_worker_loses_all(fleet: TimedFleet) -> None:
    fleet.start()
    fleet.add_worker("d")
    fleet.run(fleet.settings.settle_s + fleet.settings.reconcile_interval_s + fleet.slack_s)
    assert sorted(len(fleet.feeds_of(name)) for name in "abcd") == [1, 1, 2, 2]
    fleet.drain("a")
    fleet.run_until(lambda: not fleet.feeds_of("a"), limit_s=fleet.slack_s)
    fleet.uncordon("a")


def an_owner_that_does_not_let_go_is_waited_for_so_long(fleet: TimedFleet) -> None:
    s = fleet.settings
    fleet.start()
    fleet.become_stubborn("a")
    feed_id = min(fleet.feeds_of("a"))
    fleet.move(feed_id, "b")
    if s.handoff_timeout_s:
        fleet.run(s.handoff_timeout_s - fleet.step_s)
        assert feed_id in fleet.feeds_of("a")
    fleet.run_until(lambda: feed_id in fleet.feeds_of("b"), limit_s=fleet.noticed_s + fleet.slack_s)
    fleet.workers["a"].is_stubborn = False
    # The old owner hears that it has lost the feed with its next report.
    fleet.until_it_streams(s.heartbeat_s)


def what_a_stopped_worker_had_is_placed_at_once(fleet: TimedFleet) -> None:
    fleet.start()
    fleet.terminate("a")
    fleet.until_it_streams(0.0)


def what_a_stopped_worker_had_waits_for_its_successor_so_long(fleet: TimedFleet) -> None:
    s = fleet.settings
    fleet.start()
    theirs = fleet.feeds_of("a")
    fleet.terminate("a")
    fleet.run(s.restart_hold_s / 2)
    assert {v.feed.id for v in fleet.store.feeds.views() if v.status is Status.WAITING} == theirs
    fleet.add_worker("a")
    fleet.until_it_streams(0.0)
    assert fleet.feeds_of("a") == theirs
    fleet.terminate("a")
    fleet.run(s.restart_hold_s - fleet.step_s)
    assert not fleet.everything_streams(), "nobody else has had them before"
    fleet.until_it_streams(fleet.noticed_s)


def nothing_in_particular(fleet: TimedFleet) -> None:
    """What the value means is what `lives` looks at."""


STORIES: dict[str, tuple[Story, Story]] = {
    "heartbeat_s": (nothing_in_particular, nothing_in_particular),
    "ttl_s": (
        a_cut_off_worker_lets_go_before_its_feeds_start_elsewhere,
        a_cut_off_worker_lets_go_before_its_feeds_start_elsewhere,
    ),
    "reconcile_interval_s": (
        what_is_on_its_way_is_not_withdrawn,
        what_is_not_claimed_goes_elsewhere_after_the_time_out,
    ),
    "settle_s": (
        nothing_is_placed_before_the_first_worker_has_settled,
        nothing_is_placed_before_the_first_worker_has_settled,
    ),
    "moves_per_pass": (
        a_newcomer_is_given_nothing,
        a_newcomer_is_given_its_part_and_a_drained_worker_loses_all,
    ),
    "handoff_timeout_s": (
        an_owner_that_does_not_let_go_is_waited_for_so_long,
        an_owner_that_does_not_let_go_is_waited_for_so_long,
    ),
    "restart_hold_s": (
        what_a_stopped_worker_had_is_placed_at_once,
        what_a_stopped_worker_had_waits_for_its_successor_so_long,
    ),
}
"""For each setting, what it means at its lowest and at its largest value."""


@pytest.fixture(autouse=True)
def _as_slow(made: Callable[[str], Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message takes is of the order of a step, and those of a slow fleet are long."""
    if made is at_largest:
        monkeypatch.setattr(limits, "DISPATCH_TIMEOUT_S", 3_000.0)


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("made", [at_lowest, at_largest])
def test_a_fleet_lives_with_every_duration_at_its_ends(name: str, made: Callable[[str], Settings]) -> None:
    lives(TimedFleet(made(name)))


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("made", [at_lowest, at_largest])
def test_each_end_means_what_it_says(name: str, made: Callable[[str], Settings]) -> None:
    lowest, largest = STORIES[name]
    fleet = TimedFleet(made(name))
    (lowest if made is at_lowest else largest)(fleet)
    fleet.check()
