"""The worker that a hash of feed and worker favours, unless it is too full: consistent hashing with bounded loads.

Every worker has points on a ring, by a hash of its name and in proportion to its capacity. A feed has eight
places on the ring, by a hash of its id. Each place belongs to the worker of the next point, and the feed goes to
the first of these workers that it leaves within the *bound*: (1 + `EXCESS`) x the mean utilisation once all feeds
are placed, and one feed of mean weight. If there is none, it goes to the least utilised worker. So a worker that
joins or leaves changes the choice of few feeds but its own, and one that comes back is favoured by those it had.

A place costs one hash and a binary search, so the work is feeds x log(points) and not feeds x workers; a further
place on the ring, and not the next point of it, is what a feed tries when a worker is full, so that the
overflow of one worker does not fall on one neighbour. (Weighted rendezvous hashing itself would ask every worker
for every feed.)

Feeds are moved to the worker that the hash favours, once that one has joined. A worker counts as new while it is
less than half as utilised as the mean (`NEW`), by more than one feed. Feeds that favour it above all others move
to it, and no others do: what the hash has put elsewhere stays. Then workers above the bound give feeds to the next
that these favour. A move home never takes a worker above its bound, and a move away only starts above it, so
neither undoes the other.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from struct import unpack

from feedq.core.placement.balanced import Balanced
from feedq.core.placement.base import Held, Rules, WaitingFeed
from feedq.core.placement.fleet_loads import Choice, FleetLoads, Moves, Slot, open_tiers

EXCESS = 0.25
"""How much more than the mean a worker may be utilised. Smaller is more even, and moves more feeds when workers
come and go."""

POINTS = 64
"""The number of points of a worker whose capacity is the largest power of two within the fleet; with them one
worker's part of the ring varies by an eighth. The others' are in proportion, so a fleet that outgrows a power
of two is dealt out anew."""

NEW = 1 - 2 * EXCESS
"""Of the mean utilisation. Chance alone leaves hardly any worker of a settled fleet below it."""


class Rendezvous:
    """Chooses a worker for one feed after the other."""

    def __init__(self, fleet: FleetLoads, rules: Rules, queue: Sequence[WaitingFeed] = ()) -> None:
        """``queue`` are all feeds that are about to be placed: the bound is what it will be with them."""
        self._fleet = fleet
        self._rules = rules
        self._fallback = Balanced(fleet, rules)
        self._rings: dict[int, tuple[HashRing, list[Slot]]] = {}
        load = sum(slot.load for slot in fleet.slots) + sum(feed.weight for feed in queue)
        count = sum(slot.feeds for slot in fleet.slots) + len(queue)
        self.mean = load / max(sum(slot.capacity for slot in fleet.slots), 1)
        """Utilisation."""
        self.feed = load / max(count, 1)
        """Mean weight."""
        self._means = {mask: self._mean_of(mask, coming) for mask, coming in _by_tier(fleet, queue).items()}

    def choose(self, feed: WaitingFeed, choice: Choice) -> Slot | None:
        """Choose a worker of the first tier that has room for the feed; None when none has."""
        return self.choose_but(feed, choice, 0)

    def choose_but(self, feed: WaitingFeed, choice: Choice, avoided: int) -> Slot | None:
        """Choose one in the same way, of the workers that the feed does not avoid."""
        for mask in choice.tiers:
            slot = self.favoured(feed.feed_id, feed.weight, feed.tenant, mask, avoided)
            slot = slot or self._fallback.least_but(feed, mask, avoided)
            if slot is not None:
                return slot
        return None

    def favoured(self, feed_id: int, weight: float, tenant: str, mask: int, avoided: int = 0) -> Slot | None:
        """The first of its choices within a tier that it leaves within the bound."""
        ring, slots = self._ring(mask)
        for owner in ring.owners_of(feed_id):
            slot = slots[owner]
            if not avoided >> slot.index & 1 and self.accepts(slot, weight, tenant, mask):
                return slot
        return None

    def home(self, feed_id: int, mask: int) -> Slot | None:
        """Find the feed's first choice within a tier, full or not."""
        ring, slots = self._ring(mask)
        return next((slots[owner] for owner in ring.owners_of(feed_id)), None)

    def accepts(self, slot: Slot, weight: float, tenant: str, mask: int) -> bool:
        if slot.key is None:
            return False
        if slot.load + weight > self._means.get(mask, self.mean) * slot.capacity * (1 + EXCESS) + self.feed:
            return False
        cap = self._rules.cap_of(tenant) if tenant else None
        return cap is None or self._fleet.held(tenant).get(slot.index, 0) < cap

    def is_over(self, slot: Slot) -> bool:
        """Return whether a worker is above the bound."""
        return slot.load > self.mean * slot.capacity * (1 + EXCESS) + self.feed

    def _mean_of(self, mask: int, coming: float) -> float:
        """Compute the mean of a tier, but not less than the fleet's: feeds that may go nowhere else can make it
        rise."""
        slots = self._fleet.members(mask)
        load = sum(slot.load for slot in slots) + coming
        return max(self.mean, load / max(sum(slot.capacity for slot in slots), 1))

    def _ring(self, mask: int) -> tuple[HashRing, list[Slot]]:
        found = self._rings.get(mask)
        if found is None:
            slots = self._fleet.members(mask)
            found = self._rings[mask] = ring_of(slots), slots
        return found


