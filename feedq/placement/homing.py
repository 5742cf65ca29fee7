"""Moves under the strategy `rendezvous`: feeds go to the worker that the hash favours, once that one has joined.

A worker counts as new while it is less than half as utilised as the mean (`NEW`), by more than one feed. Feeds
that favour it above all others move to it, and no others do: what the hash has put elsewhere stays. Then workers
above the bound give feeds to the next that these favour. A move home never takes a worker above its bound, and a
move away only starts above it, so neither undoes the other.
"""

from __future__ import annotations

from feedq.placement.base import Held, Rules
from feedq.placement.fleet_loads import FleetLoads, Slot
from feedq.placement.moving import Moves, open_tiers
from feedq.placement.rendezvous import EXCESS, Rendezvous

NEW = 1 - 2 * EXCESS
"""Of the mean utilisation. Chance alone leaves hardly any worker of a settled fleet below it."""


class Homing:
    """Brings feeds home as far as the limit on moves allows."""

    def __init__(self, made: Moves, rules: Rules) -> None:
        self._made = made
        self._fleet = made.fleet
        self._hash = Rendezvous(made.fleet, rules)

    def run(self) -> None:
        newcomers = _newcomers(self._fleet, self._hash)
        if newcomers:
            self._bring_home({slot.index for slot in newcomers})
        self._relieve()

    def _bring_home(self, newcomers: set[int]) -> None:
        held = [
            (position, slot, feed)
            for slot, feeds in zip(self._fleet.slots, self._made.running, strict=True)
            for position, feed in feeds.items()
        ]
        held.sort(key=lambda entry: entry[0])
        for position, slot, feed in held:
            if self._made.left <= 0:
                return
            tiers = self._fleet.stay_of(feed).tiers
            home = self._hash.home(feed.feed_id, tiers[0]) if tiers else None
            if (
                home is not None
                and home is not slot
                and home.index in newcomers
                and self._hash.accepts(home, feed.weight, feed.tenant, tiers[0])
            ):
                self._made.move(position, slot, home)

    def _relieve(self) -> None:
        """Move feeds away from all workers above their bound, a feed of each in turn."""
        full = [slot for slot in self._fleet.slots if self._hash.is_over(slot)]
        full.sort(key=lambda slot: -slot.utilisation)
        queues = [(slot, iter(sorted(self._made.running[slot.index].items()))) for slot in full]
        while queues:
            turn, queues = queues, []
            for slot, feeds in turn:
                for position, feed in feeds:
                    if self._made.left <= 0 or not self._hash.is_over(slot):
                        break
                    target = self._next_of(feed, slot)
                    if target is not None:
                        self._made.move(position, slot, target)
                        queues.append((slot, feeds))
                        break

    def _next_of(self, feed: Held, slot: Slot) -> Slot | None:
        for mask in open_tiers(self._fleet.stay_of(feed).tiers, slot):
            target = self._hash.favoured(feed.feed_id, feed.weight, feed.tenant, mask)
            if target is not None and target is not slot:
                return target
        return None


def strays(fleet: FleetLoads, rules: Rules) -> list[Slot]:
    """Workers whose feeds could be at home elsewhere, going by the counters alone."""
    if all(slot.key is None for slot in fleet.slots):
        return []
    chooser = Rendezvous(fleet, rules)
    joined = bool(_newcomers(fleet, chooser))
    return [slot for slot in fleet.slots if slot.feeds and (joined or chooser.is_over(slot))]


def _newcomers(fleet: FleetLoads, chooser: Rendezvous) -> list[Slot]:
    return [
        slot
        for slot in fleet.slots
        if slot.key is not None and slot.load + chooser.feed < NEW * chooser.mean * slot.capacity
    ]
