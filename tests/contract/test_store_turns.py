"""Turns of feeds without a place, selectors, measured loads, and what passes remember, on both stores."""

from __future__ import annotations

from math import exp
from time import monotonic

import pytest

from feedq.core.model import Load, Reason, Release
from tests.contract.harness import TTL_S, Harness, progress


def test_feeds_without_a_place_take_turns_and_keep_no_others_from_theirs(harness: Harness) -> None:
    stuck = [harness.feed(f"stuck{i}") for i in range(5)]
    harness.reconcile()
    assert {harness.lease(feed).reason for feed in stuck} == {Reason.NO_CAPACITY}
    fresh = harness.feed("fresh")
    harness.absorb_edits()

    def page() -> list[int]:
        with harness.in_a_pass() as p:
            return [w.feed_id for w in p.waiting(limit=3)]

    ids = [feed.id for feed in stuck]
    assert page() == [ids[0], ids[1], fresh.id]
    assert page() == [ids[2], ids[3], fresh.id]
    assert page() == [ids[0], ids[4], fresh.id]


def test_rates_are_smoothed_over_half_a_minute(harness: Harness) -> None:
    worker, feed = harness.worker(ttl_s=999), harness.feed()
    key = harness.run(feed, worker)
    harness.elapse(10)
    harness.store.leases.report(worker.id, [progress(key, records=100, bytes=1000)])
    first, began = harness.lease(feed), monotonic()
    assert (first.rows_per_s, first.bytes_per_s) == pytest.approx((10, 100), rel=0.1)
    harness.elapse(30)
    harness.store.leases.report(worker.id, [progress(key, records=0, bytes=0)])
    # On a busy machine more time has passed than was let pass: the database's clock is a real one.
    late_s = monotonic() - began
    assert 0.9 * 10 * exp(-(30 + late_s) / 30) <= harness.lease(feed).rows_per_s <= 1.1 * 10 * exp(-1)
    harness.elapse(100_000)
    harness.store.leases.report(worker.id, [progress(key, records=0, bytes=0)])
    assert harness.lease(feed).rows_per_s == pytest.approx(0, abs=1e-6)
    for _ in range(3):
        harness.store.leases.report(worker.id, [progress(key, records=1, bytes=1)])
    assert 0 < harness.lease(feed).rows_per_s < 1, "reports in quick succession are no rate of thousands"


def test_a_measured_feed_weighs_what_it_lands_beside_the_others(harness: Harness) -> None:
    worker = harness.worker(ttl_s=9_999)
    busy, quiet, unheard = (harness.feed(n, weight=2.0) for n in ("busy", "quiet", "unheard"))
    keys = [harness.run(feed, worker) for feed in (busy, quiet)]
    harness.run(unheard, worker)
    # So long that what a busy machine takes makes no difference.
    harness.elapse(1_000)
    rows = [progress(key, records=n, bytes=n) for key, n in zip(keys, (50_000, 10_000), strict=True)]
    harness.store.leases.report(worker.id, rows)
    load = Load(rows_per_s=60.0, bytes_per_s=60.0)
    harness.store.workers.heartbeat(worker.id, load, ttl_s=TTL_S)
    harness.candidate(worker)  # the mean is over what workers are known to hold
    with harness.in_a_pass(measured_load=0.5) as p:
        weights = {h.feed_id: h.weight for h in p.movable([worker.id], limit=9)}
        assert p.sweep() == 0
    # The mean feed lands 20 rows a second; these land 50 and 10, and of one nothing is known.
    assert weights == {
        busy.id: pytest.approx(0.5 * 2 + 0.5 * 2.5, abs=0.1),
        quiet.id: pytest.approx(0.5 * 2 + 0.5 * 0.5, abs=0.1),
        unheard.id: 2.0,
    }
    harness.reconcile(measured_load=0.5, sweep=True)
    assert harness.candidate(worker).load == pytest.approx(sum(weights.values()), abs=0.3)
    harness.reconcile(measured_load=0.0, sweep=True)
    assert harness.candidate(worker).load == pytest.approx(6.0), "declared weights count again"


def test_a_backoff_that_is_over_makes_a_pass_due(harness: Harness) -> None:
    worker, feed = harness.worker(ttl_s=999), harness.feed()
    key = harness.run(feed, worker)
    harness.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, retry_in_s=10)])
    assert not harness.is_due()
    harness.elapse(11)
    assert harness.is_due()
    harness.reconcile()
    assert not harness.is_due()
