"""Feeds and workers as a scenario describes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from feedq.model import ANYWHERE, FeedSpec, Selector
from feedq.simulate.scenario import MIXED_WEIGHTS, FeedGroup, WorkerGroup

if TYPE_CHECKING:
    from feedq.simulate.event_queue import Engine


class Population:
    """Declares feeds and starts workers, numbered as they come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._workers, self._feeds = count(1), count(1)

    def declare(self, group: FeedGroup, *, number: int) -> None:
        """Declare so many feeds of a group."""
        selector = (
            Selector(group.required, group.preferred) if group.required or group.preferred else ANYWHERE
        )
        # One object for each name, not one for each feed.
        tenants = [group.tenant_of(i) for i in range(max(1, group.tenants))]
        hosts = [group.host_of(i) for i in range(group.hosts)]
        sources = [{"url": f"simulated://{host}"} for host in hosts]
        for i, weight in zip(range(number), self._weights(group), strict=False):
            spec = FeedSpec(
                self.name_of(next(self._feeds)),
                "simulated",
                sources[i % len(hosts)],
                {},
                tenants[i % len(tenants)],
                selector=selector,
                weight=weight,
            )
            feed = self._engine.store.feeds.add(spec)
            self._engine.recorder.feed_declared(feed.id, hosts[i % len(hosts)], self._engine.agenda.now)

    def name_of(self, feed_id: int) -> str:
        """Finds a feed's name: feeds are numbered as the database numbers them."""
        return f"feed{feed_id}"

    def start(self, group: WorkerGroup, *, number: int) -> None:
        for _ in range(number):
            name = f"worker{next(self._workers)}"
            self._engine.start(name, capacity=group.capacity, labels=group.labels)

    def _weights(self, group: FeedGroup) -> Iterator[float]:
        while True:
            factor = 1.0 if group.weights == "equal" else self._engine.rng.choice(MIXED_WEIGHTS)
            yield group.weight * factor
