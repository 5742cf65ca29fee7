"""A worker that runs jobs only is no part of the fleet that feeds are spread over."""

from __future__ import annotations

from uuid import uuid4

import pytest

from feedq.control import reconcile as control
from feedq.core.model import FeedSpec, NewWorker, Worker, WorkerTarget
from feedq.settings import Settings
from feedq.verbs.diagnosis.fleet_checks import summary
from tests.fakes import ManualClock, MemoryStore
from tests.fakes.memory.listing import tallies_of

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


def test_with_jobs_workers_alone_there_is_no_place_and_no_division_by_zero(store: MemoryStore) -> None:
    worker = add_worker(store, "jobs", 0)
    store.feeds.add(FeedSpec(name="f", connector="tcp", source={}, sink={"table": "t"}))
    assert list(reconcile(store).unplaced.values()) == [1]
    numbers = summary(tallies_of(store.feeds.views()), store.workers.views())
    assert (numbers.serving, numbers.utilisation, numbers.lacking) == (0, None, 1)
    store.workers.set_target(worker.id, WorkerTarget.DRAINED)
    reconcile(store)
