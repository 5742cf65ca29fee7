"""The store's contract: blame for lost workers, and the quarantine of feeds that workers were lost to."""

from __future__ import annotations

from uuid import uuid4

import pytest

from feedq.core.lease import QUARANTINE_S
from feedq.core.loss import Loss
from feedq.core.model import (
    Feed,
    FeedKey,
    Lease,
    LeaseState,
    NewWorker,
    Reason,
    Release,
    Worker,
    WorkerTarget,
)
from feedq.core.selection import Selection
from feedq.errors import LeaseLost
from feedq.settings import Settings
from feedq.telemetry.logs import EventKind
from feedq.verbs import bulk
from tests.asking import events_of
from tests.contract.harness import Harness, progress

STOOD_STILL = "its event loop stood still"


def certain(feed: Feed) -> Loss:
    return Loss("stalled", STOOD_STILL, feed.id, is_certain=True, stack=('File "x.py", line 3 in f',))


def in_hand(feed: Feed) -> Loss:
    return Loss("killed", "killed", feed.id)


def kinds(harness: Harness, feed: Feed) -> list[str]:
    return [event.kind for event in events_of(harness.store, feed.name)]


def test_a_feed_that_is_named_with_certainty_is_quarantined_at_once(harness: Harness) -> None:
    worker, feed, other = harness.worker("a"), harness.feed("bad"), harness.feed("good")
    harness.run(feed, worker)
    harness.run(other, worker)
    assert harness.wakes(lambda: harness.store.workers.report_loss(worker.id, certain(feed)))
    lease = harness.lease(feed)
    assert (lease.quarantined, lease.blamed) == (True, 1)
    assert lease.blame is not None
    assert "worker a was lost" in lease.blame
    assert STOOD_STILL in lease.blame
    assert lease.blamed_at is not None
    assert EventKind.FEED_QUARANTINED in kinds(harness, feed)
    assert (harness.lease(other).quarantined, harness.lease(other).blamed) == (False, 0)


def test_a_feed_that_was_merely_in_hand_is_quarantined_the_second_time_within_minutes(
    harness: Harness,
) -> None:
    feed = harness.feed()
    workers = [harness.worker(name) for name in "abc"]
    harness.store.workers.report_loss(workers[0].id, in_hand(feed))
    assert (harness.lease(feed).quarantined, harness.lease(feed).blamed) == (False, 1)
    harness.elapse(700)
    harness.store.workers.report_loss(workers[1].id, in_hand(feed))
    assert (harness.lease(feed).quarantined, harness.lease(feed).blamed) == (False, 2)
    harness.elapse(300)
    harness.store.workers.report_loss(workers[2].id, in_hand(feed))
    assert (harness.lease(feed).quarantined, harness.lease(feed).blamed) == (True, 3)


def new_process() -> NewWorker:
    return NewWorker(uuid4(), "", "", 0, "host", 2, "0")


def hand_over(harness: Harness, owner: Worker, key: FeedKey) -> Worker:
    return harness.store.workers.hand_over(new_process(), owner=owner.id, key=key, ttl_s=60)


def test_a_process_of_a_feed_takes_its_lease_over_and_is_a_worker_of_that_feed_alone(
    harness: Harness,
) -> None:
    worker, feed = harness.worker("a", zone="x"), harness.feed()
    key = harness.run(feed, worker)
    own = hand_over(harness, worker, key)
    assert (own.name, own.labels, own.capacity, own.queue) == (worker.name, {"zone": "x"}, 0, "")
    assert (harness.lease(feed).worker_id, harness.lease(feed).epoch) == (own.id, key[1])
    assert harness.store.leases.assigned(own.id, limit=9) == [key]
    (claim,) = harness.store.leases.claim(own.id, [key])
    assert claim.key == key
    assert harness.store.leases.report(worker.id, [progress(key)]).held == [], (
        "it is not the worker's any more"
    )
    assert harness.store.leases.report(own.id, [progress(key)]).held == [key]
    assert [view.worker.id for view in harness.store.workers.views()] == [worker.id], "people mean the worker"
    harness.feed("other")
    harness.store.workers.set_target(worker.id, WorkerTarget.DRAINED)
    assert harness.reconcile()[1] == [], "nobody places anything on it"
    harness.store.workers.leave(own.id)
    assert harness.lease(feed).state is LeaseState.IDLE


