"""Placement of feeds that failed somewhere or whose sink is down on some workers, and beside workers that lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.placement.base import Avoided, EligibleWorker, Held, Rules, Strategy, WaitingFeed
from feedq.core.placement.placing import place
from feedq.core.placement.rebalancing import rebalance
from tests.unit.placing import (
    NOW,
    SETTLE_S,
    Running,
    candidate,
    caps,
    choosy_feeds,
    fleets,
    matches,
    running,
    running_fleets,
)

AVOID_S = 600.0
SINKS = ("", "default", "reports")
strategies = st.sampled_from(Strategy)


def failed(*names: str, ago_s: float = 10.0) -> Avoided:
    """On these workers, one a second, the last of them ``ago_s`` ago."""
    return tuple(
        (name, NOW - timedelta(seconds=ago_s + len(names) - n)) for n, name in enumerate(names, start=1)
    )


names = st.lists(st.sampled_from([f"w{n}" for n in range(1, 10)]), unique=True, max_size=6)


@st.composite
def troubled_feeds(draw: st.DrawFn) -> list[WaitingFeed]:
    return [
        replace(feed, avoid=failed(*draw(names)), sink=draw(st.sampled_from(SINKS)))
        for feed in draw(choosy_feeds())
    ]


@st.composite
def troubled_workers(draw: st.DrawFn, workers: Sequence[EligibleWorker]) -> list[EligibleWorker]:
    down = st.sets(st.sampled_from(SINKS[1:])).map(frozenset)
    return [
        replace(
            worker,
            sinks_down=draw(st.sampled_from((frozenset(), draw(down)))),
            lags=draw(st.sampled_from((False, False, True))),
        )
        for worker in workers
    ]


@st.composite
def troubled_fleets(draw: st.DrawFn) -> list[EligibleWorker]:
    return draw(troubled_workers(draw(fleets(labelled=True))))


def may_have(worker: EligibleWorker, feed: WaitingFeed | Held, workers: Iterable[EligibleWorker]) -> bool:
    """Whether the labels fit and the sink can be written to, or by nobody whose labels fit."""
    fitting = [w for w in workers if matches(w, feed.selector.required)]
    able = [w for w in fitting if feed.sink not in w.sinks_down]
    return worker in (able or fitting)


def room_after(
    worker: EligibleWorker,
    feed: WaitingFeed,
    queue: Sequence[WaitingFeed],
    got: dict[int, UUID],
    rules: Rules,
) -> bool:
    """Whether the worker could have taken one more of this tenant at the end, and so before it, too."""
    taken = [w for w in queue if got.get(w.feed_id) == worker.worker_id]
    cap = rules.cap_of(feed.tenant)
    of_tenant = worker.tenants.get(feed.tenant, 0) + sum(w.tenant == feed.tenant for w in taken)
    return worker.feeds + len(taken) < worker.capacity and (cap is None or of_tenant < cap)


@given(troubled_feeds(), troubled_fleets(), caps, strategies)
def test_no_feed_is_given_to_a_worker_while_a_better_one_has_room(
    feeds: list[WaitingFeed], workers: list[EligibleWorker], tenant_caps: dict[str, int], strategy: Strategy
) -> None:
    rules = Rules(settle_s=SETTLE_S, tenant_caps=tenant_caps, strategy=strategy)
    decision = place(feeds, workers, now=NOW, rules=rules)
    got, by_id = dict(decision.assignments), {w.worker_id: w for w in workers}
    said = [*got, *(feed_id for feed_id, _ in decision.unplaced)]
    assert sorted(said) == sorted(feed.feed_id for feed in feeds)
    for worker in workers:
        mine = Counter(feed.tenant for feed in feeds if got.get(feed.feed_id) == worker.worker_id)
        assert worker.feeds + mine.total() <= max(worker.capacity, worker.feeds)
        for tenant, count in mine.items():
            cap = rules.cap_of(tenant)
            assert cap is None or worker.tenants.get(tenant, 0) + count <= cap
    for feed in feeds:
        free = [w for w in workers if may_have(w, feed, workers) and room_after(w, feed, feeds, got, rules)]
        if feed.feed_id not in got:
            assert not free, "somebody could have taken it"
            continue
        owner = by_id[got[feed.feed_id]]
        assert may_have(owner, feed, workers)
        avoided = [name for name, _ in feed.avoid]
        if owner.name in avoided:
            earlier = avoided[: avoided.index(owner.name)]
            assert all(w.name in avoided and w.name not in earlier for w in free), "it was not its turn"
        elif owner.lags:
            assert all(w.lags or w.name in avoided for w in free)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_feed_that_failed_everywhere_goes_where_it_failed_longest_ago(strategy: Strategy) -> None:
    workers = [candidate(n) for n in (1, 2, 3)]
    rules = Rules(strategy=strategy)
    for order in (("w2", "w3", "w1"), ("w3", "w1", "w2"), ("w9", "w1", "w3", "w2")):
        decision = place([WaitingFeed(7, avoid=failed(*order))], workers, now=NOW, rules=rules)
        oldest = next(name for name in order if name != "w9")
        assert decision.assignments == ((7, UUID(int=int(oldest[1:]))),)


def test_a_promise_is_not_kept_where_the_sink_is_down() -> None:
    cut_off = replace(candidate(2, feeds=1), sinks_down=frozenset({"reports"}))
    promised = WaitingFeed(1, sink="reports", promised_to=cut_off.worker_id)
    decision = place([promised], [candidate(1), cut_off], now=NOW, rules=Rules())
    assert decision.assignments == ((1, UUID(int=1)),)


# -- moves -------------------------------------------------------------------------------------------


@st.composite
def troubled_running(draw: st.DrawFn, strategy: Strategy) -> Running:
    fleet = draw(running_fleets(strategy=strategy))
    held = [
        replace(feed, avoid=failed(*draw(names)), sink=draw(st.sampled_from(SINKS))) for feed in fleet.held
    ]
    return running(draw(troubled_workers(fleet.workers)), held, fleet.rules)


@given(st.data(), strategies)
def test_no_move_leads_to_where_a_feed_failed_or_cannot_land_or_to_a_worker_that_lags(
    data: st.DataObject, strategy: Strategy
) -> None:
    fleet = data.draw(troubled_running(strategy))
    workers = {w.worker_id: w for w in fleet.workers}
    feeds = {feed.feed_id: feed for feed in fleet.held}
    stranded = {feed.feed_id for feed in fleet.stranded}
    for one in rebalance(fleet.held, fleet.workers, now=NOW, rules=fleet.rules, moves=100).transfers():
        feed, target = feeds[one.feed_id], workers[one.target]
        assert may_have(target, feed, fleet.workers)
        assert not target.lags or all(w.lags for w in fleet.workers)
        if target.name in dict(feed.avoid):
            assert one.feed_id in stranded, "what must leave goes where there is room"


@given(st.data(), strategies, st.integers(1, 3))
def test_rebalancing_comes_to_an_end_whatever_feeds_avoid(
    data: st.DataObject, strategy: Strategy, limit: int
) -> None:
    fleet = data.draw(troubled_running(strategy))
    for _ in range(20 * len(fleet.held) + 1):
        moves = rebalance(fleet.held, fleet.workers, now=NOW, rules=fleet.rules, moves=limit)
        transfers = moves.transfers()
        if not transfers:
            return
        fleet = fleet.after(transfers)
    raise AssertionError("it goes on moving")


def uneven(*, ago_s: float) -> Running:
    """All feeds are on one worker, as they failed on the other."""
    held = [Held(n, UUID(int=2), avoid=failed("w1", ago_s=ago_s + n)) for n in range(10)]
    return running([candidate(1), candidate(2)], held)


def moved(fleet: Running, *, busy: Sequence[int] = (), now: datetime = NOW) -> list[int]:
    transfers = rebalance(
        fleet.held,
        fleet.workers,
        now=now,
        rules=replace(fleet.rules, avoid_s=AVOID_S),
        moves=100,
        under_way={UUID(int=n): 1 for n in busy},
    ).transfers()
    assert all(one.target == UUID(int=1) for one in transfers)
    return [one.feed_id for one in transfers]


def test_one_feed_is_tried_where_all_failed_once_none_has_for_long() -> None:
    assert moved(uneven(ago_s=AVOID_S - 2)) == []
    assert moved(uneven(ago_s=AVOID_S + 1)) == [9], "that which failed there longest ago"
    assert moved(uneven(ago_s=AVOID_S + 1), busy=[1]) == [], "one is on its way there already"


def test_after_a_try_that_failed_the_others_stay_where_they_are() -> None:
    fleet = uneven(ago_s=AVOID_S + 1)
    again = [replace(feed, avoid=failed("w1")) if feed.feed_id == 9 else feed for feed in fleet.held]
    assert moved(running(fleet.workers, again)) == []
    assert moved(running(fleet.workers, again), now=NOW + timedelta(seconds=AVOID_S)) == [8]


def test_after_a_try_that_went_well_the_others_follow_but_for_those_that_failed_just_now() -> None:
    """Then it was the feed, and not the way to the source."""
    fleet = uneven(ago_s=AVOID_S + 1)
    held = [replace(feed, reached={"w1"}) for feed in fleet.held if feed.feed_id != 9]
    held[0] = replace(held[0], avoid=failed("w1"))
    found = moved(running(fleet.workers, [*held, Held(9, UUID(int=1))]))
    assert len(found) == 4
    assert 0 not in found


def test_too_many_different_sets_of_avoided_workers_cost_moves_and_no_time() -> None:
    """Each set has a pool of its own, of which there are only so many."""
    workers = [candidate(n) for n in range(1, 41)]
    held = [
        Held(n, UUID(int=1), avoid=failed(*sorted({f"w{2 + n % 37}", f"w{3 + n * 7 % 37}"})))
        for n in range(1000)
    ]
    fleet = running([replace(w, capacity=2000) for w in workers], held)
    transfers = rebalance(fleet.held, fleet.workers, now=NOW, rules=fleet.rules, moves=1000).transfers()
    assert len(transfers) > 200
    feeds = {feed.feed_id: feed for feed in held}
    for one in transfers:
        assert f"w{one.target.int}" not in dict(feeds[one.feed_id].avoid)
