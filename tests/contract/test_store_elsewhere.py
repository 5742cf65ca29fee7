"""The store's contract: where a feed failed, what is looked at again, and which workers had better get nothing."""

from __future__ import annotations

import pytest

from feedq.core.model import Claim, Feed, FeedKey, LeaseState, Load, Reason, Release, Status, Worker
from feedq.core.placement.base import EligibleWorker, FeedToPlace
from feedq.telemetry.logs import EventKind
from tests.asking import events_of, send_heartbeat
from tests.contract.harness import TTL_S, Harness, progress, spec

NO_TABLE = "sink 'default' has no table orders"
FAILED_S = 10.0


def names(harness: Harness, feed: Feed) -> list[str]:
    """On which the feed failed, the latest last."""
    return list(harness.lease(feed).avoid)


def fail(harness: Harness, worker: Worker, key: FeedKey, reason: Reason = Reason.BACKOFF) -> None:
    released = Release(*key, reason, attempts=1, error=NO_TABLE, retry_in_s=FAILED_S)
    assert harness.store.leases.release(worker.id, [released]) == [key]


def claim(harness: Harness, feed: Feed, worker: Worker) -> Claim:
    (claimed,) = harness.store.leases.claim(worker.id, [harness.assign(feed, worker)])
    return claimed


def waiting(harness: Harness, *, after_s: float = FAILED_S) -> list[FeedToPlace]:
    harness.elapse(after_s)
    with harness.in_a_pass() as p:
        return p.waiting(limit=10)


def candidates(harness: Harness) -> dict[str, EligibleWorker]:
    with harness.in_a_pass() as p:
        return {worker.name: worker for worker in p.candidates()}


def kinds(harness: Harness, feed: Feed) -> list[str]:
    return [event.kind for event in reversed(events_of(harness.store, feed.name))]


# -- on which workers it failed ----------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Reason.BACKOFF, Reason.FAILED])
def test_a_lease_tells_on_which_workers_its_feed_failed(harness: Harness, reason: Reason) -> None:
    workers, feed = [harness.worker(name) for name in "abc"], harness.feed()
    for number in (0, 1, 2, 0):
        fail(harness, workers[number], claim(harness, feed, workers[number]).key, reason)
    assert names(harness, feed) == ["b", "c", "a"]
    (found,) = waiting(harness)
    assert [name for name, _ in found.avoid] == ["b", "c", "a"]
    assert [at for _, at in found.avoid] == sorted(harness.lease(feed).avoid.values())


def test_a_claim_tells_whether_the_feed_failed_on_this_worker(harness: Harness) -> None:
    first, second, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    before = claim(harness, feed, first)
    fail(harness, first, before.key)
    elsewhere = claim(harness, feed, second)
    fail(harness, second, elsewhere.key)
    again = claim(harness, feed, first)
    assert [c.is_new_here for c in (before, elsewhere, again)] == [True, True, False]
    fail(harness, first, again.key)
    harness.elapse(1)
    restarted = harness.worker("a")
    assert claim(harness, feed, restarted).is_new_here, "this session has not had its try"


def test_records_on_a_worker_where_it_never_failed_leave_the_others_to_blame(harness: Harness) -> None:
    first, second, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    fail(harness, first, claim(harness, feed, first).key)
    key = claim(harness, feed, second).key
    harness.store.leases.report(second.id, [progress(key, records=10)])
    assert names(harness, feed) == ["a"]


def test_records_on_a_worker_where_it_failed_clear_them_all(harness: Harness) -> None:
    first, second, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    for worker in (first, second):
        fail(harness, worker, claim(harness, feed, worker).key)
    key = claim(harness, feed, first).key
    harness.store.leases.report(first.id, [progress(key, records=0)])
    assert names(harness, feed) == ["a", "b"], "it has landed nothing yet"
    harness.store.leases.report(first.id, [progress(key, records=1)])
    assert names(harness, feed) == [], "the source was away, and no worker to blame"


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_an_edit_forgets_where_it_failed(harness: Harness, state: str) -> None:
    worker, feed = harness.worker(), harness.feed()
    fail(harness, worker, claim(harness, feed, worker).key)
    key = claim(harness, feed, worker).key if state == "running" else None
    harness.store.feeds.edit(spec(weight=3.0))
    harness.absorb_edits()
    if key is not None:
        harness.store.leases.release(worker.id, [Release(*key, Reason.EDITED)])
    assert names(harness, feed) == []


