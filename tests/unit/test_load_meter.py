"""What a worker says of itself."""

from __future__ import annotations

import asyncio

import pytest

from feedq.core.model import Progress
from feedq.worker.load_meter import SMOOTHED_OVER_S, LoadMeter, SmoothedRate


def landed(records: int, size: int) -> Progress:
    return Progress(1, 1, records, size, 0, None, None, connected=True, stalled=False, attempts=0, error=None)


@pytest.mark.parametrize("interval_s", [0.05, 2.0, 30.0])
def test_a_steady_rate_is_found_after_a_while_whatever_the_interval_of_the_heartbeats(
    interval_s: float,
) -> None:
    rate = SmoothedRate(now=100.0)
    steps = round(10 * SMOOTHED_OVER_S / interval_s)
    for n in range(1, steps + 1):
        found = rate.per_s(round(500 * n * interval_s), now=100.0 + n * interval_s)
    assert found == pytest.approx(500, rel=0.01)


def test_a_burst_counts_for_little_and_is_forgotten() -> None:
    rate = SmoothedRate(now=0.0)
    assert rate.per_s(10_000, now=1.0) < 10_000 / 30
    assert rate.per_s(10_000, now=1.0 + 10 * SMOOTHED_OVER_S) < 0.1


def test_two_calls_at_one_moment_and_an_interval_of_a_day_are_no_trouble() -> None:
    rate = SmoothedRate(now=5.0)
    assert rate.per_s(100, now=5.0) == 0
    assert rate.per_s(100, now=5.0 + 86_400) == pytest.approx(100 / 86_400)


def test_what_was_reported_of_feeds_is_in_the_load() -> None:
    loop = asyncio.new_event_loop()
    load_meter = LoadMeter(loop)
    load_meter.count([landed(1_000, 50_000), landed(1_000, 50_000)])
    load = load_meter.load(feeds=2)
    assert load.feeds == 2
    assert load.rows_per_s > 0
    assert load.bytes_per_s == pytest.approx(50 * load.rows_per_s, rel=0.01)
    loop.close()
