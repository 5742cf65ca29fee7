"""The control database in memory: parts of `feedq.control.store.postgresql.PostgresStore` on dicts, with faults.

Decisions are those of `feedq.lease`, so what a scenario proves of them holds for PostgreSQL too as far as
the contract suite shows both stores to behave alike. One thread only: who runs when is the test's choice.
"""

from tests.fakes.memory.store import MemoryStore

__all__ = ["MemoryStore"]
