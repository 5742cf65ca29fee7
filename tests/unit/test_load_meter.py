"""What a worker says of itself."""

from __future__ import annotations

import asyncio

import pytest

from feedq.core.model import Progress
from feedq.worker.load_meter import LoadMeter


def landed(records: int, size: int) -> Progress:
    return Progress(1, 1, records, size, 0, None, None, connected=True, stalled=False, attempts=0, error=None)


def test_what_was_reported_of_feeds_is_in_the_load() -> None:
    loop = asyncio.new_event_loop()
    load_meter = LoadMeter(loop)
    load_meter.count([landed(1_000, 50_000), landed(1_000, 50_000)])
    load = load_meter.load(feeds=2)
    assert load.feeds == 2
    assert load.rows_per_s > 0
    assert load.bytes_per_s == pytest.approx(50 * load.rows_per_s, rel=0.01)
    loop.close()
