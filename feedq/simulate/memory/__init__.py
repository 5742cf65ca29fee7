"""The control database in memory: what a worker and a reconcile pass ask of it, on dicts.

`feedq simulate` runs whole fleets on it, and the tests run it through the same contract suite as PostgreSQL; they
add faults, history and what only people ask for (`tests/fakes/memory`). Decisions are those of `feedq.lease`. One
thread only: who runs when is the caller's choice.
"""

from feedq.simulate.memory.simulated_store import SimulatedStore

__all__ = ["SimulatedStore"]
