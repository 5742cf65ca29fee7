"""Buckets of what a feed landed, made of its counters at moments of the past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from feedq.control.store.landed_counts import CountedFeed, LandedBucket, landed_buckets

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def count(minute: float, records: int, dead: int = 0) -> CountedFeed:
    return CountedFeed(NOON + timedelta(minutes=minute), records, dead, 1.0)


def rows(counts: list[CountedFeed], *, minute: float, buckets: int = 4) -> list[int | None]:
    now = NOON + timedelta(minutes=minute)
    return [one.rows for one in landed_buckets(counts, now=now, bucket_s=60, buckets=buckets)]


def test_a_bucket_is_what_a_counter_grew_by() -> None:
    counts = [count(0, 5), count(1, 12), count(2, 12), count(3.5, 112, dead=3)]
    now = NOON + timedelta(minutes=3.6)
    found = landed_buckets(counts, now=now, bucket_s=60, buckets=3)
    assert found == [
        LandedBucket(NOON, 7, 7 / 60, 0, 1.0),
        LandedBucket(NOON + timedelta(minutes=1), 0, 0.0, 0, 1.0),
        LandedBucket(NOON + timedelta(minutes=2), 100, 100 / 90, 3, 1.0),
    ]


def test_a_minute_that_was_missed_is_a_gap_and_no_spike() -> None:
    assert rows([count(0, 0), count(1, 10), count(3, 30), count(4, 40)], minute=4.2) == [10, None, None, 10]


def test_the_minute_that_is_not_counted_yet_is_left_out() -> None:
    counts = [count(0, 0), count(1, 10), count(2, 20)]
    assert rows(counts, minute=3.01, buckets=2) == rows(counts, minute=2.99, buckets=2) == [10, 10]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2**62)), max_size=80), st.integers(0, 60))
def test_no_bucket_is_negative_and_their_number_is_fixed(found: list[tuple[int, int]], minute: int) -> None:
    counted = rows([count(m, records) for m, records in sorted(found)], minute=minute, buckets=30)
    assert len(counted) == 30
    assert all(one is None or one >= 0 for one in counted)
