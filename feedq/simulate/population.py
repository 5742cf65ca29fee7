"""Feeds and workers as a scenario describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from uuid import UUID

from feedq.model import ANYWHERE, Selector
from feedq.settings import Settings
from feedq.simulate.agenda import to_ms
from feedq.simulate.dialling import Dialler
from feedq.simulate.scenario import MIXED_WEIGHTS, FeedGroup, WorkerGroup
from feedq.simulate.simulated_fleet import SimulatedFeed, SimulatedWorker


class Population:
    """Makes feeds and workers, numbered as they come."""

    def __init__(self, settings: Settings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._numbers = count(1)
        self._feed_ids = count()

    def feeds(self, group: FeedGroup, *, number: int, now: int, phase: int) -> list[SimulatedFeed]:
        """So many feeds of a group; ``phase`` is the one that they are declared in."""
        selector = (
            Selector(group.required, group.preferred) if group.required or group.preferred else ANYWHERE
        )
        # One text for each name, not one for each feed.
        tenants = [group.tenant_of(i) for i in range(max(1, group.tenants))]
        hosts = [group.host_of(i) for i in range(group.hosts)]
        return [
            SimulatedFeed(
                next(self._feed_ids),
                weight,
                tenants[i % len(tenants)],
                hosts[i % len(hosts)],
                selector,
                down_since=now,
                down_phase=phase,
            )
            for i, weight in enumerate(self._weights(group, number))
        ]

    def workers(self, group: WorkerGroup, *, number: int, now: int) -> list[SimulatedWorker]:
        names = [f"worker{next(self._numbers)}" for _ in range(number)]
        return [self.worker(name, group.capacity, group.labels, now=now) for name in names]

    def successor(self, ended: SimulatedWorker, *, now: int) -> SimulatedWorker:
        """The same worker, started again: a new session."""
        return self.worker(ended.name, ended.capacity, ended.labels, now=now)

    def worker(self, name: str, capacity: int, labels: Mapping[str, str], *, now: int) -> SimulatedWorker:
        rng, settings = self._rng, self._settings
        return SimulatedWorker(
            UUID(int=rng.getrandbits(128)),
            name,
            capacity,
            labels,
            started_at=now,
            beats_at=rng.randrange(max(1, to_ms(settings.heartbeat_s))),
            dialler=Dialler(
                settings.connects_per_s,
                settings.host_connects_per_s,
                failover_burst_s=settings.failover_burst_s,
                rng=rng,
            ),
        )

    def _weights(self, group: FeedGroup, number: int) -> Iterator[float]:
        if group.weights == "equal":
            return (group.weight for _ in range(number))
        return (group.weight * self._rng.choice(MIXED_WEIGHTS) for _ in range(number))


def spread(workers: Sequence[SimulatedWorker]) -> list[int]:
    """Feeds on each worker that serves, fewest first."""
    return sorted(w.feeds for w in workers if w.serves and w.is_up)
