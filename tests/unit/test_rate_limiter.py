"""Rates and shares: who waits how long, and how much is sent at once."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.limits import BURST_S, MOVES_AT_LEAST, TokenBucket, moves_together
from feedq.core.model import ProgressReport
from feedq.worker.progress_reporter import LoadMeter

RATES = st.floats(min_value=1e-3, max_value=1e12)


@given(
    rate_per_s=RATES,
    steps=st.lists(
        st.tuples(st.floats(min_value=0, max_value=100), st.floats(min_value=0, max_value=1e6)), max_size=30
    ),
)
def test_whoever_waits_as_told_never_exceeds_the_rate_by_more_than_a_burst_and_a_batch(
    rate_per_s: float, steps: list[tuple[float, float]]
) -> None:
    now, taken, largest = 0.0, 0.0, 0.0
    bucket = TokenBucket(rate_per_s, now=now)
    mark = 0.0
    for pause_s, amount in steps:
        now += pause_s
        now += bucket.wait_s(mark, now=now)
        mark = bucket.take(amount, now=now)
        taken, largest = taken + amount, max(largest, amount)
        allowed = rate_per_s * (now + BURST_S) + largest
        assert taken <= allowed * (1 + 1e-6) + 1e-6


@given(rate_per_s=RATES, amount=st.floats(min_value=0, max_value=1e6))
def test_a_debt_is_paid_after_just_the_time_that_was_said(rate_per_s: float, amount: float) -> None:
    bucket = TokenBucket(rate_per_s, now=5.0)
    mark = bucket.take(amount, now=5.0)
    wait_s = bucket.wait_s(mark, now=5.0)
    assert wait_s == pytest.approx(max(0.0, amount / rate_per_s - BURST_S), rel=1e-6, abs=1e-6)
    assert bucket.wait_s(mark, now=5.0 + wait_s) == pytest.approx(0.0, abs=1e-6 * max(1.0, wait_s))


def test_a_source_that_slept_may_catch_up_one_burst_and_no_more() -> None:
    bucket = TokenBucket(10.0, now=0.0)
    assert bucket.wait_s(bucket.take(10.0 * BURST_S, now=3_600.0), now=3_600.0) == 0.0
    assert bucket.wait_s(bucket.take(10.0, now=3_600.0), now=3_600.0) == pytest.approx(1.0)


def test_a_clock_that_stands_still_or_steps_back_gives_nothing_away() -> None:
    bucket = TokenBucket(1.0, now=10.0)
    mark = bucket.take(5.0, now=10.0)
    assert bucket.wait_s(mark, now=3.0) == pytest.approx(4.0)
    assert bucket.wait_s(mark, now=10.0) == pytest.approx(4.0)
    assert bucket.wait_s(mark, now=11.0) == pytest.approx(3.0)


@given(
    rate_per_s=RATES,
    before=st.floats(min_value=0, max_value=1e6),
    after=st.floats(min_value=0, max_value=1e6),
)
def test_nobody_waits_for_what_was_taken_after_him(rate_per_s: float, before: float, after: float) -> None:
    bucket = TokenBucket(rate_per_s, now=0.0)
    mine = bucket.take(before, now=0.0)
    wait_s = bucket.wait_s(mine, now=0.0)
    theirs = bucket.take(after, now=0.0)
    about = partial(pytest.approx, rel=1e-6, abs=1e-6 + 1e-6 / rate_per_s)
    assert bucket.wait_s(mine, now=0.0) == about(wait_s)
    assert bucket.wait_s(theirs, now=0.0) == about(max(0.0, (before + after) / rate_per_s - BURST_S))


@pytest.mark.parametrize("rate_per_s", [5e-324, 1e-300, 1e12, 1e15])
@pytest.mark.parametrize("share", [1.0, 1e-9])
def test_the_smallest_and_the_largest_of_rates_can_be_kept_to(rate_per_s: float, share: float) -> None:
    bucket = TokenBucket(rate_per_s, now=0.0)
    bucket.share(share, now=0.0)
    wait_s = bucket.wait_s(bucket.take(2**40, now=0.0), now=0.0)
    assert wait_s > 1e300 if rate_per_s < 1 else wait_s < 2**40 / (rate_per_s * share)


@pytest.mark.parametrize(
    ("connects_per_s", "hosts", "workers", "together"),
    [
        (500.0, {"*": 200.0}, 3, 33),
        (500.0, {"*": 200.0}, 1, 100),
        (40.0, {"*": 200.0}, 2, 20),
        (500.0, {}, 3, 250),
        (0.0, {"*": 200.0}, 2, 50),
        (500.0, {"*": 200.0}, 1_000, MOVES_AT_LEAST),
        (500.0, {"slow.example.com": 1.0}, 3, 250),
        (0.0, {"*": 0.0}, 3, None),
        (0.0, {}, 0, None),
    ],
)
def test_a_worker_is_sent_what_it_connects_in_half_a_second(
    connects_per_s: float, hosts: dict[str, float], workers: int, together: int | None
) -> None:
    assert moves_together(connects_per_s, hosts, workers) == together


def landed(records: int, size: int) -> ProgressReport:
    return ProgressReport(
        1, 1, records, size, 0, None, None, connected=True, stalled=False, attempts=0, error=None
    )


def test_what_was_reported_of_feeds_is_in_the_load() -> None:
    loop = asyncio.new_event_loop()
    load_meter = LoadMeter(loop)
    load_meter.count([landed(1_000, 50_000), landed(1_000, 50_000)])
    load = load_meter.load(feeds=2)
    assert load.feeds == 2
    assert load.rows_per_s > 0
    assert load.bytes_per_s == pytest.approx(50 * load.rows_per_s, rel=0.01)
    loop.close()