def test_what_may_move_tells_where_it_failed_and_its_sink(harness: Harness) -> None:
    first, second = harness.worker("a"), harness.worker("b")
    feed = harness.feed(sink={"name": "Reports", "table": "orders"})
    fail(harness, first, claim(harness, feed, first).key)
    claim(harness, feed, second)
    with harness.in_a_pass() as p:
        (held,) = p.movable([second.id], limit=10)
    assert ([name for name, _ in held.avoid], held.sink) == (["a"], "reports")


def cut_off(harness: Harness, first: Worker, second: Worker, url: str) -> Feed:
    """A feed that failed on the first and landed records on the second."""
    feed = harness.feed(source={"url": url})
    fail(harness, first, claim(harness, feed, first).key)
    harness.elapse(5)
    key = claim(harness, feed, second).key
    harness.store.leases.report(second.id, [progress(key, records=1, last_record_ago_s=0.0)])
    return feed


def test_what_one_feed_cannot_reach_from_a_worker_others_of_its_source_avoid_there(harness: Harness) -> None:
    first, second = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999)
    cut_off(harness, first, second, "tcp://Feeds.example.com:7001/x")
    same = harness.feed("same", source={"url": "tcp://feeds.example.com:7001"})
    harness.feed("other", source={"url": "tcp://feeds.example.com:7002"})
    harness.absorb_edits()
    found = {one.feed_id: [name for name, _ in one.avoid] for one in waiting(harness, after_s=0)}
    assert found == {same.id: ["a"], same.id + 1: []}
    claim(harness, same, second)
    with harness.in_a_pass() as p:
        held = p.movable([second.id], limit=10)
    assert [[name for name, _ in one.avoid] for one in held] == [["a"], ["a"]]


def test_once_another_feed_of_a_source_lands_records_on_a_worker_it_is_no_longer_suspected(
    harness: Harness,
) -> None:
    first, second = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999)
    url = "tcp://feeds.example.com:7001"
    cut_off(harness, first, second, url)
    trial = claim(harness, harness.feed("trial", source={"url": url}), first)
    harness.feed("new", source={"url": url})
    harness.absorb_edits()
    assert [len(one.avoid) for one in waiting(harness, after_s=5)] == [1]
    landed = progress(trial.key, records=1, last_record_ago_s=0.0)
    harness.store.leases.report(first.id, [landed])
    assert [len(one.avoid) for one in waiting(harness, after_s=0)] == [0]
    with harness.in_a_pass() as p:
        (held,) = p.movable([second.id], limit=10)
    assert ([name for name, _ in held.avoid], held.reached) == (["a"], ["a"]), "it has not been there since"


def test_an_epoch_older_than_the_failure_says_nothing_for_the_worker(harness: Harness) -> None:
    """Its connection was made when it could be."""
    first, second = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999)
    url = "tcp://feeds.example.com:7001"
    old = claim(harness, harness.feed("old", source={"url": url}), first)
    harness.elapse(5)
    cut_off(harness, first, second, url)
    landed = progress(old.key, records=1, last_record_ago_s=0.0)
    harness.store.leases.report(first.id, [landed])
    harness.feed("new", source={"url": url})
    harness.absorb_edits()
    assert [len(one.avoid) for one in waiting(harness, after_s=0)] == [1]


def test_a_feed_is_not_moved_to_where_another_of_its_source_failed_even_before_that_streams_elsewhere(
    harness: Harness,
) -> None:
    first, second = harness.worker("a"), harness.worker("b")
    url = "tcp://feeds.example.com:7001"
    fail(harness, first, claim(harness, harness.feed("x", source={"url": url}), first).key)
    claim(harness, harness.feed("y", source={"url": url}), second)
    with harness.in_a_pass() as p:
        (held,) = p.movable([second.id], limit=10)
    assert [name for name, _ in held.avoid] == ["a"]


