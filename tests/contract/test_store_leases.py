"""The store's contract: the owner's side of the lease. Each statement matches feed, epoch and worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.control.store.history import EventFilter
from feedq.core.model import (
    JSON,
    Claim,
    Feed,
    FeedKey,
    LeaseState,
    Load,
    Reason,
    Release,
    Rewind,
    Worker,
)
from feedq.telemetry.logs import EventKind
from tests.asking import events_of, send_heartbeat
from tests.contract.harness import TTL_S, Harness, progress, spec

UNSTORABLE = "half \ud800, NUL \0"


def test_a_claim_matches_what_was_assigned_and_stamps_the_epoch(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    key = harness.assign(feed, worker)
    feed = harness.store.feeds.edit(spec(weight=5.0))
    (claim,) = harness.store.leases.claim(worker.id, [key])
    assert (claim.key, claim.feed, claim.attempts) == (key, feed, 0)
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.worker_id) == (LeaseState.RUNNING, None, worker.id)
    assert lease.epoch == key[1] == 1
    assert lease.generation == feed.generation == 2
    assert lease.running_since is not None
    assert lease.due_at is None


@pytest.mark.parametrize("key", [(999, 1), (-1, 1), (1, -1), (2**70, 1), (1, 2**70), (-(2**70), 0)], ids=str)
def test_a_forged_message_does_nothing_to_the_others(harness: Harness, key: FeedKey) -> None:
    worker, feed = harness.worker(), harness.feed()
    good = harness.assign(feed, worker)
    assert [c.key for c in harness.store.leases.claim(worker.id, [key, good])] == [good]


def said_of(harness: Harness, worker_id: UUID, key: FeedKey) -> tuple[object, ...]:
    """What is granted to a worker that claims, reports and releases a feed."""
    leases, (feed_id, epoch) = harness.store.leases, key
    return (
        [claim.key for claim in leases.claim(worker_id, [key])],
        leases.report(worker_id, [progress(key)]).held,
        leases.release(
            worker_id, [Release(feed_id, epoch, Reason.FAILED, error="from the past", sink_epoch=100)]
        ),
    )


@pytest.mark.parametrize("arrange", [Harness.assign, Harness.run])
@pytest.mark.parametrize("who", ["another epoch", "another worker", "a stranger", "a gone worker"])
def test_who_has_not_got_the_feed_can_do_nothing_to_it(
    harness: Harness, arrange: Callable[[Harness, Feed, Worker], FeedKey], who: str
) -> None:
    worker, other, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    feed_id, epoch = arrange(harness, feed, worker)
    if who == "a gone worker":
        harness.expire_workers(worker)
    before = harness.lease(feed)
    owner = {"another worker": other.id, "a stranger": uuid4()}.get(who, worker.id)
    for shift in (-1, 1, 1_000) if who == "another epoch" else (0,):
        assert said_of(harness, owner, (feed_id, epoch + shift)) == ([], [], [])
    assert harness.lease(feed) == before


# -- release -----------------------------------------------------------------------------------------


def test_a_report_tells_of_failures_dead_letters_and_the_sink(harness: Harness) -> None:
    worker, feed, key = harness.running()
    said = progress(
        key,
        dead_letters=30,
        dead_per_s=30.0,
        failures=4,
        dead_letter_error="no number",
        sink_error="table gone",
    )
    harness.store.leases.report(worker.id, [said])
    lease = harness.lease(feed)
    assert (lease.failures, lease.dead_letter_error, lease.sink_error) == (4, "no number", "table gone")
    assert lease.dead_per_s == 30.0
    assert lease.dead_letter_at is not None
    harness.store.leases.report(worker.id, [progress(key, records=3, failures=0)])
    lease = harness.lease(feed)
    assert (lease.failures, lease.sink_error, lease.dead_letter_error) == (0, None, "no number")
    harness.store.leases.report(worker.id, [progress(key, failures=2)])
    harness.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, attempts=1)])
    again = harness.assign(feed, worker)
    (claim,) = harness.store.leases.claim(worker.id, [again])
    assert (claim.failures, claim.quarantined) == (2, False)


@pytest.mark.parametrize(
    ("edit", "remembered"),
    [({"source": {"url": "tcp://127.0.0.1:9"}}, False), ({"weight": 3.0}, True)],
    ids=["source", "weight"],
)
def test_what_failed_under_another_declaration_is_forgotten(
    harness: Harness, edit: dict[str, Any], *, remembered: bool
) -> None:
    worker, feed, key = harness.running()
    harness.store.leases.report(worker.id, [progress(key, failures=4, noticed={"cursor": "none"})])
    harness.store.feeds.edit(feed.spec.model_copy(update=edit))
    harness.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, attempts=3)])
    again = harness.assign(feed, worker)
    (claim,) = harness.store.leases.claim(worker.id, [again])
    lease = harness.lease(feed)
    assert (claim.failures, claim.attempts) == (lease.failures, lease.attempts)
    assert claim.failures == (4 if remembered else 0)
    assert lease.noticed == ({"cursor": "none"} if remembered else None)


def test_a_release_makes_the_lease_idle_and_says_why(harness: Harness) -> None:
    worker, feed, key = harness.running()
    harness.store.leases.report(worker.id, [progress(key, stalled=True)])
    released = Release(*key, Reason.BACKOFF, retry_in_s=30.0, attempts=5, error="connection refused")
    assert harness.store.leases.release(worker.id, [released]) == [key]
    lease = harness.lease(feed)
    assert (lease.state, lease.worker_id, lease.reason) == (LeaseState.IDLE, None, Reason.BACKOFF)
    assert (lease.connected, lease.stalled, lease.attempts) == (False, False, 5)
    assert lease.epoch == key[1], "only an assignment grows the epoch"
    assert lease.last_error == "connection refused"
    assert lease.last_error_at is not None
    assert lease.due_at is not None
    assert abs(lease.due_at - lease.last_error_at - timedelta(seconds=30)) < timedelta(seconds=0.1)


def test_a_failure_of_a_declaration_edited_meanwhile_does_not_outlive_the_edit(harness: Harness) -> None:
    worker, feed, key = harness.running()
    harness.store.feeds.edit(spec(source={"url": "tcp://127.0.0.1:7002"}))
    harness.absorb_edits()
    harness.store.leases.release(worker.id, [Release(*key, Reason.FAILED, 600, error="the old option")])
    _, sent = harness.reconcile()
    assert [a.feed_id for a in sent] == [feed.id]


def test_an_edit_starts_a_failed_feed_at_once(harness: Harness) -> None:
    worker, feed, key = harness.running()
    failed = Release(*key, Reason.FAILED, retry_in_s=600, error="bad option", attempts=9)
    harness.store.leases.release(worker.id, [failed])
    assert harness.reconcile()[1] == []
    harness.elapse(100)
    send_heartbeat(harness.store, worker.id, worker.load, ttl_s=60)
    assert harness.reconcile(sweep=True)[1] == []
    harness.store.feeds.edit(spec(weight=2.0))
    (again,) = harness.reconcile()[1]
    assert again.key == (feed.id, key[1] + 1)
    (claim,) = harness.store.leases.claim(worker.id, [again.key])
    assert (claim.has_failed, claim.attempts, claim.is_new_here) == (False, 0, True)


# -- report ------------------------------------------------------------------------------------------


def test_reports_add_up_and_show_the_newest_state(harness: Harness) -> None:
    worker, feed, key = harness.running()
    first = progress(key, records=10, bytes=100, dead_letters=1, cursor={"seq": 10}, attempts=2)
    second = progress(key, records=5, bytes=50, cursor=[15, "ü", None], connected=False, stalled=True)
    assert harness.store.leases.report(worker.id, [first]).held == [key]
    assert harness.store.leases.report(worker.id, [second]).held == [key]
    lease = harness.lease(feed)
    assert (lease.records_total, lease.bytes_total, lease.dead_letters_total) == (15, 150, 1)
    assert lease.cursor == [15, "ü", None]
    assert (lease.connected, lease.stalled, lease.attempts) == (False, True, 0)


def test_dead_letters_are_counted_as_long_as_they_are_there(harness: Harness) -> None:
    worker, feed, key = harness.running()
    gone = partial(harness.store.feeds.dead_letters_gone, feed.name, EventKind.DEAD_LETTERS_REPLAYED)

    def there() -> tuple[int, int]:
        lease = harness.lease(feed)
        return lease.dead_letters, lease.dead_letters_total

    harness.store.leases.report(worker.id, [progress(key, dead_letters=20)])
    gone({"landed": 19}, gone=19, are_left=True)
    assert there() == (1, 20)
    # Three of these were not reported yet.
    gone({"landed": 4}, gone=4, are_left=False)
    assert there()[1] == 20
    harness.store.leases.report(worker.id, [progress(key, dead_letters=3)])
    assert there() == (0, 23)
    harness.store.leases.report(worker.id, [progress(key, dead_letters=5)])
    # Somebody has deleted rows of the table.
    gone({"landed": 0}, gone=0, are_left=False)
    assert there() == (0, 28)
    told = [e for e in events_of(harness.store, feed.name) if e.kind == EventKind.DEAD_LETTERS_REPLAYED]
    assert sum(event.detail["landed"] * event.count for event in told) == 23


def test_the_time_of_the_last_record_is_on_the_databases_clock(harness: Harness) -> None:
    worker, feed, key = harness.running()
    harness.elapse(20)
    harness.store.leases.report(worker.id, [progress(key, last_record_ago_s=5.0)])
    harness.store.leases.report(worker.id, [progress(key, last_record_ago_s=None)])
    lease = harness.lease(feed)
    assert lease.last_record_at is not None
    assert lease.running_since is not None
    since = (lease.last_record_at - lease.running_since).total_seconds()
    assert since == pytest.approx(15, abs=5)


@pytest.mark.parametrize(
    "cursor",
    [None, 0, "x", {"k\x00": ["\x00", "\ud800"]}, {"deep": [{"er": 1.5}]}, 10**30, "\u2028", [float("nan")]],
    ids=ascii,
)
def test_no_cursor_or_text_of_one_feed_holds_up_the_report_of_another(harness: Harness, cursor: JSON) -> None:
    worker = harness.worker()
    odd, plain = harness.feed("odd"), harness.feed("plain")
    keys = [harness.run(odd, worker), harness.run(plain, worker)]
    said = dict.fromkeys(("error", "dead_letter_error", "sink_error", "event_fault"), UNSTORABLE)
    noticed, rewind = {UNSTORABLE: UNSTORABLE}, Rewind("default", cursor, UNSTORABLE)
    bad = progress(keys[0], cursor=cursor, noticed=noticed, rewind=rewind, **said)
    assert sorted(harness.store.leases.report(worker.id, [bad, progress(keys[1], cursor=7)]).held) == sorted(
        keys
    )
    assert harness.lease(plain).cursor == 7
    assert harness.lease(odd).last_error == "half \ufffd, NUL \ufffd"


def test_what_is_noticed_is_told_once_and_taken_back(harness: Harness) -> None:
    worker, feed, key = harness.running()
    noticed: list[dict[str, str | None]] = [
        {"cursor": None},
        {"cursor": "none", "header": "odd"},
        {"cursor": None},
        {"cursor": "none"},
        {"cursor": None, "header": None},
    ]
    told = []
    for one in noticed:
        harness.store.leases.report(worker.id, [progress(key, noticed=one)])
        told.append(harness.lease(feed).noticed)
    both = {"cursor": "none", "header": "odd"}
    assert told == [None, both, {"header": "odd"}, both, None]
    found = harness.store.history.before(EventFilter((EventKind.FEED_NOTICED,)))
    assert [event.event.detail for event in reversed(found)] == [both, {"cursor": "none"}]


# -- stop requests, what is held, raising the epoch --------------------------------------------------


def test_what_is_to_stop_cannot_be_claimed_again(harness: Harness) -> None:
    worker, feed, key = harness.running()
    harness.stop(feed)
    assert harness.store.leases.claim(worker.id, [key]) == []
    assert harness.lease(feed).state is LeaseState.STOPPING


@pytest.mark.parametrize(("sink_epoch", "next_epoch"), [(41, 42), (1, 2), (0, 2), (2**63 - 1, 2)])
def test_the_owner_after_one_that_was_fenced_gets_an_epoch_above_that_of_the_sink(
    harness: Harness, sink_epoch: int, next_epoch: int
) -> None:
    worker, feed, key = harness.running()
    release = Release(*key, Reason.FENCED, sink_epoch=sink_epoch)
    assert harness.store.leases.release(worker.id, [release]) == [key]
    raised = [event for event in events_of(harness.store, feed.name) if event.kind == EventKind.LEASE_RAISED]
    assert len(raised) == (sink_epoch == 41)
    assert harness.assign(feed, worker) == (feed.id, next_epoch)


def test_a_claim_says_whether_the_owner_was_lost_a_moment_ago_beside_this_worker(harness: Harness) -> None:
    feed, lost = harness.feed(), harness.worker("a")
    beside = harness.worker("b", ttl_s=10_000)
    harness.elapse(1)
    send_heartbeat(harness.store, lost.id, Load(), ttl_s=TTL_S)

    def claimed(worker: Worker) -> Claim:
        (claim,) = harness.store.leases.claim(worker.id, [harness.assign(feed, worker)])
        return claim

    assert not claimed(lost).after_loss, "it is new"
    harness.elapse(1)
    harness.expire_workers(lost)
    after = claimed(beside)
    assert after.after_loss
    harness.elapse(1)
    harness.store.leases.release(beside.id, [Release(*after.key, Reason.RELEASED)])
    assert not claimed(beside).after_loss, "that was another epoch"


def test_when_a_whole_fleet_was_lost_and_starts_anew_no_claim_is_one_after_a_loss(harness: Harness) -> None:
    feed, lost = harness.feed(), harness.worker("a")
    harness.run(feed, lost)
    harness.elapse(1)
    newcomer = harness.worker("b", ttl_s=10_000)
    harness.expire_workers(lost)
    (claim,) = harness.store.leases.claim(newcomer.id, [harness.assign(feed, newcomer)])
    assert not claim.after_loss


def test_what_had_no_place_for_long_after_a_loss_is_in_no_hurry(harness: Harness) -> None:
    feed, lost, beside = harness.feed(), harness.worker("a"), harness.worker("b", ttl_s=10_000)
    harness.elapse(1)
    send_heartbeat(harness.store, lost.id, Load(), ttl_s=TTL_S)
    harness.run(feed, lost)
    harness.elapse(1)
    harness.expire_workers(lost)
    harness.elapse(31)
    (claim,) = harness.store.leases.claim(beside.id, [harness.assign(feed, beside)])
    assert not claim.after_loss
