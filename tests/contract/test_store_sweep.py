"""The store's contract: the sweep, which trims, and what people change by hand, which triggers notice."""

from __future__ import annotations

from datetime import timedelta

import pytest

from feedq.core.model import LeaseState, Reason, Release, TargetState
from feedq.telemetry.logs import EventKind
from tests.asking import events_of
from tests.contract.harness import Harness


def test_a_sweep_is_due_once_an_interval(harness: Harness) -> None:
    def is_due(interval_s: float) -> bool:
        with harness.in_a_pass() as p:
            return p.sweep_is_due(interval_s=interval_s)

    assert not is_due(60)
    assert is_due(0)
    harness.elapse(61)
    assert not is_due(86_400)
    assert is_due(60)
    harness.reconcile(sweep=True)
    assert not is_due(60)


def test_a_deleted_lease_row_is_made_anew(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    assert harness.wakes(lambda: harness.delete_lease(feed.id))
    assert harness.store.feeds.view(feed.name).lease.state is LeaseState.IDLE
    assert [a.feed_id for a in harness.reconcile()[1]] == [feed.id]


def test_what_the_protocol_leaves_behind_is_not_looked_at_again(harness: Harness) -> None:
    worker = harness.worker()
    names = ("new", "paused", "failed", "backoff", "running", "assigned", "stopping")
    feeds = {name: harness.feed(name) for name in names}
    keys = {n: harness.run(feeds[n], worker) for n in ("failed", "backoff", "running", "stopping")}
    harness.store.leases.release(
        worker.id,
        [
            Release(*keys["failed"], Reason.FAILED),
            Release(*keys["backoff"], Reason.BACKOFF, retry_in_s=1000, attempts=3),
        ],
    )
    harness.stop(feeds["stopping"])
    harness.store.feeds.set_target("paused", TargetState.PAUSED)
    harness.assign(feeds["assigned"], worker)
    assert harness.dirty_feeds() == 0
    harness.store.leases.release(worker.id, [Release(*keys["stopping"], Reason.PAUSED)])
    harness.expire_workers(worker)
    assert harness.dirty_feeds() == 0


def test_history_is_trimmed_after_its_retention(harness: Harness) -> None:
    feed = harness.feed()
    harness.elapse(timedelta(days=20).total_seconds())
    harness.store.feeds.restart(feed.name)
    harness.reconcile(sweep=True)
    assert [e.kind for e in events_of(harness.store, feed.name)] == [EventKind.FEED_RESTARTED]


@pytest.mark.parametrize("reason", [None, "paused", "failed"])
def test_a_lease_that_was_set_idle_by_hand_is_placed_again(harness: Harness, reason: str | None) -> None:
    harness.worker("w1")
    feed = harness.feed()
    harness.reconcile()
    by_hand = "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, due_at = NULL, reason = %s"
    assert harness.wakes(lambda: harness.execute(by_hand, reason))
    sent = harness.reconcile()[1] + harness.reconcile()[1]
    assert [one.epoch for one in sent] == [2]
    assert (harness.lease(feed).state, harness.lease(feed).reason) == (LeaseState.ASSIGNED, None)


def test_a_failed_feed_that_is_to_be_tried_later_is_left_alone(harness: Harness) -> None:
    feed = harness.feed()
    harness.run(feed, harness.worker())
    harness.execute(
        "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'failed', "
        "due_at = clock_timestamp() + interval '9 min'"
    )
    assert harness.reconcile(sweep=True)[1] == []
    assert harness.lease(feed).reason is Reason.FAILED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('source = \'{"url": "tcp://127.0.0.1:7002"}\'', Reason.EDITED),
        ("target_state = 'paused'", Reason.PAUSED),
        ("removed_at = clock_timestamp()", Reason.REMOVED),
    ],
)
def test_a_feed_that_was_changed_by_hand_is_followed(harness: Harness, change: str, reason: Reason) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    assert harness.wakes(lambda: harness.execute(f"UPDATE feedq.feed SET {change}"))
    harness.reconcile()
    (stop,) = harness.store.leases.stop_requests(worker.id)
    assert stop.reason is reason


def test_a_weight_that_was_changed_by_hand_is_another_version_and_no_restart(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    harness.execute("UPDATE feedq.feed SET weight = 3")
    harness.reconcile()
    edited = harness.store.feeds.view(feed.name).feed
    assert (edited.generation, edited.stream_generation) == (feed.generation + 1, feed.generation)
    assert harness.store.leases.stop_requests(worker.id) == []
