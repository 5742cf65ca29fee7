"""Whole fleets ticked by hand: workers, a source and a sink beside the real control database."""

from tests.fakes.clock import ManualClock, SkewedClock
from tests.fakes.fleet import FakeFleet, InvariantBroken
from tests.fakes.servers import FakeBroker, FakeSink, FakeSource
from tests.fakes.worker import FakeWorker

__all__ = [
    "FakeBroker",
    "FakeFleet",
    "FakeSink",
    "FakeSource",
    "FakeWorker",
    "InvariantBroken",
    "ManualClock",
    "SkewedClock",
]
