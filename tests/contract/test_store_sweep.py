"""The store's contract: the sweep, which heals what was lost or changed by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from feedq.core.model import LeaseState, Reason, Release, TargetState
from feedq.telemetry.logs import EventKind
from tests.contract.harness import Harness, spec


def test_a_sweep_is_due_once_an_interval(harness: Harness) -> None:
    def is_due(interval_s: float) -> bool:
        with harness.store.fleet.reconcile_pass() as p:
            assert p is not None
            return p.sweep_is_due(interval_s=interval_s)

    assert not is_due(60)
    assert is_due(0)
    harness.elapse(61)
    assert not is_due(86_400)
    assert is_due(60)
    harness.reconcile(sweep=True)
    assert not is_due(60)


def test_a_deleted_lease_row_is_made_anew_by_the_sweep(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    harness.delete_lease(feed.id)
    assert harness.store.feeds.view(feed.name).lease.state is LeaseState.IDLE
    assert harness.reconcile()[1] == [], "an ordinary pass does not look for it"
    report, sent = harness.reconcile(sweep=True)
    assert report.repaired == 1
    assert [a.feed_id for a in sent] == [feed.id]


def test_a_sweep_finds_nothing_in_a_fleet_that_adds_up(harness: Harness) -> None:
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
    before = [v.lease for v in harness.store.feeds.views()]
    with harness.store.fleet.reconcile_pass() as p:
        assert p is not None
        assert p.sweep() == 0
    assert [v.lease for v in harness.store.feeds.views()] == before
    assert harness.dirty_feeds() == 0


def test_history_is_trimmed_after_its_retention(harness: Harness) -> None:
    feed = harness.feed()
    harness.elapse(timedelta(days=20).total_seconds())
    harness.store.feeds.restart(feed.name)
    harness.reconcile(sweep=True)
    assert [e.kind for e in harness.store.feeds.events(feed.name)] == [EventKind.FEED_RESTARTED]


@pytest.mark.parametrize("reason", [None, "paused"])
def test_a_lease_that_was_set_idle_by_hand_is_placed_again(harness: Harness, reason: str | None) -> None:
    store = harness.store
    harness.worker("w1")
    store.feeds.add(spec())
    _, sent = harness.reconcile()
    store.leases.claim(sent[0].worker_id, [sent[0].key])
    harness.execute("UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = %s", reason)
    _, unswept = harness.reconcile()
    assert unswept == []
    report, again = harness.reconcile(sweep=True)
    if not again:
        _, again = harness.reconcile()
    assert report.repaired == 1
    assert [one.epoch for one in again] == [2]
    lease = store.feeds.view("acme/orders").lease
    assert (lease.state, lease.reason) == (LeaseState.ASSIGNED, None)


FAILED_BY_HAND = "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'failed', retry_at = "


def test_a_failed_feed_is_no_matter_for_the_sweep(harness: Harness) -> None:
    harness.worker("w1")
    harness.store.feeds.add(spec())
    harness.reconcile()
    harness.execute(f"{FAILED_BY_HAND} clock_timestamp() + interval '9 min'")
    report, sent = harness.reconcile(sweep=True)
    assert (report.repaired, sent) == (0, [])
    assert harness.store.feeds.view("acme/orders").lease.reason is Reason.FAILED


def test_a_failed_feed_that_nobody_would_look_at_again_is_started_by_the_sweep(
    harness: Harness,
) -> None:
    """As somebody may leave it who changes leases by hand."""
    harness.worker("w1")
    feed = harness.store.feeds.add(spec())
    harness.reconcile()
    harness.execute(f"{FAILED_BY_HAND} NULL")
    assert harness.reconcile()[1] == []
    assert [a.feed_id for a in harness.reconcile(sweep=True)[1]] == [feed.id]