@pytest.mark.parametrize("how", ["stale", "stopping", "another's", "assigned"])
def test_a_lease_that_a_worker_does_not_hold_is_not_handed_over(harness: Harness, how: str) -> None:
    worker, other, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    key = harness.assign(feed, worker) if how == "assigned" else harness.run(feed, worker)
    if how == "stopping":
        harness.stop(feed)
    before = harness.lease(feed)
    with pytest.raises(LeaseLost):
        hand_over(
            harness,
            other if how == "another's" else worker,
            (key[0], key[1] + 1) if how == "stale" else key,
        )
    assert harness.lease(feed) == before
    assert len(harness.store.workers.views(gone=True)) == 2, "nobody registered for it"


def test_a_process_of_a_feed_is_drained_with_its_worker(harness: Harness) -> None:
    worker, feed, elsewhere = harness.worker("a"), harness.feed(), harness.worker("b")
    own = hand_over(harness, worker, harness.run(feed, worker))
    harness.store.leases.claim(own.id, harness.store.leases.assigned(own.id, limit=1))
    harness.store.workers.set_target(worker.id, WorkerTarget.DRAINED)
    harness.reconcile()
    assert [request.feed_id for request in harness.store.leases.stop_requests(own.id)] == [feed.id]
    assert harness.lease(feed).promised_to == elsewhere.id


def test_a_feed_that_runs_apart_is_moved_away_from_its_worker_and_not_to_it(harness: Harness) -> None:
    worker, feed, elsewhere = harness.worker("a"), harness.feed(), harness.worker("b")
    own = hand_over(harness, worker, harness.run(feed, worker))
    harness.store.leases.claim(own.id, harness.store.leases.assigned(own.id, limit=1))
    (refusal,) = harness.store.feeds.move([(feed.name, worker.id)], stop_within_s=30)
    assert (refusal, harness.lease(feed).promised_to) == (None, None), "it is there already"
    harness.run(harness.feed("other"), elsewhere)
    chosen = harness.store.listing.chosen(Selection(names=(feed.name,)), limit=1)
    outcomes = bulk.move(harness.store, chosen, Settings(settle_s=0), to=None, told=lambda done, total: None)
    assert [view.worker.id for _, view in bulk.made(outcomes)] == [elsewhere.id]
    assert [request.feed_id for request in harness.store.leases.stop_requests(own.id)] == [feed.id]


def test_a_feed_whose_process_was_lost_is_tried_again_later_each_time(harness: Harness) -> None:
    worker, feed = harness.worker("a", ttl_s=10_000), harness.feed()
    loss = Loss("killed", "its process ended with status 3", feed.id, is_certain=True)
    harness.store.workers.report_loss(harness.worker("lost", capacity=0).id, certain(feed))
    key = harness.run(feed, worker)
    for wait_s in (10, 20, 40):
        own = hand_over(harness, worker, key)
        harness.store.leases.claim(own.id, harness.store.leases.assigned(own.id, limit=1))
        assert harness.store.workers.report_loss(own.id, loss, has_ended=True)
        lease = harness.lease(feed)
        assert (lease.state, lease.quarantined) == (LeaseState.IDLE, True)
        assert "its own process at a was lost: killed: its process ended with status 3" in str(lease.blame)
        harness.elapse(wait_s - 1)
        assert harness.reconcile()[1] == []
        harness.elapse(2)
        (assignment,) = harness.reconcile()[1]
        (claim,) = harness.store.leases.claim(worker.id, [assignment.key])
        key = claim.key


def running(harness: Harness) -> tuple[Feed, Worker, Lease]:
    worker, feed = harness.worker("b"), harness.feed()
    harness.run(feed, worker)
    return feed, worker, harness.lease(feed)


def test_a_pass_asks_a_quarantined_feed_to_leave_the_company_of_others(harness: Harness) -> None:
    lost = harness.worker("a")
    feed, worker, _ = running(harness)
    harness.elapse(1)
    harness.store.workers.report_loss(lost.id, certain(feed))
    harness.reconcile()
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.quarantined) == (
        LeaseState.STOPPING,
        Reason.QUARANTINED,
        True,
    )
    (asked,) = harness.store.leases.stop_requests(worker.id)
    assert (asked.feed_id, asked.reason) == (feed.id, Reason.QUARANTINED)
    assert lease.due_at is not None


