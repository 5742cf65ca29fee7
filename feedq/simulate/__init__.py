"""Placement, failover, deploys and joins on paper: what a fleet would do, in seconds and without servers.

The decisions are the real ones: `feedq.placement` says who gets which feed and which feeds move, `feedq.lease`
what may happen to a lease, `feedq.worker.connect_limiter` who may dial when, `feedq.backoff` when a source is
tried again, and the numbers come from `feedq.settings`. What takes time in a real fleet takes the time that
`timing` gives it.
"""

from feedq.simulate.delays import Timing
from feedq.simulate.event_queue import simulate
from feedq.simulate.report import Phase, SimulationReport
from feedq.simulate.scenario import Scenario, build_scenario, parse_scenario

__all__ = ["Phase", "Scenario", "SimulationReport", "Timing", "build_scenario", "parse_scenario", "simulate"]
