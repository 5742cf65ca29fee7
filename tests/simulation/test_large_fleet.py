"""A simulated fleet of some size stays even, and takes seconds."""

from __future__ import annotations

from time import process_time

from feedq.settings import Settings
from feedq.simulate import build_scenario, simulate


def test_twenty_thousand_feeds_take_seconds() -> None:
    described = {
        "events": ["60s kill 1", "120s join 1"],
        "feeds": {"count": 20_000, "hosts": 20},
        "workers": {"count": 50, "capacity": 500},
        "for": "10m",
    }
    began = process_time()
    unpaced = Settings(connects_per_s=0, host_connects_per_s={})
    report = simulate(build_scenario(described, origin="test"), unpaced)
    assert report.total.spread_after == (400, 400)
    # Ten on an idle machine. Of the processor: another program's time counts for nothing.
    assert process_time() - began < 60
