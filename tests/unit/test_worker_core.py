"""The decisions of a worker: events go in by hand, and what is to be done comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from random import Random
from uuid import uuid4

import pytest

from feedq.core import worker as core
from feedq.core.limits import AUDITS_GATHERED_S, STOPS_PAUSE_S, STOPS_TOGETHER
from feedq.core.model import (
    Claim,
    Feed,
    FeedKey,
    FeedSpec,
    Heartbeat,
    Reason,
    Release,
    StopRequest,
    WorkerState,
)
from feedq.core.worker import (
    FEED_TRANSITIONS,
    LOST_S,
    NO_SLOT_RETRY_S,
    SESSION_TRANSITIONS,
    FeedEvent,
    FeedState,
    SessionEvent,
    SessionState,
    WorkerCore,
)
from feedq.core.worker_actions import (
    AcceptMessage,
    Action,
    AnnounceDrain,
    ClaimFeeds,
    Drained,
    DropMessage,
    FetchHeld,
    FetchOrders,
    FinishMessage,
    LoseFeeds,
    ReleaseLeases,
    Resume,
    StartApart,
    StartFeeds,
    StopFeeds,
    Suspend,
)
from feedq.settings import Settings
from tests.fakes.sink import IDENTITY

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY: FeedKey = (1, 7)
SETTINGS = Settings(heartbeat_s=2, ttl_s=6)
WELL = Heartbeat(WorkerState.ACTIVE, stops_pending=False, claims_pending=False, pass_age_s=0.0)


def claim(key: FeedKey = KEY, *, quarantined: bool = False) -> Claim:
    feed = Feed(key[0], FeedSpec(name=f"f{key[0]}", connector="tcp", source={}, sink={}), 1, AT, AT, IDENTITY)
    return replace(Claim(feed, key[1], 0), quarantined=quarantined)


class Bench:
    """A core under a registered worker session, and what it wanted done."""

    def __init__(self, settings: Settings = SETTINGS, *, capacity: int = 100, is_apart: bool = False) -> None:
        self.now = 1_000.0
        self.worker_id = uuid4()
        self.core = WorkerCore(settings, rng=Random(1), now=self.now, is_apart=is_apart)
        assert self.core.registered(self.worker_id, capacity=capacity, now=self.now) == []
        self.core.connection_opened("keeper")
        assert self.beat() == [Resume()]

    def beat(self, answer: Heartbeat | None = WELL, *, sent_ago_s: float = 0.0) -> list[Action]:
        return self.core.heartbeat_answered(answer, sent_at=self.now - sent_ago_s, now=self.now)

    def message(self, message: object, key: FeedKey = KEY) -> list[Action]:
        return self.core.message_received(key, message)

    def found(self, *keys: FeedKey) -> list[Action]:
        return self.core.assignments_found(self.worker_id, keys or [KEY])

    def granted(self, *claims: Claim, refused: Iterable[FeedKey] = (), sure: bool = True) -> list[Action]:
        given = claims or (() if refused else (claim(),))
        return self.core.claims_answered(self.worker_id, given, refused, sure=sure, now=self.now)

    def run(self, *keys: FeedKey) -> None:
        """Have these run."""
        for key in keys:
            self.found(key)
            self.granted(claim(key))

    def held(self, *keys: FeedKey) -> list[Action]:
        return self.core.held_found(self.worker_id, set(keys), now=self.now)

    def asked_to_stop(self, *requests: StopRequest) -> list[Action]:
        return self.core.stops_found(self.worker_id, requests, now=self.now)

    def ended(self, key: FeedKey, reason: Reason | None = Reason.RELEASED) -> list[Action]:
        release = Release(*key, reason) if reason else None
        return self.core.feed_ended(key, release, reason.value if reason else "lost", now=self.now)

    def after(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.core.tick(self.now)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def dropped(actions: Iterable[Action]) -> list[tuple[object, str]]:
    """The messages that are dropped, each with the first words of why."""
    return [(a.message, a.why.split(":")[0]) for a in actions if isinstance(a, DropMessage)]


def of_type(actions: Iterable[Action], *types: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, types)]


# -- states ------------------------------------------------------------------------------------------


def test_every_pair_of_a_session_is_listed() -> None:
    assert set(SESSION_TRANSITIONS) == set(product(SessionState, SessionEvent))


def test_every_pair_of_a_feed_is_listed_but_for_those_that_cannot_be() -> None:
    before_its_claim = {(FeedState.CLAIMING, FeedEvent.STOP), (FeedState.CLAIMING, FeedEvent.LOSE)}
    granted = (FeedEvent.GRANTED, FeedEvent.PART)
    granted_twice = set(product(set(FeedState) - {FeedState.CLAIMING}, granted))
    its_own_process_s = set(product((FeedState.APART,), (FeedEvent.STOP, FeedEvent.LOSE)))
    unlisted = set(product(FeedState, FeedEvent)) - set(FEED_TRANSITIONS)
    assert unlisted == before_its_claim | granted_twice | its_own_process_s


# -- an assignment is heard of by notification and by message, in any order, any number of times -----


def test_a_notification_after_the_message_asks_for_nothing_more(bench: Bench) -> None:
    assert bench.message("task") == [ClaimFeeds(bench.worker_id, [KEY])]
    assert bench.found() == []
    granted = bench.granted()
    assert of_type(granted, AcceptMessage, StartFeeds) == [
        AcceptMessage("task"),
        StartFeeds([claim()]),
    ]
    assert bench.found() == []
    assert bench.ended(KEY) == [
        ReleaseLeases(bench.worker_id, [Release(*KEY, Reason.RELEASED)]),
        FinishMessage("task", "released"),
    ]


def test_a_copy_of_the_message_is_dropped_and_the_first_one_stays(bench: Bench) -> None:
    bench.found()
    bench.message("task")
    bench.granted()
    assert dropped(bench.message("copy")) == [("copy", "a duplicate")]
    assert FinishMessage("task", "released") in bench.ended(KEY)


def test_a_message_after_the_end_asks_for_a_claim_of_its_own_and_is_dropped_as_stale(bench: Bench) -> None:
    bench.run(KEY)
    bench.ended(KEY)
    assert bench.message("late") == [ClaimFeeds(bench.worker_id, [KEY])]
    assert dropped(bench.granted(refused=[KEY])) == [("late", "stale")]
    assert bench.message("later") == [ClaimFeeds(bench.worker_id, [KEY])]


def test_a_refused_assignment_leaves_nothing_behind() -> None:
    full = Bench(capacity=0)
    assert full.found() == []
    for message in ("task", "copy"):
        assert dropped(full.message(message)) == [(message, "this worker holds 0 feeds already")]


def test_claims_under_way_count_against_the_capacity() -> None:
    bench = Bench(capacity=2)
    assert bench.found((1, 1), (2, 1), (3, 1)) == [ClaimFeeds(bench.worker_id, [(1, 1), (2, 1)])]
    bench.granted(claim((1, 1)), refused=[(2, 1)])
    assert bench.found((3, 1), (4, 1)) == [ClaimFeeds(bench.worker_id, [(3, 1)])]


def test_a_feed_that_is_here_already_may_come_back_to_a_full_worker() -> None:
    bench = Bench(capacity=1)
    bench.run((1, 1))
    assert bench.found((1, 2)) == [ClaimFeeds(bench.worker_id, [(1, 2)])]
    actions = bench.granted(claim((1, 2)))
    assert of_type(actions, LoseFeeds, StartFeeds) == [
        LoseFeeds([(1, 1)]),
        StartFeeds([claim((1, 2))]),
    ], "the stream before it ends first"
    assert bench.ended((1, 1), None) == []
    assert bench.core.feeds == 1


def test_a_claim_that_is_granted_after_the_session_was_declared_gone_does_not_begin(bench: Bench) -> None:
    bench.message("task")
    bench.beat(None)
    assert bench.granted() == [AcceptMessage("task"), FinishMessage("task", "lost")]
    assert bench.core.feeds == 0


def test_a_claim_whose_answer_was_lost_has_the_leases_compared(bench: Bench) -> None:
    bench.found()
    bench.granted(refused=[KEY], sure=False)
    assert bench.after(AUDITS_GATHERED_S) == [FetchHeld(bench.worker_id)]
    assert bench.held(KEY) == [ReleaseLeases(bench.worker_id, [Release(*KEY, Reason.RELEASED)])]


def test_a_feed_that_is_to_run_apart_for_which_no_slot_is_free_is_tried_again_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "APART_SLOTS", 1)
    bench.found((1, 1), (2, 1))
    actions = bench.granted(claim((1, 1), quarantined=True), claim((2, 1), quarantined=True))
    assert of_type(actions, ReleaseLeases) == [
        ReleaseLeases(bench.worker_id, [Release(2, 1, Reason.QUARANTINED, NO_SLOT_RETRY_S)])
    ]
    assert actions[-1] == StartApart([claim((1, 1), quarantined=True)])


def test_a_feed_that_runs_apart_is_its_own_process_s_until_that_has_ended(bench: Bench) -> None:
    bench.found(KEY)
    bench.granted(claim(quarantined=True))
    assert bench.core.feeds == 0, "it takes no place"
    assert bench.message("message") == [AcceptMessage("message")]
    assert bench.core.stop_feed(KEY[0]) == []
    assert bench.held(KEY) == [], "until it has taken it over"
    assert bench.held() == []
    assert of_type(bench.core.drain(now=bench.now), Drained) == []
    assert bench.core.feed_ended(KEY, None, "ended", now=bench.now) == [
        FinishMessage("message", "ended"),
        Drained(),
    ]


def test_a_lease_that_the_process_of_a_feed_has_not_taken_over_is_released(bench: Bench) -> None:
    bench.found(KEY)
    bench.granted(claim(quarantined=True))
    release = Release(*KEY, Reason.QUARANTINED, NO_SLOT_RETRY_S)
    assert bench.core.feed_ended(KEY, release, "ended", now=bench.now) == [
        ReleaseLeases(bench.worker_id, [release])
    ]


def test_the_process_of_a_feed_runs_what_is_to_run_apart_and_one_feed_alone() -> None:
    apart = Bench(capacity=0, is_apart=True)
    apart.found((1, 1))
    assert apart.core.assignments_found(apart.worker_id, [(2, 1)]) == []
    actions = apart.granted(claim((1, 1), quarantined=True))
    assert actions[-1] == StartFeeds([claim((1, 1), quarantined=True)])


# -- trust -------------------------------------------------------------------------------------------


def test_trust_ends_where_the_last_answered_heartbeat_was_sent_and_a_ttl_less_the_margin_later() -> None:
    bench = Bench()
    bench.now += 2
    bench.beat(sent_ago_s=2)
    assert bench.core.is_trusted(bench.now + 2.99)
    assert not bench.core.is_trusted(bench.now + 3)
    assert bench.core.wakes_at() == bench.now + 3
    assert bench.after(3) == [Suspend("no heartbeat was answered in time")]
    assert bench.core.heartbeat_at == bench.now
    assert bench.after(1) == [], "once"
    assert bench.beat() == [Resume()]


def test_an_answer_that_comes_too_late_resumes_nothing(bench: Bench) -> None:
    bench.after(5)
    assert bench.beat(sent_ago_s=5) == []
    assert bench.core.state is SessionState.SUSPENDED


def test_the_loss_of_one_session_is_no_reason_to_stop_and_that_of_the_last_is(bench: Bench) -> None:
    bench.core.connection_opened("listener")
    assert bench.core.connection_lost("keeper", now=bench.now) == []
    assert bench.core.connection_lost("keeper", now=bench.now) == []
    assert bench.core.connection_lost("listener", now=bench.now) == [
        Suspend("the last database session was lost")
    ]
    assert bench.core.heartbeat_at == bench.now, "it asks at once whether it is still known"


def test_after_a_lost_session_the_leases_are_compared_once(bench: Bench) -> None:
    bench.core.connection_lost("keeper", now=bench.now)
    bench.beat()
    assert bench.after(AUDITS_GATHERED_S) == [FetchHeld(bench.worker_id)]
    bench.beat()
    assert bench.after(AUDITS_GATHERED_S) == []


def test_a_loop_that_stands_still_suspends_and_no_answer_resumes_before_it_turns(bench: Bench) -> None:
    stall_s = SETTINGS.stall_s
    assert bench.core.loop_checked(stall_s - 0.1, now=bench.now) == []
    assert bench.core.loop_checked(stall_s, now=bench.now) == [Suspend("the event loop stands still")]
    assert bench.core.loop_checked(stall_s + 1, now=bench.now) == []
    assert bench.beat() == []
    assert not bench.core.is_trusted(bench.now)
    assert bench.core.heartbeat_at > bench.now
    assert bench.core.loop_checked(0.0, now=bench.now) == []
    assert bench.core.heartbeat_at == bench.now
    assert bench.beat() == [Resume()]


def test_a_heartbeat_that_fails_is_tried_again_ever_later_up_to_a_bound(bench: Bench) -> None:
    pauses = []
    for _ in range(6):
        bench.core.heartbeat_failed(now=bench.now)
        pauses.append(round(bench.core.heartbeat_at - bench.now, 3))
        bench.now = bench.core.heartbeat_at
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    bench.beat()
    bench.core.heartbeat_failed(now=bench.now)
    assert round(bench.core.heartbeat_at - bench.now, 3) == 0.1


def test_a_worker_declared_gone_loses_everything_and_needs_a_session(bench: Bench) -> None:
    bench.run((1, 1), (2, 1))
    assert bench.beat(None) == [Suspend("the worker was declared gone"), LoseFeeds([(1, 1), (2, 1)])]
    assert bench.core.worker_id is None
    assert bench.core.heartbeat_at == bench.now
    assert not bench.core.is_trusted(bench.now)
    assert bench.found((3, 1)) == bench.core.orders_pending() == []
    another = uuid4()
    bench.core.registered(another, capacity=10, now=bench.now)
    assert bench.ended((1, 1), None) == []
    assert bench.held() == [], "of the session before"
    assert bench.beat() == [Resume()]


# -- stops -------------------------------------------------------------------------------------------


def test_a_heartbeat_that_tells_of_orders_has_them_fetched(bench: Bench) -> None:
    assert bench.beat(replace(WELL, stops_pending=True)) == [FetchOrders(bench.worker_id)]
    assert bench.beat(replace(WELL, claims_pending=True)) == [FetchOrders(bench.worker_id)]


def test_what_is_to_stop_stops_and_what_does_not_run_here_is_released(bench: Bench) -> None:
    bench.run((1, 1))
    assert bench.asked_to_stop(StopRequest(1, 1, Reason.PAUSED), StopRequest(2, 5, Reason.MOVED)) == [
        StopFeeds([((1, 1), Reason.PAUSED)]),
        ReleaseLeases(bench.worker_id, [Release(2, 5, Reason.MOVED)]),
    ]


def test_a_feed_that_did_not_stop_in_time_and_was_taken_away_is_cut_off_at_once(bench: Bench) -> None:
    bench.run((1, 1))
    bench.asked_to_stop(StopRequest(1, 1, Reason.PAUSED))
    assert FetchOrders(bench.worker_id) in bench.beat(), "whether it still is asked to"
    assert bench.asked_to_stop() == [LoseFeeds([(1, 1)])]


def test_a_lost_feed_that_does_not_end_is_cut_off_again_and_again(bench: Bench) -> None:
    bench.run((1, 1), (2, 1))
    assert bench.core.reports_refused([(1, 1)], now=bench.now) == [LoseFeeds([(1, 1)])]
    assert bench.core.reports_refused([(1, 1)], now=bench.now) == [], "told once"
    for _ in range(3):
        assert bench.core.wakes_at() <= bench.now + LOST_S
        assert bench.after(LOST_S) == [LoseFeeds([(1, 1)], overdue=True)]
        bench.beat()
    bench.ended((1, 1), None)
    assert bench.after(LOST_S) == []


def test_a_feed_that_was_fenced_off_has_the_leases_compared(bench: Bench) -> None:
    bench.run((1, 1))
    bench.ended((1, 1), Reason.FENCED)
    assert bench.after(AUDITS_GATHERED_S) == [FetchHeld(bench.worker_id)]


def test_leases_are_compared_with_what_runs(bench: Bench) -> None:
    bench.run((1, 1), (2, 1))
    assert bench.held((2, 1), (3, 4)) == [
        LoseFeeds([(1, 1)]),
        ReleaseLeases(bench.worker_id, [Release(3, 4, Reason.RELEASED)]),
    ]


# -- leaving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("feeds", [0, 1, STOPS_TOGETHER, STOPS_TOGETHER + 1, 7 * STOPS_TOGETHER])
def test_a_leaving_worker_tells_all_feeds_once_some_at_a_time(feeds: int) -> None:
    bench = Bench(capacity=1_000)
    keys = [(feed_id, 1) for feed_id in range(feeds)]
    bench.run(*keys)
    first, *rest = bench.core.drain(now=bench.now)
    assert first == AnnounceDrain(bench.worker_id)
    told: list[FeedKey] = []
    pauses = 0
    while stops := of_type(rest, StopFeeds):
        (stop,) = stops
        assert isinstance(stop, StopFeeds)
        assert len(stop.feeds) <= STOPS_TOGETHER
        told += [key for key, _ in stop.feeds]
        if len(told) == feeds:
            break
        assert bench.core.wakes_at() == pytest.approx(bench.now + STOPS_PAUSE_S)
        rest = bench.after(STOPS_PAUSE_S + 1e-6)
        pauses += 1
    assert told == keys
    assert pauses == max(0, (feeds - 1) // STOPS_TOGETHER)
    assert bench.core.drain(now=bench.now) == []


@pytest.mark.parametrize("timeout_s", [0.0, 0.6, 1e5])
def test_the_pauses_take_no_more_than_half_of_the_time_that_there_is(timeout_s: float) -> None:
    bench = Bench(SETTINGS.model_copy(update={"drain_timeout_s": timeout_s}), capacity=10_000)
    bench.run(*((feed_id, 1) for feed_id in range(2_000)))
    began = bench.now
    told = sum(len(a.feeds) for a in bench.core.drain(now=bench.now) if isinstance(a, StopFeeds))
    while told < 2_000:
        bench.now = max(bench.core.wakes_at(), bench.now)
        told += sum(len(a.feeds) for a in bench.core.tick(bench.now) if isinstance(a, StopFeeds))
    assert bench.now - began <= min(timeout_s / 2, 2_000 / STOPS_TOGETHER * STOPS_PAUSE_S) + 1e-6


def test_a_leaving_worker_has_left_once_its_last_feed_has_ended(bench: Bench) -> None:
    bench.run((1, 1), (2, 1))
    assert Drained() not in bench.core.drain(now=bench.now)
    assert Drained() not in bench.ended((1, 1))
    assert Drained() in bench.ended((2, 1))
    assert Drained() in Bench().core.drain(now=bench.now), "with no feed, at once"


def test_a_leaving_worker_takes_nothing_more(bench: Bench) -> None:
    bench.message("task")
    bench.run((2, 1))
    bench.core.drain(now=bench.now)
    granted = bench.granted()
    assert of_type(granted, StartFeeds) == []
    assert ReleaseLeases(bench.worker_id, [Release(*KEY, Reason.RELEASED)]) in granted
    assert FinishMessage("task", "released") in granted
    assert dropped(bench.message("other", (3, 1))) == [("other", "this worker is draining")]
    assert bench.found((4, 1)) == []
    assert bench.core.orders_pending() == [FetchOrders(bench.worker_id)], "stops, for all that"
