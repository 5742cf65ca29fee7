"""A worker has died: its feeds are placed before anything else is done, and all else comes a moment later."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from feedq.control import reconcile as control
from feedq.control.reconcile import reconcile
from feedq.control.store.passes import ReconcilePass
from feedq.core import limits
from feedq.core.model import Assignment, LeaseState, Reason, Release, TargetState, Worker
from feedq.errors import Unavailable
from tests.asking import send_heartbeat
from tests.fakes.control import SteppedStore, current
from tests.unit.test_control import SETTINGS, add_feeds, add_worker, run

pytestmark = pytest.mark.usefixtures("control")


@pytest.fixture
def store() -> SteppedStore:
    made = current().fresh_store()
    made.clock.advance(60)  # the grace period after the start is over
    return made


def die_with(store: SteppedStore, feeds: int) -> Worker:
    """A worker that ran so many feeds has died, and another is there."""
    victim = add_worker(store, "victim", capacity=feeds)
    add_feeds(store, feeds)
    _, sent = run(store)
    store.leases.claim(victim.id, [a.key for a in sent])
    heir = add_worker(store, "heir", capacity=feeds)
    for _ in range(round(SETTINGS.ttl_s) + 1):
        store.clock.advance(1)
        send_heartbeat(store, heir.id, heir.load, ttl_s=SETTINGS.ttl_s)
    return heir


def test_the_first_feeds_of_a_dead_worker_are_placed_before_anything_else_is_done(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    heir = die_with(store, 5)
    store.feeds.set_target("f4", TargetState.PAUSED)
    report, sent = run(store)
    assert (report.workers_gone, report.leases_freed, report.edits, report.more) == (1, 5, 0, True)
    assert [a.worker_id for a in sent] == [heir.id] * 2
    report, sent = run(store)
    assert (report.edits, len(sent), report.more) == (1, 2, False), "one of the five is paused by now"


def test_a_pass_that_only_places_leaves_all_else_to_the_next(store: SteppedStore) -> None:
    worker = add_worker(store, "w", capacity=5)
    first, second, _ = add_feeds(store, 3)
    _, sent = run(store)
    store.leases.claim(worker.id, [a.key for a in sent])
    store.leases.release(worker.id, [Release(first, 1, Reason.RELEASED)])
    store.feeds.set_target("f1", TargetState.PAUSED)
    given: list[Assignment] = []
    report = reconcile(store, given.extend, SETTINGS, placing_only=True)
    assert report is not None
    assert ([a.feed_id for a in given], report.edits) == ([first], 0)
    report, sent = run(store)
    assert (sent, report.edits) == ([], 1)
    assert store.feeds.view("f1").lease.state is LeaseState.STOPPING
    assert store.feeds.view("f1").feed.id == second


def test_passes_in_a_row_place_all_feeds_of_a_dead_worker_and_report_it_as_one(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    die_with(store, 5)
    wakes = store.control.wakes
    sent: list[Assignment] = []
    report = reconcile(store, sent.extend, SETTINGS, passes=control.PASSES_IN_A_ROW)
    assert report is not None
    assert (report.workers_gone, report.leases_freed, report.edits) == (1, 5, 0)
    assert len(sent) == len({a.feed_id for a in sent}) == 5
    assert report.assignments == tuple(sent)
    assert report.can_wait
    assert store.control.wakes == wakes, "whoever asked has all else done in a moment"
    report, _ = run(store)
    assert (report.can_wait, report.more) == (False, False)


def test_what_the_fast_path_leaves_does_not_wait(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    die_with(store, 20)
    wakes = store.control.wakes
    report = reconcile(store, lambda _: None, SETTINGS, passes=2)
    assert report is not None
    assert (len(report.assignments), report.more, report.can_wait) == (6, True, False)
    assert store.control.wakes == wakes + 1


def test_what_the_first_pass_committed_is_sent_though_the_second_fails(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    die_with(store, 5)
    sent: list[Assignment] = []
    assign = ReconcilePass.assign
    calls = iter(range(10))

    def assign_and_lose_the_second_commit(
        self: ReconcilePass, pairs: Sequence[tuple[int, UUID]]
    ) -> list[Assignment]:
        if next(calls) == 1:
            store.control.commits_to_fail = 1
        return assign(self, pairs)

    monkeypatch.setattr(ReconcilePass, "assign", assign_and_lose_the_second_commit)
    with pytest.raises(Unavailable):
        reconcile(store, sent.extend, SETTINGS, passes=2)
    assert len(sent) == 2
