"""Rebalance: what holds of every answer, whatever the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import Selector
from feedq.core.placement.base import (
    Avoided,
    EligibleWorker,
    FeedToPlace,
    Rules,
    Strategy,
    Transfer,
    is_settled,
)
from feedq.core.placement.placing import place
from feedq.core.placement.rebalancing import donors, rebalance
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
    uniform,
)

UNLIMITED = 1_000_000

any_fleet = st.one_of(running_fleets(), running_fleets(strategy=Strategy.RENDEZVOUS))
counts = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def moves_of(fleet: Running, *, moves: int = UNLIMITED) -> tuple[Transfer, ...]:
    return rebalance(fleet.held, fleet.workers, now=NOW, rules=fleet.rules, moves=moves).transfers()


def donors_of(fleet: Running) -> tuple[UUID, ...]:
    return donors(fleet.workers, now=NOW, rules=fleet.rules)


def preference(worker: EligibleWorker, selector: Selector) -> bool:
    return matches(worker, selector.preferred)


# -- no answer does harm -----------------------------------------------------------------------------


@given(any_fleet, st.integers(0, 12))
def test_no_move_breaks_capacity_labels_caps_or_a_preference_or_reaches_a_young_worker(
    fleet: Running, limit: int
) -> None:
    transfers = moves_of(fleet, moves=limit)
    assert len(transfers) <= limit
    assert len({t.feed_id for t in transfers}) == len(transfers)
    worker = {w.worker_id: w for w in fleet.workers}
    feed = {h.feed_id: h for h in fleet.held}
    for move in transfers:
        moved, target = feed[move.feed_id], worker[move.target]
        assert move.source == moved.worker_id != move.target
        assert matches(target, moved.selector.required)
        assert is_settled(target, now=NOW, settle_s=SETTLE_S)
        source = worker.get(move.source)
        if source is not None and matches(source, moved.selector.required):
            assert preference(target, moved.selector) >= preference(source, moved.selector)
    receivers = {t.target for t in transfers}
    for after in fleet.after(transfers).workers:
        if after.worker_id in receivers:
            assert after.feeds <= max(after.capacity, worker[after.worker_id].feeds)
        for tenant, count in after.tenants.items():
            cap = fleet.rules.cap_of(tenant)
            assert cap is None or count <= max(cap, worker[after.worker_id].tenants.get(tenant, 0))


@given(any_fleet)
def test_the_order_of_the_workers_does_not_matter(fleet: Running) -> None:
    shuffled = list(fleet.workers)
    Random(1).shuffle(shuffled)
    moved = rebalance(fleet.held, shuffled, now=NOW, rules=fleet.rules, moves=UNLIMITED)
    assert moved.transfers() == moves_of(fleet)


@given(running_fleets())
def test_what_is_even_is_left_alone_so_nothing_goes_to_and_fro(fleet: Running) -> None:
    after = fleet.after(moves_of(fleet))
    assert moves_of(after) == ()


@given(any_fleet)
def test_it_moves_nothing_where_the_counters_name_no_donor(fleet: Running) -> None:
    remaining = replace(fleet, held=[h for h in fleet.held if h not in fleet.stranded])
    if not donors_of(remaining):
        assert moves_of(remaining) == ()


# -- and it does all the good that it can ---------------------------------------------------------


def improving_moves(fleet: Running) -> list[tuple[int, UUID]]:
    """Single moves that the rules would call an improvement; weights are compared exactly."""
    alike = len({h.weight for h in fleet.held}) <= 1
    load = {w.worker_id: Fraction(w.feeds if alike else w.load) for w in fleet.workers}
    worker: dict[UUID | None, EligibleWorker] = {w.worker_id: w for w in fleet.workers}
    mean = sum(load.values()) / max(sum(w.capacity for w in fleet.workers), 1)
    # Half a rounding error more than the code allows itself: it adds up floats.
    slack = (
        0 if alike else max(Fraction(fleet.rules.band), Fraction(1, 10**8)) * mean * Fraction(100001, 100000)
    )
    found = []
    for h in fleet.held:
        source = worker[h.worker_id]
        for target in fleet.workers:
            cap = fleet.rules.cap_of(h.tenant)
            allowed = (
                target is not source
                and target.feeds < target.capacity
                and is_settled(target, now=NOW, settle_s=SETTLE_S)
                and matches(target, h.selector.required)
                and (cap is None or target.tenants.get(h.tenant, 0) < cap)
                and (
                    preference(target, h.selector) >= preference(source, h.selector)
                    or not matches(source, h.selector.required)
                )
            )
            weight = Fraction(1 if alike else h.weight)
            after = (load[target.worker_id] + weight) / target.capacity if target.capacity else None
            if allowed and after is not None and (load[source.worker_id] > (after + slack) * source.capacity):
                found.append((h.feed_id, target.worker_id))
    return found


@given(running_fleets())
def test_afterwards_no_single_move_would_improve_anything(fleet: Running) -> None:
    fleet = running(fleet.workers, [h for h in fleet.held if h not in fleet.stranded], fleet.rules)
    after = fleet.after(moves_of(fleet))
    assert donors_of(after) == () or improving_moves(after) == []


@given(counts, st.sampled_from((1.0, 0.1, 7.0)))
def test_equal_feeds_on_equal_workers_end_within_one_after_the_fewest_moves(
    feeds: list[int], weight: float
) -> None:
    fleet = uniform(feeds, weight=weight)
    transfers = moves_of(fleet)
    after = fleet.after(transfers).feeds()
    assert max(after) - min(after) <= 1
    low, extra = divmod(sum(feeds), len(feeds))
    high = low + bool(extra)
    least = max(sum(max(n - high, 0) for n in feeds), sum(max(low - n, 0) for n in feeds))
    assert len(transfers) == least


@given(counts, st.integers(0, 30))
def test_the_most_useful_moves_come_first_and_from_all_donors_at_once(feeds: list[int], limit: int) -> None:
    """After any number of moves the fullest is as low as that number can make it."""
    fleet = uniform(feeds)
    transfers = moves_of(fleet, moves=limit)
    level = list(feeds)
    for _ in transfers:
        level[level.index(max(level))] -= 1
    after = fleet.after(transfers).feeds()
    assert max(after) == max(max(level), max(after[n] for n in range(len(after)) if after[n] >= feeds[n]))
    given_away = Counter(t.source for t in transfers)
    top = [given_away[w.worker_id] for w, n in zip(fleet.workers, feeds, strict=True) if n == max(feeds)]
    assert max(top) - min(top) <= 1


def test_a_feed_that_comes_back_while_it_is_decided_is_not_moved() -> None:
    """On paper 2 goes to the small worker, and back when 3 has left."""
    workers = [candidate(1, capacity=9), candidate(2, capacity=2), candidate(3, capacity=3)]
    fleet = running(
        workers,
        [
            FeedToPlace(2, worker_id=UUID(int=3)),
            FeedToPlace(1, worker_id=UUID(int=1)),
            FeedToPlace(3, worker_id=UUID(int=3)),
        ],
    )
    assert moves_of(fleet) == (Transfer(3, UUID(int=3), UUID(int=1)),)


# -- weights and the band ----------------------------------------------------------------------------


def weighted(*loads: Sequence[float], band: float = 0.1) -> Running:
    workers = [candidate(n + 1, capacity=10) for n in range(len(loads))]
    held = [
        FeedToPlace(100 * n + i, weight, worker_id=UUID(int=n + 1))
        for n, own in enumerate(loads)
        for i, weight in enumerate(own)
    ]
    return running(workers, held, Rules(settle_s=SETTLE_S, band=band))


def test_within_the_band_nothing_moves() -> None:
    assert moves_of(weighted([5, 3, 1], [4, 4], band=0.0)) == ()
    uneven = weighted([6, 3, 1], [4, 4])
    assert moves_of(replace(uneven, rules=replace(uneven.rules, band=0.2))) == ()
    assert len(moves_of(replace(uneven, rules=replace(uneven.rules, band=0.05)))) == 1


# -- leaving -----------------------------------------------------------------------------------------


@given(counts, st.integers(0, 60), st.integers(1, 60))
def test_a_worker_is_left_by_all_when_there_is_room_and_else_by_as_many_as_there_is(
    feeds: list[int], leaving: int, capacity: int
) -> None:
    fleet = uniform([min(n, capacity) for n in feeds], capacity=capacity)
    stranded = [FeedToPlace(10**6 + i, worker_id=UUID(int=77)) for i in range(leaving)]
    fleet = replace(fleet, held=[*stranded, *fleet.held])
    room = sum(w.capacity - w.feeds for w in fleet.workers)
    left = [t for t in moves_of(fleet) if t.source == UUID(int=77)]
    assert len(left) == min(leaving, room)


def test_those_that_leave_go_where_place_would_put_them() -> None:
    workers = [candidate(1, feeds=2), candidate(2, feeds=1, labels={"zone": "a"}), candidate(3)]
    held = [
        FeedToPlace(n, worker_id=UUID(int=77), tenant="acme", selector=Selector(preferred={"zone": "a"}))
        for n in range(4)
    ]
    rules = Rules(settle_s=SETTLE_S, tenant_caps={"acme": 3})
    as_new = [FeedToPlace(h.feed_id, tenant=h.tenant, selector=h.selector) for h in held]
    placed = place(as_new, workers, now=NOW, rules=rules)
    moved = rebalance(held, workers, now=NOW, rules=rules, moves=UNLIMITED).transfers()
    assert tuple((t.feed_id, t.target) for t in moved) == placed.assignments


def test_leaving_comes_before_rebalancing_and_uses_the_limit_up() -> None:
    fleet = uniform([10, 0])
    fleet = replace(
        fleet, held=[*fleet.held, *(FeedToPlace(900 + i, worker_id=UUID(int=77)) for i in range(3))]
    )
    assert {t.source for t in moves_of(fleet, moves=3)} == {UUID(int=77)}


def test_rebalancing_makes_room_for_one_that_could_not_leave() -> None:
    workers = [candidate(1, capacity=2, labels={"zone": "a"}), candidate(2, capacity=2)]
    held = [
        FeedToPlace(1, worker_id=UUID(int=77), selector=Selector(required={"zone": "a"})),
        FeedToPlace(2, worker_id=UUID(int=1)),
        FeedToPlace(3, worker_id=UUID(int=1)),
    ]
    transfers = moves_of(running(workers, held))
    assert {(t.feed_id, t.target.int) for t in transfers} == {(2, 2), (1, 1)}


# -- donors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [([], ()), ([5], ()), ([5, 5], ()), ([5, 4], ()), ([5, 4, 3], (1,)), ([5, 5, 0], (1, 2)), ([0, 0], ())],
)
def test_donors_are_those_above_another_by_more_than_one(feeds: list[int], expected: tuple[int, ...]) -> None:
    assert tuple(d.int for d in donors_of(uniform(feeds))) == expected
    assert tuple(d.int for d in donors_of(uniform(feeds, weight=0.1))) == expected


def test_a_small_worker_that_one_feed_would_fill_hides_no_better_one() -> None:
    workers = [candidate(1, feeds=20), candidate(2, capacity=1), candidate(3, feeds=10)]
    assert donors(workers, now=NOW, rules=Rules()) == (UUID(int=1),)
    held = [FeedToPlace(n, worker_id=UUID(int=1)) for n in range(20)]
    moved = rebalance(held, workers, now=NOW, rules=Rules(), moves=UNLIMITED).transfers()
    assert [t.target.int for t in moved] == [3] * 5


@pytest.mark.parametrize(
    ("together", "under_way", "moved"),
    [
        (None, {}, 4),
        (2, {}, 4),
        (1, {}, 2),
        (2, {UUID(int=2): 1, UUID(int=3): 1}, 2),
        (2, {UUID(int=2): 2, UUID(int=3): 2}, 0),
    ],
)
def test_moves_end_where_one_leads_to_a_worker_that_has_enough_under_way(
    together: int | None, under_way: dict[UUID, int], moved: int
) -> None:
    fleet = uniform([6, 0, 0])
    moves = rebalance(
        fleet.held,
        fleet.workers,
        now=NOW,
        rules=fleet.rules,
        moves=UNLIMITED,
        under_way=under_way,
        together=together,
    )
    assert len(moves.transfers()) == moved
    assert moves.transfers() == moves_of(fleet)[:moved]
    assert (moves.left <= 0) == (moved < 4)


# -- feeds that failed somewhere, sinks that are down, and workers that lag --------------------------

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
def troubled_feeds(draw: st.DrawFn) -> list[FeedToPlace]:
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


def may_have(worker: EligibleWorker, feed: FeedToPlace, workers: Iterable[EligibleWorker]) -> bool:
    """Whether the labels fit and the sink can be written to, or by nobody whose labels fit."""
    fitting = [w for w in workers if matches(w, feed.selector.required)]
    able = [w for w in fitting if feed.sink not in w.sinks_down]
    return worker in (able or fitting)


def room_after(
    worker: EligibleWorker,
    feed: FeedToPlace,
    queue: Sequence[FeedToPlace],
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
    feeds: list[FeedToPlace], workers: list[EligibleWorker], tenant_caps: dict[str, int], strategy: Strategy
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
        decision = place([FeedToPlace(7, avoid=failed(*order))], workers, now=NOW, rules=rules)
        oldest = next(name for name in order if name != "w9")
        assert decision.assignments == ((7, UUID(int=int(oldest[1:]))),)


def test_a_promise_is_not_kept_where_the_sink_is_down() -> None:
    cut_off = replace(candidate(2, feeds=1), sinks_down=frozenset({"reports"}))
    promised = FeedToPlace(1, sink="reports", worker_id=cut_off.worker_id)
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
    held = [FeedToPlace(n, worker_id=UUID(int=2), avoid=failed("w1", ago_s=ago_s + n)) for n in range(10)]
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
    found = moved(running(fleet.workers, [*held, FeedToPlace(9, worker_id=UUID(int=1))]))
    assert len(found) == 4
    assert 0 not in found


def test_too_many_different_sets_of_avoided_workers_cost_moves_and_no_time() -> None:
    """Each set has a pool of its own, of which there are only so many."""
    workers = [candidate(n) for n in range(1, 41)]
    held = [
        FeedToPlace(n, worker_id=UUID(int=1), avoid=failed(*sorted({f"w{2 + n % 37}", f"w{3 + n * 7 % 37}"})))
        for n in range(1000)
    ]
    fleet = running([replace(w, capacity=2000) for w in workers], held)
    transfers = rebalance(fleet.held, fleet.workers, now=NOW, rules=fleet.rules, moves=1000).transfers()
    assert len(transfers) > 200
    feeds = {feed.feed_id: feed for feed in held}
    for one in transfers:
        assert f"w{one.target.int}" not in dict(feeds[one.feed_id].avoid)
