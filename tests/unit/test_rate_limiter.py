"""Token buckets: the rate holds on average, whatever the batches are like."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.limits import BURST_S, RateLimits, Throttle, TokenBucket

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
    throttle = Throttle(RateLimits(bytes_per_s=rate_per_s), now=0.0)
    throttle.change_share(share, now=0.0)
    turn = throttle.take(rows=1, size=2**40, now=0.0)
    wait_s = throttle.wait_s(turn, now=0.0)
    assert wait_s > 1e300 if rate_per_s < 1 else wait_s < 2**40 / (rate_per_s * share)
