"""A worker that runs jobs only is no part of the fleet that feeds are spread over."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from feedq.control import reconcile as control
from feedq.core.model import FeedSpec, NewWorker, Worker, WorkerTarget
from feedq.core.placement.base import EligibleWorker, Rules, Strategy, WaitingFeed
from feedq.core.placement.placing import place
from feedq.core.placement.rebalancing import donors, rebalance
from feedq.settings import Settings
from feedq.verbs.diagnosis.fleet_checks import overview
from feedq.verbs.diagnosis.placement_checks import serves
from tests.fakes import ManualClock, MemoryStore

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SETTINGS = Settings.model_construct(settle_s=0.0)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(ManualClock())
    made.clock.advance(60)
    return made


def add_worker(store: MemoryStore, name: str, capacity: int) -> Worker:
    new = NewWorker(uuid4(), name, f"node.{name}", capacity, "host", 1, "0", job_slots=4)
    return store.workers.register(new, ttl_s=SETTINGS.ttl_s)


def reconcile(store: MemoryStore) -> control.PassReport:
    report = control.reconcile(store, lambda _: None, SETTINGS, passes=10)
    assert report is not None
    return report


def test_feeds_are_placed_on_the_others(store: MemoryStore) -> None:
    add_worker(store, "jobs", 0)
    taker = add_worker(store, "feeds", 10)
    for n in range(6):
        store.feeds.add(FeedSpec(f"f{n}", "tcp", {}, {"table": "t"}))
    assert {a.worker_id for a in reconcile(store).assignments} == {taker.id}
    assert reconcile(store).moves == 0
    told = store.workers.heartbeat(taker.id, taker.load, ttl_s=6)
    assert told is not None
    assert told.active_workers == 1


def test_the_numbers_of_the_fleet_leave_it_out(store: MemoryStore) -> None:
    add_worker(store, "jobs", 0)
    for n in range(2):
        add_worker(store, f"feeds-{n}", 10)
    views = store.workers.views()
    numbers = overview([], views)
    assert (numbers.active, numbers.serving, numbers.capacity, numbers.spread) == (3, 2, 20, (0, 0))
    assert [serves(view) for view in views] == [True, True, False]


def test_with_jobs_workers_alone_there_is_no_place_and_no_division_by_zero(store: MemoryStore) -> None:
    worker = add_worker(store, "jobs", 0)
    store.feeds.add(FeedSpec("f", "tcp", {}, {"table": "t"}))
    assert list(reconcile(store).unplaced.values()) == [1]
    numbers = overview(store.feeds.views(), store.workers.views())
    assert (numbers.serving, numbers.utilisation, numbers.lacking) == (0, None, 1)
    store.workers.set_target(worker.id, WorkerTarget.DRAINED)
    reconcile(store)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_pure_policies_bear_one_all_the_same(strategy: Strategy) -> None:
    workers = [
        EligibleWorker(UUID(int=n), f"w{n}", f"q{n}", capacity, feeds, float(feeds), NOW, {}, {})
        for n, (capacity, feeds) in enumerate([(0, 0), (10, 9), (10, 0)])
    ]
    rules = Rules(strategy=strategy, settle_s=0.0)
    decision = place([WaitingFeed(n) for n in range(5)], workers, now=NOW, rules=rules)
    assert not decision.unplaced
    assert UUID(int=0) not in {worker_id for _, worker_id in decision.assignments}
    donors(workers, now=NOW, rules=rules)
    assert not rebalance([], workers, now=NOW, rules=rules, moves=10).transfers()


def test_who_has_no_slots_owns_no_segment() -> None:
    from feedq.worker.jobs.ticker import Share

    me = UUID(int=1)
    share = Share.of({me: 0, UUID(int=2): 4}, me)
    assert share.mine == ()
    assert len(share.owners) == 256
