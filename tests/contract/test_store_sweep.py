"""The store's contract: the sweep, which heals what was lost or changed by hand."""

from __future__ import annotations

from datetime import timedelta

from feedq.core.model import LeaseState, Reason, Release, TargetState
from feedq.telemetry.logs import EventKind
from tests.contract.harness import Harness


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
