"""Placement: pure, so its promises are properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from random import Random
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feedq.model import Reason
from feedq.placement import Candidate, Placement, Waiting, is_cold, place

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0


def candidate(
    number: int, *, capacity: int = 100, feeds: int = 0, load: float | None = None, up_s: float = DAY_S
) -> Candidate:
    started_at = NOW - timedelta(seconds=up_s)
    held = float(feeds) if load is None else load
    return Candidate(UUID(int=number), f"node.{number}", capacity, feeds, held, started_at)


def decide(waiting: Sequence[Waiting], workers: Sequence[Candidate], *, settle_s: float = 2.0) -> Placement:
    return place(waiting, workers, now=NOW, settle_s=settle_s)


weights = st.one_of(st.integers(1, 50).map(float), st.floats(1e-6, 1e6))


@st.composite
def waiting_feeds(draw: st.DrawFn, weight: st.SearchStrategy[float] = weights) -> list[Waiting]:
    ids = draw(st.lists(st.integers(1, 10_000), unique=True, max_size=60))
    return [Waiting(feed_id, draw(weight)) for feed_id in ids]


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    fleet = []
    for number in range(draw(st.integers(0, 8))):
        capacity = draw(st.integers(0, 30))
        feeds = draw(st.integers(0, capacity + 3))
        load = feeds * draw(weights)
        fleet.append(candidate(number + 1, capacity=capacity, feeds=feeds, load=load))
    return fleet


def held_after(workers: Sequence[Candidate], decision: Placement) -> dict[UUID, int]:
    taken = Counter(worker_id for _, worker_id in decision.assignments)
    return {w.worker_id: w.feeds + taken[w.worker_id] for w in workers}


@given(waiting_feeds(), fleets())
def test_every_feed_is_placed_once_or_told_why_not(feeds: list[Waiting], workers: list[Candidate]) -> None:
    decision = decide(feeds, workers)
    said = [f for f, _ in decision.assignments] + [f for f, _ in decision.unplaced]
    assert Counter(said) == Counter(w.feed_id for w in feeds)


@given(waiting_feeds(), fleets())
def test_no_worker_is_given_more_than_it_holds(feeds: list[Waiting], workers: list[Candidate]) -> None:
    after = held_after(workers, decide(feeds, workers))
    for w in workers:
        assert after[w.worker_id] <= max(w.capacity, w.feeds)


@given(waiting_feeds(), fleets())
def test_everything_is_placed_as_long_as_there_is_room(
    feeds: list[Waiting], workers: list[Candidate]
) -> None:
    room = sum(max(w.capacity - w.feeds, 0) for w in workers)
    decision = decide(feeds, workers)
    assert len(decision.assignments) == min(len(feeds), room)
    assert all(why is Reason.NO_CAPACITY for _, why in decision.unplaced)


@given(waiting_feeds(), fleets(), st.integers())
def test_the_order_of_the_rows_does_not_matter(
    feeds: list[Waiting], workers: list[Candidate], seed: int
) -> None:
    rng = Random(seed)
    decision = decide(feeds, workers)
    rng.shuffle(feeds)
    rng.shuffle(workers)
    assert decide(feeds, workers) == decision


@given(waiting_feeds(), fleets())
def test_the_heaviest_goes_first(feeds: list[Waiting], workers: list[Candidate]) -> None:
    weight = {w.feed_id: w.weight for w in feeds}
    decision = decide(feeds, workers)
    placed = [weight[feed_id] for feed_id, _ in decision.assignments]
    assert placed == sorted(placed, reverse=True)
    left = [weight[feed_id] for feed_id, _ in decision.unplaced]
    assert not (placed and left) or min(placed) >= max(left)


@given(waiting_feeds(st.integers(1, 50).map(float)), fleets())
def test_each_goes_to_a_worker_that_was_least_utilised_at_that_moment(
    feeds: list[Waiting], workers: list[Candidate]
) -> None:
    assume(all(w.load == int(w.load) for w in workers))
    weight = {w.feed_id: w.weight for w in feeds}
    load = {w.worker_id: Fraction(w.load) for w in workers}
    held = {w.worker_id: w.feeds for w in workers}
    capacity = {w.worker_id: w.capacity for w in workers}
    for feed_id, chosen in decide(feeds, workers).assignments:
        open_to_it = [w for w in held if held[w] < capacity[w]]
        assert load[chosen] / capacity[chosen] == min(load[w] / capacity[w] for w in open_to_it)
        load[chosen] += Fraction(weight[feed_id])
        held[chosen] += 1


@given(
    count=st.integers(0, 300),
    workers=st.integers(1, 12),
    weight=weights,
    held=st.integers(0, 20),
)
def test_equal_feeds_on_equal_workers_end_within_one_of_each_other(
    count: int, workers: int, weight: float, held: int
) -> None:
    fleet = [candidate(n + 1, capacity=1000, feeds=held, load=held * weight) for n in range(workers)]
    after = held_after(fleet, decide([Waiting(i, weight) for i in range(count)], fleet)).values()
    assert max(after) - min(after) <= 1


@given(count=st.integers(0, 200), newcomers=st.integers(1, 5), old=st.integers(1, 5), held=st.integers(0, 40))
def test_newcomers_are_filled_up_before_the_others_get_more(
    count: int, newcomers: int, old: int, held: int
) -> None:
    fleet = [candidate(n + 1, capacity=1000, feeds=held) for n in range(old)]
    fleet += [candidate(n + 100, capacity=1000) for n in range(newcomers)]
    after = held_after(fleet, decide([Waiting(i) for i in range(count)], fleet))
    if any(after[w.worker_id] > held for w in fleet[:old]):
        assert max(after.values()) - min(after.values()) <= 1


def test_a_worker_twice_as_large_gets_twice_as_much() -> None:
    fleet = [candidate(1, capacity=100), candidate(2, capacity=200)]
    after = held_after(fleet, decide([Waiting(i) for i in range(90)], fleet))
    assert (after[UUID(int=1)], after[UUID(int=2)]) == (30, 60)


def test_weight_counts_and_not_only_number() -> None:
    fleet = [candidate(1), candidate(2)]
    feeds = [Waiting(1, 10.0), *(Waiting(i, 1.0) for i in range(2, 12))]
    decision = decide(feeds, fleet)
    heavy = dict(decision.assignments)[1]
    assert Counter(w for _, w in decision.assignments)[heavy] == 1, "ten light ones weigh as much"


def test_ties_do_not_favour_any_worker() -> None:
    fleet = [candidate(n + 1) for n in range(4)]
    firsts = Counter(
        decide([Waiting(1)], [candidate(w.worker_id.int + 10 * i) for w in fleet]).assignments[0][1].int
        - 10 * i
        for i in range(400)
    )
    assert min(firsts.values()) > 50
    assert len(firsts) == 4


def test_nothing_waits_and_nothing_is_decided() -> None:
    assert decide([], [candidate(1)]) == Placement((), ())


@pytest.mark.parametrize("fleet", [[], [candidate(1, capacity=0)], [candidate(1, capacity=2, feeds=2)]])
def test_without_any_room_everything_waits_for_capacity(fleet: list[Candidate]) -> None:
    assert decide([Waiting(1), Waiting(2)], fleet) == Placement(
        (), ((1, Reason.NO_CAPACITY), (2, Reason.NO_CAPACITY))
    )


# -- cold start --------------------------------------------------------------------------------------


def test_a_fleet_that_starts_cold_places_nothing_until_one_worker_has_settled() -> None:
    young = [candidate(1, up_s=1.9), candidate(2, up_s=0.0)]
    assert decide([Waiting(1)], young) == Placement((), ((1, Reason.SETTLING),))
    settled = [candidate(1, up_s=2.0), candidate(2, up_s=0.0)]
    assert len(decide([Waiting(1)], settled).assignments) == 1


def test_a_settled_fleet_uses_a_newcomer_at_once() -> None:
    fleet = [candidate(1, feeds=50), candidate(2, up_s=0.0)]
    assert decide([Waiting(1)], fleet).assignments == ((1, UUID(int=2)),)


@pytest.mark.parametrize(
    ("up_s", "settle_s", "cold"),
    [(0.0, 0.0, False), (DAY_S - 1, DAY_S, True), (DAY_S, DAY_S, False), (-1.0, 0.0, True)],
)
def test_the_settle_time_at_its_ends(up_s: float, settle_s: float, cold: bool) -> None:
    assert is_cold([candidate(1, up_s=up_s)], now=NOW, settle_s=settle_s) is cold


def test_no_worker_at_all_is_a_lack_of_capacity_and_not_of_patience() -> None:
    assert decide([Waiting(1)], [], settle_s=DAY_S).unplaced == ((1, Reason.NO_CAPACITY),)
