"""Placement: pure, so its promises are properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feedq.core.model import Reason, Selector
from feedq.core.placement import fleet_loads
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Placement, Rules, Strategy, Transfer
from feedq.core.placement.placing import place
from feedq.core.placement.rebalancing import donors
from feedq.core.placement.rebalancing import rebalance as rebalance_fleet
from feedq.core.placement.rendezvous import EXCESS
from tests.unit.placing import (
    NOW,
    SETTLE_S,
    candidate,
    caps,
    choosy_feeds,
    fleets,
    matches,
    running,
)


def decide(
    waiting: Sequence[FeedToPlace],
    workers: Sequence[EligibleWorker],
    *,
    tenant_caps: dict[str, int] | None = None,
    strategy: Strategy = Strategy.BALANCED,
) -> Placement:
    rules = Rules(settle_s=SETTLE_S, tenant_caps=tenant_caps or {}, strategy=strategy)
    return place(waiting, workers, now=NOW, rules=rules)


def held_after(workers: Sequence[EligibleWorker], decision: Placement) -> dict[UUID, int]:
    taken = Counter(worker_id for _, worker_id in decision.assignments)
    return {w.worker_id: w.feeds + taken[w.worker_id] for w in workers}


def test_ties_do_not_favour_any_worker() -> None:
    workers = [candidate(n + 1) for n in range(4)]
    firsts = Counter(
        decide([FeedToPlace(1)], [candidate(w.worker_id.int + 10 * i) for w in workers]).assignments[0][1].int
        - 10 * i
        for i in range(400)
    )
    assert min(firsts.values()) > 50
    assert len(firsts) == 4


# -- cold start --------------------------------------------------------------------------------------


def test_a_fleet_that_starts_cold_places_nothing_until_one_worker_has_settled() -> None:
    young = [candidate(1, up_s=1.9), candidate(2, up_s=0.0)]
    assert decide([FeedToPlace(1)], young) == Placement((), ((1, Reason.SETTLING),))
    settled = [candidate(1, up_s=2.0), candidate(2, up_s=0.0)]
    assert len(decide([FeedToPlace(1)], settled).assignments) == 1


# -- labels, tenants, caps ---------------------------------------------------------------------------


def in_order(feeds: Sequence[FeedToPlace]) -> list[FeedToPlace]:
    return sorted(feeds, key=lambda w: (-w.weight, w.tenant, w.feed_id))


@given(choosy_feeds(), fleets(labelled=True), caps)
def test_each_goes_to_the_best_worker_that_is_eligible_at_that_moment_and_waits_only_if_none_is(
    feeds: list[FeedToPlace], workers: list[EligibleWorker], tenant_caps: dict[str, int]
) -> None:
    """The whole promise of `balanced`, feed by feed: labels, caps and capacity are held; preferred workers come
    first; of these the least utilised; of equally utilised ones that with fewest of the tenant's."""
    decision = decide(feeds, workers, tenant_caps=tenant_caps)
    chosen, why = dict(decision.assignments), dict(decision.unplaced)
    said = [feed_id for feed_id, _ in (*decision.assignments, *decision.unplaced)]
    assert sorted(said) == sorted(feed.feed_id for feed in feeds), "each once"
    load = {w.worker_id: Fraction(w.load) for w in workers}
    count = {w.worker_id: w.feeds for w in workers}
    tenants = {w.worker_id: Counter(w.tenants) for w in workers}
    for feed in in_order(feeds):
        cap = tenant_caps.get(feed.tenant, tenant_caps.get("*")) if feed.tenant else None
        fitting = [w for w in workers if matches(w, feed.selector.required)]
        eligible = [
            w
            for w in fitting
            if count[w.worker_id] < w.capacity and (cap is None or tenants[w.worker_id][feed.tenant] < cap)
        ]
        preferred = [w for w in eligible if matches(w, feed.selector.preferred)]
        rank = {
            w.worker_id: (load[w.worker_id] / w.capacity, tenants[w.worker_id][feed.tenant])
            for w in preferred or eligible
        }
        if not rank:
            assert why[feed.feed_id] is (Reason.NO_CAPACITY if fitting or not workers else Reason.NO_MATCH)
            continue
        target = chosen[feed.feed_id]
        assert target in rank
        assert rank[target] == min(rank.values())
        load[target] += Fraction(feed.weight)
        count[target] += 1
        tenants[target][feed.tenant] += bool(feed.tenant)


