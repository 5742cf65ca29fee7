"""The store's contract: blame for lost workers, and the quarantine of feeds that workers were lost to."""

from __future__ import annotations

import pytest

from feedq.core.lease import QUARANTINE_S
from feedq.core.model import Feed, Lease, LeaseState, Loss, Reason, Release, Worker
from feedq.telemetry.logs import EventKind
from tests.contract.harness import Harness, progress

STOOD_STILL = "its event loop stood still"


def certain(feed: Feed) -> Loss:
    return Loss("stalled", STOOD_STILL, feed.id, is_certain=True, stack=('File "x.py", line 3 in f',))


def in_hand(feed: Feed) -> Loss:
    return Loss("killed", "killed", feed.id)


def kinds(harness: Harness, feed: Feed) -> list[str]:
    return [event.kind for event in harness.store.feeds.events(feed.name)]


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


def test_a_claim_says_that_the_feed_is_to_run_apart(harness: Harness) -> None:
    lost, worker, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    harness.store.workers.report_loss(lost.id, certain(feed))
    key = harness.assign(feed, worker)
    (claim,) = harness.store.leases.claim(worker.id, [key])
    assert (claim.quarantined, claim.blamed) == (True, 1)
    again = harness.store.leases.claimed(worker.id, key)
    assert again is not None
    assert (again.key, again.feed, again.quarantined, again.blamed) == (key, claim.feed, True, 1)
    assert harness.store.leases.claimed(lost.id, key) is None
    assert harness.store.leases.claimed(worker.id, (key[0], key[1] + 1)) is None
    harness.store.leases.release(worker.id, [Release(*key, Reason.RELEASED)])
    assert harness.store.leases.claimed(worker.id, key) is None


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
    worker, feed = harness.worker(), harness.feed()
    key = harness.run(feed, worker)
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
    worker, feed = harness.worker(), harness.feed()
    key = harness.run(feed, worker)
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


def test_one_that_was_in_hand_lately_waits_for_the_verdict_and_one_in_quarantine_does_not(
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
    assert waits == {"suspect": True, "convict": False, "other": False}