def test_one_that_runs_apart_is_left_there_until_it_has_landed_records_for_long_enough(
    harness: Harness,
) -> None:
    lost, worker, feed = harness.worker("a"), harness.worker("b", ttl_s=10_000), harness.feed()
    harness.store.workers.report_loss(lost.id, certain(feed))
    key = harness.run(feed, worker)
    harness.elapse(QUARANTINE_S / 2)
    harness.store.leases.report(worker.id, [progress(key)])
    harness.reconcile()
    assert harness.lease(feed).state is LeaseState.RUNNING, "not for long enough"
    harness.elapse(QUARANTINE_S / 2)
    harness.reconcile()
    lease = harness.lease(feed)
    assert (lease.state, lease.quarantined) == (LeaseState.STOPPING, False)
    assert EventKind.FEED_PARDONED in kinds(harness, feed)
    harness.store.leases.release(worker.id, [Release(*key, Reason.RELEASED)])
    again = harness.assign(feed, worker)
    (claim,) = harness.store.leases.claim(worker.id, [again])
    assert not claim.quarantined


def test_a_release_with_blame_waits_and_is_tried_apart_again(harness: Harness) -> None:
    worker, feed, key = harness.running()
    loss = Loss("memory", "it grew", feed.id, is_certain=True)
    harness.store.leases.release(
        worker.id, [Release(*key, Reason.QUARANTINED, retry_in_s=30.0, error="it grew", blame=loss)]
    )
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.quarantined, lease.blamed) == (
        LeaseState.IDLE,
        Reason.QUARANTINED,
        True,
        1,
    )
    assert (lease.blame, lease.last_error) == ("memory: it grew", "it grew")
    assert harness.reconcile()[1] == []
    harness.elapse(31)
    assert [assignment.feed_id for assignment in harness.reconcile()[1]] == [feed.id]


def test_an_edit_tries_it_at_once_in_quarantine_still(harness: Harness) -> None:
    worker, feed, key = harness.running()
    loss = Loss("memory", "it grew", feed.id, is_certain=True)
    harness.store.leases.release(worker.id, [Release(*key, Reason.QUARANTINED, 600.0, blame=loss)])
    harness.store.feeds.restart(feed.name)
    (assignment,) = harness.reconcile()[1]
    (claim,) = harness.store.leases.claim(worker.id, [assignment.key])
    assert claim.quarantined


def lose(harness: Harness, worker: Worker) -> None:
    assert harness.expire_workers(worker)


@pytest.mark.parametrize("is_explained", [True, False])
def test_a_feed_whose_last_two_workers_were_lost_waits_until_it_is_known_how(
    harness: Harness, is_explained: bool
) -> None:
    feed = harness.feed()
    first, second = harness.worker("a"), harness.worker("b")
    harness.run(feed, first)
    lose(harness, first)
    assert harness.lease(feed).due_at is None, "the first time it goes on at once"
    if is_explained:
        harness.store.workers.report_loss(first.id, Loss("killed", "killed"))
    harness.run(feed, second)
    lose(harness, second)
    lease = harness.lease(feed)
    assert (lease.due_at is None) == is_explained
    assert lease.lost_worker == second.id
    harness.elapse(11)
    third = harness.worker("c")
    assert [assignment.worker_id for assignment in harness.reconcile()[1]] == [third.id]


def test_one_that_was_in_hand_lately_or_is_in_quarantine_waits_for_the_verdict(
    harness: Harness,
) -> None:
    suspect, convict, other = (harness.feed(name) for name in ("suspect", "convict", "other"))
    lost, lost_too, worker = (harness.worker(name) for name in "abc")
    harness.store.workers.report_loss(lost.id, in_hand(suspect))
    harness.store.workers.report_loss(lost_too.id, certain(convict))
    for feed in (suspect, convict, other):
        harness.run(feed, worker)
    lose(harness, worker)
    waits = {feed.name: harness.lease(feed).due_at is not None for feed in (suspect, convict, other)}
    assert waits == {"suspect": True, "convict": True, "other": False}