@pytest.mark.parametrize("strategy", Strategy)
@given(choosy_feeds(), fleets(labelled=True), caps, st.integers())
def test_the_order_of_the_rows_does_not_matter(
    strategy: Strategy,
    feeds: list[FeedToPlace],
    workers: list[EligibleWorker],
    tenant_caps: dict[str, int],
    seed: int,
) -> None:
    rng = Random(seed)
    decision = decide(feeds, workers, tenant_caps=tenant_caps, strategy=strategy)
    rng.shuffle(feeds)
    rng.shuffle(workers)
    assert decide(feeds, workers, tenant_caps=tenant_caps, strategy=strategy) == decision


@given(choosy_feeds(), fleets(labelled=True), caps)
def test_pools_that_are_dropped_for_their_size_change_nothing(
    feeds: list[FeedToPlace], workers: list[EligibleWorker], tenant_caps: dict[str, int]
) -> None:
    decision = decide(feeds, workers, tenant_caps=tenant_caps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_loads, "POOL_ENTRIES_MAX", 3)
        assert decide(feeds, workers, tenant_caps=tenant_caps) == decision


@pytest.mark.parametrize("strategy", Strategy)
def test_a_match_that_is_full_is_a_lack_of_capacity_and_no_match_another_reason(strategy: Strategy) -> None:
    workers = [candidate(1, capacity=1, feeds=1, labels={"zone": "a"}), candidate(2)]
    full, nowhere = Selector(required={"zone": "a"}), Selector(required={"zone": "c"})
    decision = decide(
        [FeedToPlace(1, selector=full), FeedToPlace(2, selector=nowhere)], workers, strategy=strategy
    )
    assert decision.unplaced == ((1, Reason.NO_CAPACITY), (2, Reason.NO_MATCH))


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("weight", [5e-324, 1e-12, 1e12, 1.7e308])
def test_weights_at_their_ends_are_placed_evenly(weight: float, strategy: Strategy) -> None:
    workers = [candidate(1, capacity=5), candidate(2, capacity=5)]
    after = held_after(
        workers, decide([FeedToPlace(i, weight) for i in range(10)], workers, strategy=strategy)
    )
    assert set(after.values()) == {5}


# -- promises ----------------------------------------------------------------------------------------


@given(choosy_feeds(), fleets(), st.integers(1, 8))
def test_a_promised_feed_goes_where_it_was_promised_and_takes_no_room_there(
    feeds: list[FeedToPlace], workers: list[EligibleWorker], number: int
) -> None:
    assume(workers)
    target = workers[number % len(workers)]
    free = [replace(f, selector=Selector()) for f in feeds]
    promised = (
        replace(free[0], worker_id=target.worker_id) if free else FeedToPlace(1, worker_id=target.worker_id)
    )
    others = free[1:]
    decision = decide([promised, *others], workers)
    assert decision.assignments[0] == (promised.feed_id, target.worker_id)
    assert replace(decision, assignments=decision.assignments[1:]) == decide(others, workers)


def test_what_was_promised_to_a_worker_that_is_no_candidate_is_placed_like_any_other() -> None:
    feed = FeedToPlace(1, worker_id=UUID(int=9))
    assert decide([feed], [candidate(1)]).assignments == ((1, UUID(int=1)),)
    assert decide([feed], []).unplaced == ((1, Reason.NO_CAPACITY),)


def test_a_promise_to_a_worker_without_the_required_label_is_void_and_its_room_free_again() -> None:
    feed = FeedToPlace(1, selector=Selector(required={"zone": "a"}), worker_id=UUID(int=2))
    workers = [candidate(1, labels={"zone": "a"}), candidate(2, capacity=1, feeds=1)]
    decision = decide([feed, FeedToPlace(2), FeedToPlace(3)], workers)
    assert dict(decision.assignments)[1] == UUID(int=1)
    assert UUID(int=2) in [dict(decision.assignments)[n] for n in (2, 3)]


