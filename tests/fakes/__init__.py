"""Real implementations that need no server, for the tests.

`MemoryStore` is the control database on dicts with a `ManualClock`; `FakeFleet` puts whole workers, a source and a
sink beside it and ticks them by hand.
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
