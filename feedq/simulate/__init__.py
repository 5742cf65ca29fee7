"""Placement, failover, deploys and joins on paper: what a fleet would do, in seconds and without servers.

The decisions are the real ones: `feedq.worker.core` decides for each worker, `feedq.control` makes the passes, and
`feedq.placement` says who gets which feed; `feedq.worker.connect_limiter` says who may dial when, `feedq.backoff`
when a source is tried again, and the numbers come from `feedq.settings`. What takes time in a real fleet takes the
time that `delays` gives it.
"""

from feedq.simulate.delays import Timing
from feedq.simulate.event_queue import simulate
from feedq.simulate.report import Phase, SimulationReport
from feedq.simulate.scenario import Scenario, build_scenario, parse_scenario

__all__ = ["Phase", "Scenario", "SimulationReport", "Timing", "build_scenario", "parse_scenario", "simulate"]
