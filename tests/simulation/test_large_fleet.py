"""A simulated fleet of documented size stays even, and takes seconds."""

from __future__ import annotations

from time import perf_counter

from feedq.settings import Settings
from feedq.simulate import build_scenario, simulate


def test_fifty_thousand_feeds_take_seconds() -> None:
    described = {
        "events": ["60s kill 1", "120s join 1"],
        "feeds": {"count": 50_000, "hosts": 20},
        "workers": {"count": 50, "capacity": 1200},
        "for": "1h",
    }
    began = perf_counter()
    unpaced = Settings(connects_per_s=0, host_connects_per_s={})
    report = simulate(build_scenario(described, origin="test"), unpaced)
    assert report.total.spread_after == (1000, 1000)
    assert perf_counter() - began < 60
