"""Rendezvous hashing with bounded load: each feed goes to the worker that a hash of the two favours.

This is weighted rendezvous hashing (highest random weight, Thaler and Ravishankar): each worker scores each feed,
``-log(hash) / capacity``, and the lowest score wins. A worker that joins or leaves changes the choice of few feeds
but its own, and one that comes back under its name is favoured by the feeds that it had. The load is *bounded*
(Mirrokni, Thorup and Zadimoghaddam): a worker that a feed would take above (1 + `EXCESS`) x the mean utilisation,
and one feed of mean weight, is passed over for the next best. When all are, the least utilised takes the feed.

A placement asks every worker for every feed. Rebalancing moves a feed for two reasons only: its worker is above
the bound, or the worker that it favours has just joined. A worker counts as new while it is less than half as
utilised as the mean (`NEW`), by more than one feed. A move home never takes a worker above its bound, and a move
away only starts above it, so neither undoes the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import inf, log2

from feedq.core.placement.balanced import Balanced
from feedq.core.placement.base import FeedToPlace, Rules
from feedq.core.placement.fleet_loads import Choice, FleetLoads, Moves, Slot, open_tiers

EXCESS = 0.25
"""How much more than the mean a worker may be utilised. Smaller is more even, and moves more feeds when workers
come and go."""

NEW = 1 - 2 * EXCESS
"""Of the mean utilisation. Chance alone leaves hardly any worker of a settled fleet below it."""

MIXING = 0x9E37_79B9_7F4A_7C15
"""2**64 by the golden ratio: multiplied by it, every bit of a number reaches the upper half of 64."""

BITS = 32
"""Of the hash that a score is made of."""


class Rendezvous:
    """Chooses a worker for one feed after the other."""

    def __init__(self, fleet: FleetLoads, rules: Rules, queue: Sequence[FeedToPlace] = ()) -> None:
        """``queue`` are all feeds that are about to be placed: the bound is what it will be with them."""
        self._fleet = fleet
        self._rules = rules
        self._fallback = Balanced(fleet, rules)
        load = sum(slot.load for slot in fleet.slots) + sum(feed.weight for feed in queue)
        count = sum(slot.feeds for slot in fleet.slots) + len(queue)
        self.mean = load / max(sum(slot.capacity for slot in fleet.slots), 1)
        """Utilisation."""
        self.feed = load / max(count, 1)
        """Mean weight."""
        self._means: dict[int, float] = {}
        """By tier, not less than the fleet's: feeds that may go nowhere else can make it rise."""
        for feed in queue:
            for mask in fleet.choice(feed.selector).tiers[:1]:
                self._means[mask] = self._means.get(mask, 0.0) + feed.weight
        for mask, coming in self._means.items():
            slots = fleet.members(mask)
            load = sum(slot.load for slot in slots) + coming
            self._means[mask] = max(self.mean, load / max(sum(slot.capacity for slot in slots), 1))

    def choose(self, feed: FeedToPlace, choice: Choice, avoided: int = 0) -> Slot | None:
        """Choose a worker, none of those ``avoided``, of the first tier that has room for the feed."""
        for mask in choice.tiers:
            slot = self.favoured(feed, mask & ~avoided, mean=self._means.get(mask))
            slot = slot or self._fallback.least(feed, mask, avoided)
            if slot is not None:
                return slot
        return None

    def favoured(
        self, feed: FeedToPlace, mask: int, *, mean: float | None = None, owner: Slot | None = None
    ) -> Slot | None:
        """Find the worker with the best score, of its owner and those that the feed leaves within the bound."""
        digest = blake2b(feed.feed_id.to_bytes(8, "big", signed=True), digest_size=4).digest()
        salt = int.from_bytes(digest, "big")
        best, lowest = None, inf
        for slot in self._fleet.members(mask):
            if slot.capacity:
                draw = ((slot.seed ^ salt) * MIXING >> 32 & 0xFFFFFFFF) + 1
                score = (BITS - log2(draw)) / slot.capacity
                if score < lowest and (slot is owner or self._accepts(slot, feed, mean)):
                    best, lowest = slot, score
        return best

    def _accepts(self, slot: Slot, feed: FeedToPlace, mean: float | None) -> bool:
        if slot.key is None or slot.load + feed.weight > self._limit(mean) * slot.capacity + self.feed:
            return False
        return not self._fleet.is_capped(slot, feed.tenant, self._rules)

    def is_over(self, slot: Slot) -> bool:
        """Return whether a worker is above the bound."""
        return slot.load > self._limit() * slot.capacity + self.feed

    def newcomers(self) -> int:
        """The workers that have just joined, as a set."""
        return sum(
            1 << slot.index
            for slot in self._fleet.slots
            if slot.key is not None and slot.load + self.feed < NEW * self.mean * slot.capacity
        )

    def _limit(self, mean: float | None = None) -> float:
        return (1 + EXCESS) * (self.mean if mean is None else mean)


# -- moves -------------------------------------------------------------------------------------------


def rebalance_rendezvous(made: Moves, rules: Rules) -> None:
    """Brings feeds home to new workers, then relieves workers above the bound, as far as the limit allows."""
    fleet, hashed = made.fleet, Rendezvous(made.fleet, rules)
    new = hashed.newcomers()
    for relieve in (False, True) if new else (True,):
        held = [
            (position, slot, feed)
            for slot, feeds in zip(fleet.slots, made.running, strict=True)
            for position, feed in feeds.items()
        ]
        for position, source, feed in sorted(held, key=lambda entry: entry[0]):
            if made.left <= 0:
                return
            if relieve and not hashed.is_over(source):
                continue
            for mask in open_tiers(fleet.stay_of(feed).tiers, source):
                target = hashed.favoured(feed, mask, owner=None if relieve else source)
                if target is not None and target is not source and (relieve or new >> target.index & 1):
                    made.move(position, source, target)
                    break


def rendezvous_donors(fleet: FleetLoads, rules: Rules) -> list[Slot]:
    """Workers whose feeds could be at home elsewhere, going by the counters alone."""
    if all(slot.key is None for slot in fleet.slots):
        return []
    hashed = Rendezvous(fleet, rules)
    joined = bool(hashed.newcomers())
    return [slot for slot in fleet.slots if slot.feeds and (joined or hashed.is_over(slot))]
