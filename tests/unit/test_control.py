"""The control plane over a database in memory: one pass is one decision, and messages leave after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import pytest

from feedq import control
from feedq.control import drain_worker, find_worker, reconcile
from feedq.errors import InvalidInput, NotFound, Unavailable
from feedq.model import (
    Assignment,
    FeedSpec,
    LeaseState,
    NewWorker,
    Reason,
    Release,
    TargetState,
    Worker,
    WorkerState,
)
from feedq.settings import Settings
from feedq.telemetry import FEEDS_UNPLACED
from feedq.testing import ManualClock, MemoryStore

SETTINGS = Settings.model_construct(settle_s=0.0)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(ManualClock())
    made.clock.advance(60)  # the quiet period after the start is over
    return made


def add_worker(
    store: MemoryStore, name: str = "a", *, capacity: int = 10, number: int | None = None
) -> Worker:
    worker_id = uuid4() if number is None else UUID(int=number)
    new = NewWorker(worker_id, name, f"node.{name}", capacity, "host", 1, "0")
    return store.workers.register(new, ttl_s=SETTINGS.ttl_s)


def add_feeds(store: MemoryStore, count: int) -> list[int]:
    return [store.feeds.add(FeedSpec(f"f{i}", "tcp", {}, {"table": "t"})).id for i in range(count)]


def run(store: MemoryStore, settings: Settings = SETTINGS) -> tuple[control.PassReport, list[Assignment]]:
    sent: list[Assignment] = []
    report = reconcile(store, sent.extend, settings)
    assert report is not None
    return report, sent


def test_a_pass_places_what_waits_and_sends_one_message_each(store: MemoryStore) -> None:
    worker = add_worker(store)
    ids = add_feeds(store, 3)
    report, sent = run(store)
    assert [a.key for a in sent] == [(feed_id, 1) for feed_id in ids]
    assert {a.queue for a in sent} == {worker.queue}
    assert (report.edits, len(report.assignments), report.did_something) == (3, 3, True)


def test_a_second_pass_finds_nothing_to_do(store: MemoryStore) -> None:
    add_worker(store)
    add_feeds(store, 3)
    run(store)
    report, sent = run(store)
    assert not report.did_something
    assert sent == []


def test_no_message_leaves_before_the_commit(store: MemoryStore) -> None:
    add_worker(store)
    add_feeds(store, 1)
    seen: list[LeaseState] = []

    def look(assignments: Sequence[Assignment]) -> None:
        assert not store.database.pass_open
        seen.extend(v.lease.state for v in store.feeds.views())

    reconcile(store, look, SETTINGS)
    assert seen == [LeaseState.ASSIGNED]


def test_no_message_leaves_when_the_commit_fails(store: MemoryStore) -> None:
    add_worker(store)
    add_feeds(store, 1)
    store.fail_commits(1)
    with pytest.raises(Unavailable):
        reconcile(store, _refuse, SETTINGS)
    assert [a.key for a in run(store)[1]] == [(1, 1)], "the epoch that was rolled back was never heard of"


def test_a_pass_killed_before_its_messages_is_made_good_by_the_dispatch_timeout(store: MemoryStore) -> None:
    worker = add_worker(store)
    add_feeds(store, 1)

    def die(_: Sequence[Assignment]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconcile(store, die, SETTINGS)
    store.clock.advance(SETTINGS.dispatch_timeout_s)
    store.workers.heartbeat(worker.id, worker.load, ttl_s=SETTINGS.ttl_s)
    report, sent = run(store)
    assert report.overdue == 1
    assert [a.epoch for a in sent] == [2]


def test_a_pass_yields_to_one_that_is_under_way(store: MemoryStore) -> None:
    add_worker(store)
    add_feeds(store, 1)
    with store.fleet.reconcile_pass() as first:
        assert first is not None
        assert reconcile(store, _refuse, SETTINGS) is None


def _refuse(assignments: Sequence[Assignment]) -> None:
    pytest.fail(f"sent {assignments}")


def test_an_idle_fleet_writes_no_history(store: MemoryStore) -> None:
    add_worker(store)
    add_feeds(store, 2)
    run(store)
    before = len(store.database.tables.events)
    for _ in range(5):
        run(store)
    assert len(store.database.tables.events) == before


def test_the_gone_are_buried_and_their_feeds_placed_in_the_same_pass(store: MemoryStore) -> None:
    add_worker(store, "a")
    add_feeds(store, 3)
    _, sent = run(store)
    for a in sent:
        store.leases.claim(a.worker_id, [a.key])
    other = add_worker(store, "b")
    for _ in range(8):
        store.clock.advance(1)
        store.workers.heartbeat(other.id, other.load, ttl_s=SETTINGS.ttl_s)
    report, sent = run(store)
    assert (report.workers_gone, report.leases_freed) == (1, 3)
    assert {(a.epoch, a.worker_id) for a in sent} == {(2, other.id)}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda store: None, Reason.NO_CAPACITY),
        (lambda store: add_worker(store, capacity=0), Reason.NO_CAPACITY),
    ],
)
def test_why_feeds_wait_is_written_once_and_counted(
    store: MemoryStore, make: Callable[[MemoryStore], object], reason: Reason
) -> None:
    make(store)
    add_feeds(store, 2)
    report, _ = run(store)
    assert report.unplaced == {reason: 2}
    assert {v.lease.reason for v in store.feeds.views()} == {reason}
    assert FEEDS_UNPLACED.labels(reason.value)._value.get() == 2
    add_worker(store, "b", capacity=5)
    run(store)
    assert FEEDS_UNPLACED.labels(reason.value)._value.get() == 0


def test_a_bulk_edit_is_absorbed_over_several_passes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "EDITS_PER_PASS", 2)
    add_worker(store)
    add_feeds(store, 5)
    wakes = store.database.tables.wakes
    report, _ = run(store)
    assert (report.edits, report.more) == (2, True)
    assert store.database.tables.wakes == wakes + 1, "the rest must not wait for the next tick"
    run(store)
    report, _ = run(store)
    assert (report.edits, report.more) == (1, False)


def test_many_placements_take_several_passes(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PLACEMENTS_PER_PASS", 2)
    add_worker(store)
    add_feeds(store, 5)
    assert [len(run(store)[1]) for _ in range(3)] == [2, 2, 1]


def test_a_bound_that_is_reached_without_any_room_does_not_spin(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PLACEMENTS_PER_PASS", 2)
    add_feeds(store, 2)
    assert not run(store)[0].more


def test_a_sweep_runs_once_an_interval(store: MemoryStore) -> None:
    worker = add_worker(store)
    (feed_id,) = add_feeds(store, 1)
    run(store)
    store.delete_lease(feed_id)
    assert run(store)[0].repaired == 0
    store.clock.advance(SETTINGS.sweep_interval_s)
    store.workers.heartbeat(worker.id, worker.load, ttl_s=SETTINGS.ttl_s)
    report, sent = run(store)
    assert (report.repaired, len(sent)) == (1, 1)


# -- verbs -------------------------------------------------------------------------------------------


def test_a_worker_is_found_by_name_by_id_and_by_the_beginning_of_its_id(store: MemoryStore) -> None:
    a = add_worker(store, "a@host", number=0xA << 124)
    add_worker(store, "b@host", number=0xB << 124)
    for name in ("a@host", str(a.id), str(a.id)[:5], str(a.id).upper()):
        assert find_worker(store, name).worker.id == a.id


def test_an_unknown_worker_is_not_found_and_the_living_are_named(store: MemoryStore) -> None:
    add_worker(store, "a@host")
    with pytest.raises(NotFound, match=r"'z'.*a@host"):
        find_worker(store, "z")


def test_a_gone_worker_is_not_found(store: MemoryStore) -> None:
    store.workers.leave(add_worker(store).id)
    with pytest.raises(NotFound, match="none"):
        find_worker(store, "a")


def test_a_name_that_means_two_workers_is_refused(store: MemoryStore) -> None:
    add_worker(store, "a")
    add_worker(store, "a")
    with pytest.raises(InvalidInput, match="2 workers"):
        find_worker(store, "a")


def test_draining_moves_the_feeds_elsewhere(store: MemoryStore) -> None:
    a = add_worker(store, "a")
    add_feeds(store, 2)
    _, sent = run(store)
    store.leases.claim(a.id, [x.key for x in sent])
    b = add_worker(store, "b")
    drain_worker(store, "a")
    assert [v.worker.state for v in store.workers.views()] == [WorkerState.DRAINING, WorkerState.ACTIVE]
    asked = store.leases.stop_requests(a.id)
    store.leases.release(a.id, [Release(*r.key, r.reason) for r in asked])
    _, sent = run(store)
    assert {x.worker_id for x in sent} == {b.id}


def test_draining_twice_is_the_same_as_draining_once(store: MemoryStore) -> None:
    add_worker(store, "a")
    drain_worker(store, "a")
    before = len(store.database.tables.events)
    drain_worker(store, "a")
    assert len(store.database.tables.events) == before


def test_a_paused_feed_is_not_placed(store: MemoryStore) -> None:
    add_worker(store)
    add_feeds(store, 1)
    store.feeds.set_target("f0", TargetState.PAUSED)
    assert run(store)[1] == []