RULES = Rules(strategy=Strategy.RENDEZVOUS)


def decide_by_hash(
    waiting: Sequence[FeedToPlace],
    workers: Sequence[EligibleWorker],
) -> Placement:
    return place(waiting, workers, now=NOW, rules=RULES)


def fleet_of(size: int, *, capacity: int = 1000) -> list[EligibleWorker]:
    return [candidate(n + 1, capacity=capacity) for n in range(size)]


def homes(count: int, workers: Sequence[EligibleWorker]) -> dict[int, UUID]:
    return dict(decide_by_hash([FeedToPlace(i) for i in range(count)], workers).assignments)


@given(count=st.integers(0, 400), size=st.integers(1, 12))
def test_no_worker_is_above_the_bound(count: int, size: int) -> None:
    spread = Counter(homes(count, fleet_of(size)).values())
    assert max(spread.values(), default=0) <= (1 + EXCESS) * count / size + 1


@pytest.mark.parametrize("size", [3, 10, 100])
def test_a_worker_more_or_less_moves_few_feeds_but_its_own(size: int) -> None:
    count = 50 * size
    with_all, without = homes(count, fleet_of(size + 1)), homes(count, fleet_of(size))
    moved = sum(with_all[n] != without[n] for n in range(count))
    own = sum(worker.int == size + 1 for worker in with_all.values())
    assert own <= moved <= 2.5 * count / size, f"{moved} of {count} moved, {own} of them to the new one"


def test_a_feed_comes_back_to_the_worker_of_the_same_name() -> None:
    before = fleet_of(5)
    restarted = [replace(w, worker_id=UUID(int=w.worker_id.int + 1000)) for w in before]
    names = {w.worker_id: w.name for w in (*before, *restarted)}
    assert [names[w] for w in homes(200, before).values()] == [
        names[w] for w in homes(200, restarted).values()
    ]


def test_feeds_that_only_some_workers_may_have_follow_the_hash_among_those() -> None:
    workers = [replace(w, labels={"zone": "a"} if n < 3 else {}) for n, w in enumerate(fleet_of(30))]
    feeds = [FeedToPlace(i, selector=Selector(required={"zone": "a"})) for i in range(300)]
    where = dict(decide_by_hash(feeds, workers).assignments)
    alone = homes(300, workers[:3])
    assert sum(where[n] == alone[n] for n in range(300)) > 250


# -- rebalance ---------------------------------------------------------------------------------------


def settle(
    held: Sequence[FeedToPlace], workers: Sequence[EligibleWorker]
) -> tuple[tuple[Transfer, ...], list[FeedToPlace], list[EligibleWorker]]:
    fleet = running(workers, held, RULES)
    transfers = rebalance_fleet(fleet.held, fleet.workers, now=NOW, rules=RULES, moves=10**6).transfers()
    after = fleet.after(transfers)
    return transfers, after.held, after.workers


def placed(count: int, workers: Sequence[EligibleWorker]) -> list[FeedToPlace]:
    return [FeedToPlace(feed_id, worker_id=worker_id) for feed_id, worker_id in homes(count, workers).items()]


def test_a_newcomer_gets_the_feeds_that_favour_it_and_nobody_else_gets_any() -> None:
    held = placed(400, fleet_of(4))
    transfers, after, workers = settle(held, fleet_of(5))
    assert {t.target for t in transfers} == {UUID(int=5)}
    assert 40 <= len(transfers) <= 100
    wanted = homes(400, fleet_of(5))
    assert all(wanted[t.feed_id] == t.target for t in transfers)
    assert settle(after, workers)[0] == ()


def test_a_worker_above_the_bound_gives_what_is_above_it() -> None:
    held = [FeedToPlace(n, worker_id=UUID(int=1 + (n % 4 if n > 150 else 0))) for n in range(400)]
    fleet = running(fleet_of(4), held, RULES)
    assert donors(fleet.workers, now=NOW, rules=RULES) == (UUID(int=1),)
    transfers, _, workers = settle(held, fleet_of(4))
    assert len(transfers) == fleet.workers[0].feeds - 126
    assert {t.source for t in transfers} == {UUID(int=1)}
    assert max(w.feeds for w in workers) == 126, "1.25 x 100, and one"