def _by_tier(fleet: FleetLoads, queue: Iterable[WaitingFeed]) -> dict[int, float]:
    """The weight of these feeds by the first tier of each."""
    weights: dict[int, float] = {}
    for feed in queue:
        tiers = fleet.choice(feed.selector).tiers
        if tiers:
            weights[tiers[0]] = weights.get(tiers[0], 0.0) + feed.weight
    return weights


@dataclass(frozen=True, slots=True)
class HashRing:
    """Points in order, and whose each is, as an index; after the last comes the first."""

    points: tuple[int, ...]
    owners: tuple[int, ...]

    def owners_of(self, feed_id: int) -> Iterator[int]:
        """Yield owners in the order in which the feed favours them; the same may come again."""
        if self.points:
            for place in unpack(">8Q", blake2b(feed_id.to_bytes(8, "big", signed=True)).digest()):
                yield self.owners[bisect(self.points, place)]


def ring_of(slots: Iterable[Slot]) -> HashRing:
    """Makes the ring of workers, by name, which one keeps when it is restarted; of two of the same the later id
    gets a number."""
    seen: Counter[str] = Counter()
    workers: list[tuple[str, int]] = []
    for slot in slots:
        twins = seen[slot.name]
        workers.append((f"{slot.name}#{twins}" if twins else slot.name, slot.capacity))
        seen[slot.name] += 1
    return _ring(tuple(workers))


@lru_cache(maxsize=16)
def _ring(workers: tuple[tuple[str, int], ...]) -> HashRing:
    largest = max((capacity for _, capacity in workers), default=0)
    if largest <= 0:
        return HashRing((), ())
    unit = 1 << largest.bit_length() - 1
    points: list[tuple[int, int]] = []
    for owner, (name, capacity) in enumerate(workers):
        count = max(1, POINTS * capacity // unit) if capacity > 0 else 0
        points += ((point, owner) for point in _points(name, count))
    points.sort()
    owners = [owner for _, owner in points]
    return HashRing(tuple(point for point, _ in points), (*owners, owners[0]))


def _points(name: str, count: int) -> Iterator[int]:
    for n in range(0, count, 8):
        digest = blake2b(name.encode() + n.to_bytes(8, "big")).digest()
        yield from unpack(">8Q", digest)[: count - n]


# -- moves -------------------------------------------------------------------------------------------


class RendezvousRebalancer:
    """Brings feeds home as far as the limit on moves allows."""

    def __init__(self, made: Moves, rules: Rules) -> None:
        self._made = made
        self._fleet = made.fleet
        self._hash = Rendezvous(made.fleet, rules)

    def run(self) -> None:
        newcomers = _newcomers(self._fleet, self._hash)
        if newcomers:
            self._move_to_newcomers({slot.index for slot in newcomers})
        self._relieve()

    def _move_to_newcomers(self, newcomers: set[int]) -> None:
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


def rendezvous_donors(fleet: FleetLoads, rules: Rules) -> list[Slot]:
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
