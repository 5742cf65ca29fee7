"""What a person did to the rows by hand, on PostgreSQL: the sweep makes it right again."""

from __future__ import annotations

import pytest

from feedq.core.model import LeaseState, Reason
from tests.contract.harness import PostgresHarness, spec

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("reason", [None, "paused"])
def test_a_lease_that_was_set_idle_by_hand_is_placed_again(
    postgres_harness: PostgresHarness, reason: str | None
) -> None:
    store = postgres_harness.store
    postgres_harness.worker("w1")
    store.feeds.add(spec())
    _, sent = postgres_harness.reconcile()
    store.leases.claim(sent[0].worker_id, [sent[0].key])
    postgres_harness.execute("UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = %s", reason)
    _, unswept = postgres_harness.reconcile()
    assert unswept == []
    report, again = postgres_harness.reconcile(sweep=True)
    if not again:
        _, again = postgres_harness.reconcile()
    assert report.repaired == 1
    assert [one.epoch for one in again] == [2]
    lease = store.feeds.view("acme/orders").lease
    assert (lease.state, lease.reason) == (LeaseState.ASSIGNED, None)


FAILED_BY_HAND = "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'failed', retry_at = "


def test_a_failed_feed_is_no_matter_for_the_sweep(postgres_harness: PostgresHarness) -> None:
    postgres_harness.worker("w1")
    postgres_harness.store.feeds.add(spec())
    postgres_harness.reconcile()
    postgres_harness.execute(f"{FAILED_BY_HAND} clock_timestamp() + interval '9 min'")
    report, sent = postgres_harness.reconcile(sweep=True)
    assert (report.repaired, sent) == (0, [])
    assert postgres_harness.store.feeds.view("acme/orders").lease.reason is Reason.FAILED


def test_a_failed_feed_that_nobody_would_look_at_again_is_started_by_the_sweep(
    postgres_harness: PostgresHarness,
) -> None:
    """As somebody may leave it who changes leases by hand."""
    postgres_harness.worker("w1")
    feed = postgres_harness.store.feeds.add(spec())
    postgres_harness.reconcile()
    postgres_harness.execute(f"{FAILED_BY_HAND} NULL")
    assert postgres_harness.reconcile()[1] == []
    assert [a.feed_id for a in postgres_harness.reconcile(sweep=True)[1]] == [feed.id]