def test_a_source_that_nobody_reaches_is_no_fault_of_a_worker(harness: Harness) -> None:
    first, second = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999)
    feed = harness.feed()
    for worker in (first, second):
        fail(harness, worker, claim(harness, feed, worker).key)
    harness.feed("new")
    harness.absorb_edits()
    found = {one.feed_id: len(one.avoid) for one in waiting(harness)}
    assert found == {feed.id: 2, feed.id + 1: 0}


# -- what cannot run as declared ---------------------------------------------------------------------


def look(harness: Harness, feed: Feed, worker: Worker, error: str = NO_TABLE) -> Claim:
    """One look at a feed that cannot run."""
    claimed = claim(harness, feed, worker)
    assert harness.store.feeds.view(feed.name).status is (
        Status.FAILED if claimed.has_failed else Status.CONNECTING
    )
    failed = Release(*claimed.key, Reason.FAILED, FAILED_S, claimed.attempts + 1, error)
    harness.store.leases.release(worker.id, [failed])
    return claimed


def test_a_feed_that_cannot_run_is_looked_at_again_in_its_time(harness: Harness) -> None:
    worker, feed = harness.worker(ttl_s=999), harness.feed()
    look(harness, feed, worker)
    assert harness.reconcile()[1] == []
    assert not harness.is_due()
    harness.elapse(FAILED_S)
    assert harness.is_due()
    assert [a.feed_id for a in harness.reconcile()[1]] == [feed.id]
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.last_error) == (LeaseState.ASSIGNED, Reason.FAILED, NO_TABLE)
    assert harness.store.feeds.view(feed.name).status is Status.FAILED


def test_looks_count_up_and_leave_one_event(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    looks = [look(harness, feed, worker) for _ in range(4)]
    assert [(c.has_failed, c.attempts) for c in looks] == [(False, 0), (True, 1), (True, 2), (True, 3)]
    once = ["feed_added", "lease_assigned", "lease_claimed", "lease_released"]
    assert kinds(harness, feed) == once
    look(harness, feed, worker, error="permission denied")
    assert kinds(harness, feed) == [*once, "lease_released"], "the error is another one"
    assert harness.lease(feed).last_error == "permission denied"


def test_a_mended_feed_is_running_as_any_other_and_history_says_so(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    look(harness, feed, worker)
    key = claim(harness, feed, worker).key
    harness.store.leases.report(worker.id, [progress(key, records=0)])
    assert harness.lease(feed).reason is Reason.FAILED, "nothing has landed yet"
    assert harness.store.feeds.view(feed.name).status is Status.STREAMING
    for _ in range(2):
        harness.store.leases.report(worker.id, [progress(key, records=5)])
    assert (harness.lease(feed).state, harness.lease(feed).reason) == (LeaseState.RUNNING, None)
    assert kinds(harness, feed)[-2:] == [EventKind.LEASE_RELEASED, EventKind.FEED_MENDED]


# -- who had better get nothing ----------------------------------------------------------------------


def beat(harness: Harness, worker: Worker, load: Load, *, ttl_s: float = TTL_S) -> None:
    assert send_heartbeat(harness.store, worker.id, load, ttl_s=ttl_s) is not None


def test_a_candidate_tells_which_sinks_it_cannot_write_to(harness: Harness) -> None:
    well, cut_off = harness.worker("a"), harness.worker("b")
    beat(harness, well, Load())
    beat(harness, cut_off, Load(sinks_down=("Reports", "default")))
    found = candidates(harness)
    assert found["a"].sinks_down == frozenset()
    assert found["b"].sinks_down == {"reports", "default"}
    beat(harness, cut_off, Load())
    assert candidates(harness)["b"].sinks_down == frozenset()


@pytest.mark.parametrize(
    ("loop_lag_s", "silent_s", "lags"),
    [(0.0, 0.0, False), (1.0, 3.5, False), (1.1, 0.0, True), (0.0, 4.5, True)],
)
def test_a_worker_lags_whose_loop_or_heartbeat_is_late(
    harness: Harness, loop_lag_s: float, silent_s: float, lags: bool
) -> None:
    beat(harness, harness.worker("a", ttl_s=6), Load(loop_lag_s=loop_lag_s), ttl_s=6)
    harness.elapse(silent_s)
    assert candidates(harness)["a"].lags is lags
