"""Stands-in for the tests.

`FakeFleet` puts whole workers, a source and a sink beside the real control database and ticks them by hand;
`MemoryStore` is a control database on dicts with a `ManualClock`, for tests that need no server.
"""

from tests.fakes.clock import ManualClock, SkewedClock
from tests.fakes.fleet import FakeFleet, InvariantBroken
from tests.fakes.memory import MemoryStore
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
    "MemoryStore",
    "SkewedClock",
]
