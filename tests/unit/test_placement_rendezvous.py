"""The strategy `rendezvous`: a feed's place depends on names, not on who came first; within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import Selector
from feedq.core.placement.base import EligibleWorker, Held, Placement, Rules, Strategy, Transfer, WaitingFeed
from feedq.core.placement.placing import place
from feedq.core.placement.rebalancing import donors
from feedq.core.placement.rebalancing import rebalance as rebalance_fleet
from feedq.core.placement.rendezvous import EXCESS
from tests.unit.placing import NOW, candidate, running

RULES = Rules(strategy=Strategy.RENDEZVOUS)


def decide(
    waiting: Sequence[WaitingFeed],
    workers: Sequence[EligibleWorker],
    tenant_caps: dict[str, int] | None = None,
) -> Placement:
    rules = replace(RULES, tenant_caps=tenant_caps or {})
    return place(waiting, workers, now=NOW, rules=rules)


def fleet_of(size: int, *, capacity: int = 1000) -> list[EligibleWorker]:
    return [candidate(n + 1, capacity=capacity) for n in range(size)]


def homes(count: int, workers: Sequence[EligibleWorker]) -> dict[int, UUID]:
    return dict(decide([WaitingFeed(i) for i in range(count)], workers).assignments)


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
    feeds = [WaitingFeed(i, selector=Selector(required={"zone": "a"})) for i in range(300)]
    where = dict(decide(feeds, workers).assignments)
    alone = homes(300, workers[:3])
    assert sum(where[n] == alone[n] for n in range(300)) > 250


# -- rebalance ---------------------------------------------------------------------------------------


def settle(
    held: Sequence[Held], workers: Sequence[EligibleWorker], *, moves: int = 10**6
) -> tuple[tuple[Transfer, ...], list[Held], list[EligibleWorker]]:
    fleet = running(workers, held, RULES)
    transfers = rebalance_fleet(fleet.held, fleet.workers, now=NOW, rules=RULES, moves=moves).transfers()
    after = fleet.after(transfers)
    return transfers, after.held, after.workers


def placed(count: int, workers: Sequence[EligibleWorker]) -> list[Held]:
    return [Held(feed_id, worker_id) for feed_id, worker_id in homes(count, workers).items()]


def test_a_newcomer_gets_the_feeds_that_favour_it_and_nobody_else_gets_any() -> None:
    held = placed(400, fleet_of(4))
    transfers, after, workers = settle(held, fleet_of(5))
    assert {t.target for t in transfers} == {UUID(int=5)}
    assert 40 <= len(transfers) <= 100
    wanted = homes(400, fleet_of(5))
    assert all(wanted[t.feed_id] == t.target for t in transfers)
    assert settle(after, workers)[0] == ()


def test_a_worker_above_the_bound_gives_what_is_above_it() -> None:
    held = [Held(n, UUID(int=1 + (n % 4 if n > 150 else 0))) for n in range(400)]
    fleet = running(fleet_of(4), held, RULES)
    assert donors(fleet.workers, now=NOW, rules=RULES) == (UUID(int=1),)
    transfers, _, workers = settle(held, fleet_of(4))
    assert len(transfers) == fleet.workers[0].feeds - 126
    assert {t.source for t in transfers} == {UUID(int=1)}
    assert max(w.feeds for w in workers) == 126, "1.25 x 100, and one"
