"""The moves that are decided on, while they are: where each feed is by now, and what was asked of whom in all."""

from __future__ import annotations

from collections.abc import Iterable

from feedq.placement.base import Held, Transfer
from feedq.placement.fleet_loads import FleetLoads, Slot


class Moves:
    """Carries moves out on paper. A feed that moves twice counts once, and not at all when it comes back."""

    def __init__(self, fleet: FleetLoads, held: Iterable[Held], *, limit: int) -> None:
        self.fleet = fleet
        self.made = 0
        """Steps, those of a feed that moved twice included."""
        self.running: list[dict[int, Held]] = [{} for _ in fleet.slots]
        """By index of worker: its feeds, by their position in ``held``."""
        self.stranded: dict[int, tuple[int, Held]] = {}
        """Feeds that have to leave their worker, by id, with their position."""
        self._limit = limit
        self._transfers: dict[int, Transfer] = {}
        for position, feed in enumerate(held):
            slot = fleet.by_id.get(feed.worker_id)
            if slot is None:
                self.stranded[feed.feed_id] = position, feed
            else:
                self.running[slot.index][position] = feed

    @property
    def left(self) -> int:
        """How many more feeds may be moved."""
        return self._limit - len(self._transfers)

    def transfers(self) -> tuple[Transfer, ...]:
        return tuple(self._transfers.values())

    def move(self, position: int, source: Slot, target: Slot) -> Held:
        """Move a feed from one worker to another."""
        feed = self.running[source.index].pop(position)
        self.fleet.give(source, feed.weight, feed.tenant)
        self.fleet.take(target, feed.weight, feed.tenant)
        self._arrive(position, feed, target)
        return feed

    def evacuate(self, feed_id: int, target: Slot) -> None:
        """Move a feed from a worker that is to have none; the target has taken it already."""
        position, feed = self.stranded.pop(feed_id)
        self._arrive(position, feed, target)

    def _arrive(self, position: int, feed: Held, target: Slot) -> None:
        self.made += 1
        self.running[target.index][position] = feed
        if target.worker_id == feed.worker_id:
            del self._transfers[feed.feed_id]
        else:
            self._transfers[feed.feed_id] = Transfer(feed.feed_id, feed.worker_id, target.worker_id)


def open_tiers(tiers: tuple[int, ...], source: Slot) -> tuple[int, ...]:
    """Lists the tiers of a feed that it may move to: none below the one that it is in."""
    for n, mask in enumerate(tiers):
        if mask >> source.index & 1:
            return tiers[: n + 1]
    return tiers
