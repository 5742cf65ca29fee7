"""A worker that is alive for the database and deaf for the broker must not keep feeds from running."""

from __future__ import annotations

import pytest

from feedq.core.limits import DISPATCH_TIMEOUT_S
from feedq.core.model import Load
from feedq.settings import Settings
from tests.fakes import ManualClock, MemoryStore
from tests.unit.test_control import add_feeds, add_worker, run

SETTINGS = Settings.model_construct(settle_s=2.0)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(ManualClock())
    made.clock.advance(60)
    return made


def test_a_feed_that_a_deaf_worker_never_claims_goes_to_another(store: MemoryStore) -> None:
    deaf, other = add_worker(store, "deaf"), add_worker(store, "other")
    # The other is full of feeds by now, the deaf one holds none: it looks like the best place of all.
    for given in run(store)[1]:
        store.leases.claim(given.worker_id, [given.key])
    add_feeds(store, 4)
    _, sent = run(store)
    mine = [given for given in sent if given.worker_id == deaf.id]
    assert mine
    store.leases.claim(other.id, [given.key for given in sent if given.worker_id == other.id])

    store.clock.advance(DISPATCH_TIMEOUT_S)
    for worker in (deaf, other):
        store.workers.heartbeat(worker.id, Load(), ttl_s=SETTINGS.ttl_s)
    report, again = run(store, SETTINGS)
    assert report.overdue == len(mine)
    assert {given.worker_id for given in again} == {other.id}
    assert {given.feed_id for given in again} == {given.feed_id for given in mine}


def test_when_nobody_else_has_room_the_silent_worker_is_asked_again(store: MemoryStore) -> None:
    deaf, full = add_worker(store, "deaf"), add_worker(store, "full", capacity=1)
    add_feeds(store, 4)
    _, sent = run(store)
    store.leases.claim(full.id, [given.key for given in sent if given.worker_id == full.id])
    store.clock.advance(DISPATCH_TIMEOUT_S)
    for worker in (deaf, full):
        store.workers.heartbeat(worker.id, Load(), ttl_s=SETTINGS.ttl_s)
    report, again = run(store, SETTINGS)
    assert report.overdue == 3
    assert {given.worker_id for given in again} == {deaf.id}


def test_when_the_broker_is_silent_for_all_every_worker_is_asked_again(store: MemoryStore) -> None:
    workers = [add_worker(store, name) for name in ("a", "b")]
    add_feeds(store, 4)
    run(store)
    store.clock.advance(DISPATCH_TIMEOUT_S)
    for worker in workers:
        store.workers.heartbeat(worker.id, Load(), ttl_s=SETTINGS.ttl_s)
    report, again = run(store, SETTINGS)
    assert report.overdue == 4
    assert {given.worker_id for given in again} == {worker.id for worker in workers}
