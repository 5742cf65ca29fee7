"""The store's contract: how many feeds of a tenant run, which its rate limits are shared by."""

from __future__ import annotations

from feedq.core.model import Reason, Release
from tests.contract.harness import Harness


def test_running_feeds_are_counted_by_tenant_over_all_workers(harness: Harness) -> None:
    workers = [harness.worker(), harness.worker()]
    for number, tenant in enumerate(("acme", "acme", "beta", "")):
        feed = harness.feed(f"feed-{number}", tenant=tenant)
        worker = workers[number % 2]
        harness.store.leases.claim(worker.id, [harness.assign(feed, worker)])
    asked = ["acme", "beta", "nobody"]
    assert harness.store.leases.running_of(asked) == {"acme": 2, "beta": 1, "nobody": 0}
    assert harness.store.leases.running_of([]) == {}


def test_a_feed_that_was_let_go_does_not_count(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed(tenant="acme")
    key = harness.assign(feed, worker)
    assert harness.store.leases.running_of(["acme"]) == {"acme": 0}
    harness.store.leases.claim(worker.id, [key])
    assert harness.store.leases.running_of(["acme"]) == {"acme": 1}
    harness.store.leases.release(worker.id, [Release(*key, Reason.RELEASED)])
    assert harness.store.leases.running_of(["acme"]) == {"acme": 0}
