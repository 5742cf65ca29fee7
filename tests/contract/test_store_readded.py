"""A feed that was removed and declared anew under its old name, over both stores."""

from __future__ import annotations

from feedq.core.model import LeaseState, Reason, Release
from tests.contract.harness import Harness, spec


def test_a_feed_declared_anew_waits_until_the_removed_one_has_let_go(harness: Harness) -> None:
    store = harness.store
    worker = harness.worker("w1")
    harness.worker("w2")
    old = store.feeds.add(spec())
    _, sent = harness.reconcile()
    store.leases.claim(sent[0].worker_id, [sent[0].key])

    store.feeds.remove("acme/orders")
    new = store.feeds.add(spec())
    other = store.feeds.add(spec("acme/other"))
    assert new.id != old.id
    _, given = harness.reconcile()
    assert [one.feed_id for one in given] == [other.id], "two would stream from one source"
    assert store.leases.stop_requests(sent[0].worker_id)[0].reason is Reason.REMOVED

    store.leases.release(sent[0].worker_id, [Release(*sent[0].key, Reason.REMOVED)])
    _, given = harness.reconcile()
    assert [one.feed_id for one in given] == [new.id]
    views = {view.feed.id: view.lease.state for view in store.feeds.views()}
    assert views == {new.id: LeaseState.ASSIGNED, other.id: LeaseState.ASSIGNED}
    assert worker.id in {view.worker.id for view in store.workers.views()}


def test_a_feed_declared_anew_starts_when_the_worker_of_the_removed_one_is_gone(harness: Harness) -> None:
    store = harness.store
    worker = harness.worker("w1")
    store.feeds.add(spec())
    _, sent = harness.reconcile()
    store.leases.claim(worker.id, [sent[0].key])
    store.feeds.remove("acme/orders")
    new = store.feeds.add(spec())
    harness.reconcile()
    harness.worker("w2")
    store.workers.leave(worker.id)
    _, given = harness.reconcile()
    assert [one.feed_id for one in given] == [new.id]
