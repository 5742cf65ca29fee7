"""Test doubles that are real implementations: for feedq's own tests, and for those of its users.

`MemoryStore` is the control database on dicts with a `ManualClock`; `PaperFleet` puts whole workers, a
source and a sink on paper and ticks them by hand. `feedq.testing.connector_conformance` is the suite that every
connector passes; it is imported by itself, since it needs pytest. Nothing in feedq imports this package.
"""

from feedq.testing.clock import ManualClock, SkewedClock
from feedq.testing.fleet import InvariantBroken, PaperFleet
from feedq.testing.memory import MemoryStore
from feedq.testing.paper import PaperBroker, PaperSink, PaperSource
from feedq.testing.worker import PaperWorker

__all__ = [
    "InvariantBroken",
    "ManualClock",
    "MemoryStore",
    "PaperBroker",
    "PaperFleet",
    "PaperSink",
    "PaperSource",
    "PaperWorker",
    "SkewedClock",
]
