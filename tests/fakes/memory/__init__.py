"""The control database in memory: every interface of `feedq.control.store.base` on dicts, and its faults.

Decisions are those of `feedq.lease`, so what a scenario proves of them holds for PostgreSQL too as far as
the contract suite shows both stores to behave alike. One thread only: who runs when is the test's choice.
"""

from tests.fakes.memory.store import MemoryStore

__all__ = ["MemoryStore"]
