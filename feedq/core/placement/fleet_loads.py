"""The workers while a decision is made: how full each is, whose labels fit, and which is the least utilised.

Utilisation is load ÷ capacity. As a float it orders loads and capacities exactly as the fractions do, as long as
their product stays below 2**52: division rounds correctly, so equal fractions are equal floats.

A *pool* is the heap of the workers that one set of labels leaves. Many pools hold the same worker, so a change of
a worker reaches none of them: an entry that is no longer the worker's own key is mended when it comes to the top.
That is right as long as utilisation only grows; a worker that gives something away enters its pools once more.

`Moves` are those that are decided on: where each feed is by now, and what was asked of whom in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias
from uuid import UUID

from feedq.core.model import ANYWHERE, Selector
from feedq.core.placement.base import Avoided, EligibleWorker, FeedToPlace, Rules, Transfer, is_settled

POOL_ENTRIES_MAX = 4_000_000
"""Entries of all pools together, about 8 bytes each: beyond it they are dropped and made anew when asked for."""

NARROWED_MAX = 256
"""Sets of workers that running feeds avoid. Each has a pool of its own: with more sets, of feeds that failed here
and there, the rest of the feeds stay where they are."""

SPREADING = 2_654_435_761
"""Knuth's multiplier: neighbouring numbers end far apart."""


class Slot:
    """The place of one worker in the fleet, which fills up."""

    __slots__ = (
        "capacity",
        "feeds",
        "index",
        "is_open",
        "key",
        "load",
        "name",
        "seed",
        "started_at",
        "worker_id",
    )

    def __init__(self, worker: EligibleWorker, index: int, *, twins: int, is_open: bool) -> None:
        """``twins`` are the workers of the same name before it."""
        self.worker_id = worker.worker_id
        self.name = worker.name
        self.started_at = worker.started_at
        self.index = index
        self.capacity = worker.capacity
        self.feeds = worker.feeds
        self.load: float = worker.load
        self.is_open = is_open
        name = f"{worker.name}#{twins}".encode()
        self.seed = int.from_bytes(blake2b(name, digest_size=4).digest(), "big")
        """By name, which a worker keeps when it is restarted."""
        self.key: Key | None = None
        """Its place in every order by utilisation; None while it can be given nothing."""
        self.rekey()

    @property
    def utilisation(self) -> float:
        if self.capacity:
            return self.load / self.capacity
        return float("inf") if self.feeds else 0.0

    def take(self, weight: float) -> None:
        self.feeds += 1
        self.load += weight
        self.rekey()

    def give(self, weight: float) -> None:
        self.feeds -= 1
        self.load = self.load - weight if self.feeds > 0 else 0
        self.rekey()

    def rekey(self) -> None:
        if self.is_open and self.feeds < self.capacity:
            # The tie changes with each feed, so that equal workers fill in no fixed order.
            tie = (self.seed ^ self.feeds) * SPREADING & 0xFFFFFFFF
            self.key = (self.load / self.capacity, tie, self.index, self)
        else:
            self.key = None


Key: TypeAlias = tuple[float, int, int, Slot]


class Pool:
    """Workers by utilisation. Those that have feeds of the current tenant are kept apart meanwhile."""

    __slots__ = ("barred", "heap", "sharing")

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.heap: list[Key] = [slot.key for slot in slots if slot.key is not None]
        heapify(self.heap)
        self.sharing: list[tuple[float, int, int, int, Slot]] = []
        """The workers by utilisation, then by the number of the tenant's feeds."""
        self.barred: list[Slot] = []
        """The workers at the tenant's cap."""

    def least(self) -> Slot | None:
        """The least utilised worker with room."""
        heap = self.heap
        while heap:
            top = heap[0]
            key = top[3].key
            if key is top:
                return top[3]
            if key is None:
                heappop(heap)
            else:
                heapreplace(heap, key)
        return None

    def least_for(self, held: Mapping[int, int], cap: int | None) -> Slot | None:
        """Find the same for a tenant that has ``held`` by worker: of equally utilised ones that with fewest of
        them."""
        while True:
            slot = self.least()
            count = held.get(slot.index, 0) if slot is not None else 0
            if slot is None or slot.key is None or count == 0:
                break
            is_capped = cap is not None and count >= cap
            if not (is_capped or self.sharing) and self._is_single(slot.key[0]):
                return slot
            heappop(self.heap)
            if is_capped:
                self.barred.append(slot)
            else:
                heappush(self.sharing, (slot.key[0], count, slot.key[1], slot.index, slot))
        other = self._least_sharing(held, cap)
        if slot is None or other is None:
            return slot or other
        return other if other.utilisation < slot.utilisation else slot

    def _is_single(self, utilisation: float) -> bool:
        """Return whether the top of the heap, of this utilisation, is the only one so little utilised."""
        heap = self.heap
        # Entries that are out of date are too small: where they are larger, so are the keys.
        return (len(heap) < 2 or heap[1][0] > utilisation) and (len(heap) < 3 or heap[2][0] > utilisation)

    def _least_sharing(self, held: Mapping[int, int], cap: int | None) -> Slot | None:
        while self.sharing:
            utilisation, was, _, _, slot = self.sharing[0]
            count = held[slot.index]
            if slot.key is None:
                heappop(self.sharing)
            elif cap is not None and count >= cap:
                heappop(self.sharing)
                self.barred.append(slot)
            elif (utilisation, was) == (slot.key[0], count):
                return slot
            else:
                heapreplace(self.sharing, (slot.key[0], count, slot.key[1], slot.index, slot))
        return None

    def bar(self, slot: Slot) -> None:
        """Take out the one that `least` or `least_for` just found, until `forget`."""
        if self.sharing and self.sharing[0][4] is slot:
            heappop(self.sharing)
        else:
            heappop(self.heap)
        self.barred.append(slot)

    def forget(self) -> None:
        """Forget the tenant, as another one's turn comes: all stand together again."""
        slots = [entry[4] for entry in self.sharing] + self.barred
        self.sharing.clear()
        self.barred.clear()
        keys = [slot.key for slot in slots if slot.key is not None]
        if len(keys) > len(self.heap) >> 3:
            self.heap.extend(keys)
            heapify(self.heap)
            return
        for key in keys:
            heappush(self.heap, key)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The places where feeds of one selector may go, as sets of workers (bit i is worker i), the better one
    first."""

    tiers: tuple[int, ...]
    matched: bool
    """Whether any worker has the required labels."""


NOWHERE = Choice((), matched=True)
"""The choice of a feed that had better stay where it is."""


class FleetLoads:
    """The loads of all workers, those whose ``is_open`` is false as givers only."""

    def __init__(
        self, workers: Sequence[EligibleWorker], *, settled: tuple[datetime, float] | None = None
    ) -> None:
        """Count the loads of workers. With ``settled``, now and the time to settle, younger workers are given
        nothing, nor those that lag."""
        ordered = sorted(workers, key=lambda w: w.worker_id.int)
        self.lagging = sum(1 << n for n, worker in enumerate(ordered) if worker.lags)
        """The workers that lag, as a set; none if all do."""
        if self.lagging == (1 << len(ordered)) - 1:
            self.lagging = 0
        self.slots: list[Slot] = []
        self.named: dict[str, list[Slot]] = {}
        """The workers by name, which a worker keeps when it is restarted."""
        for n, w in enumerate(ordered):
            twins = self.named.setdefault(w.name, [])
            is_open = settled is None or (
                not self.lagging >> n & 1 and is_settled(w, now=settled[0], settle_s=settled[1])
            )
            twins.append(Slot(w, n, twins=len(twins), is_open=is_open))
            self.slots.append(twins[-1])
        self.by_id: dict[UUID, Slot] = {slot.worker_id: slot for slot in self.slots}
        self.everyone = (1 << len(ordered)) - 1
        self.without: dict[str, int] = {}
        """The workers that cannot write to a sink, by its name; empty nearly always."""
        self._labels: dict[tuple[str, str], int] = {}
        self._tenants: dict[str, dict[int, int]] = {}
        for n, worker in enumerate(ordered):
            for label in worker.labels.items():
                self._labels[label] = self._labels.get(label, 0) | 1 << n
            for tenant, count in worker.tenants.items():
                self._tenants.setdefault(tenant, {})[n] = count
            for sink in worker.sinks_down:
                self.without[sink] = self.without.get(sink, 0) | 1 << n
        self._anywhere = self._in_order(Choice((self.everyone,), matched=True))
        self._choices: dict[tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]], Choice] = {}
        self._narrowed: dict[tuple[Choice, int], Choice] = {}
        self._pools: dict[int, Pool] = {}
        self._entries = 0

    def choice(self, selector: Selector) -> Choice:
        if selector is ANYWHERE or not (selector.required or selector.preferred):
            return self._anywhere
        key = frozenset(selector.required.items()), frozenset(selector.preferred.items())
        found = self._choices.get(key)
        if found is None:
            required = self._having(key[0])
            preferred = self._having(key[1]) & required
            tiers = tuple(mask for mask in (preferred, required & ~preferred) if mask)
            found = self._choices[key] = self._in_order(Choice(tiers, matched=bool(required)))
        return found

    def choice_of(self, feed: FeedToPlace) -> Choice:
        """Say where a feed may go, by labels and sink: if some of the workers can write to that, only these."""
        choice = self.choice(feed.selector)
        if feed.sink in self.without:
            return self._narrow(choice, self.without[feed.sink]) or choice
        return choice

    def stay_of(self, feed: FeedToPlace) -> Choice:
        """Say where a running feed may be moved: not to workers on which it failed."""
        if not (feed.avoid or self.without):
            return self.choice(feed.selector)
        choice, avoided = self.choice_of(feed), self.avoided(feed.avoid)
        if not avoided:
            return choice
        is_new = (choice, avoided) not in self._narrowed
        if is_new and len(self._narrowed) >= NARROWED_MAX:
            return NOWHERE
        return self._narrow(choice, avoided) or NOWHERE

    def avoided(self, avoid: Avoided) -> int:
        """The workers on which a feed failed, as a set. A session that began since has not had its try."""
        mask = 0
        for name, failed_at in avoid:
            for slot in self.named.get(name, ()):
                if failed_at >= slot.started_at:
                    mask |= 1 << slot.index
        return mask

    def _narrow(self, choice: Choice, avoided: int) -> Choice | None:
        """Take these workers out of a choice; None if that leaves nobody."""
        found = self._narrowed.get((choice, avoided))
        if found is None:
            tiers = tuple(mask & ~avoided for mask in choice.tiers if mask & ~avoided)
            found = self._narrowed[choice, avoided] = Choice(tiers, matched=choice.matched)
        return found if found.tiers else None

    def _in_order(self, choice: Choice) -> Choice:
        """Put workers that lag last."""
        late = self.lagging
        if not late:
            return choice
        tiers = [mask & ~late for mask in choice.tiers] + [mask & late for mask in choice.tiers]
        return Choice(tuple(filter(None, tiers)), matched=choice.matched)

    def _having(self, labels: Iterable[tuple[str, str]]) -> int:
        mask = self.everyone
        for label in labels:
            mask &= self._labels.get(label, 0)
        return mask

    def members(self, mask: int) -> list[Slot]:
        return self.slots if mask == self.everyone else [s for s in self.slots if mask >> s.index & 1]

    def pool(self, mask: int) -> Pool:
        found = self._pools.get(mask)
        if found is None:
            found = Pool(self.members(mask))
            self._entries += len(found.heap)
            if self._entries > POOL_ENTRIES_MAX:
                self._pools.clear()
                self._entries = len(found.heap)
            self._pools[mask] = found
        return found

    def drop_pools(self) -> None:
        """Forget the pools: they are made anew, with all their workers, when asked for."""
        self._pools.clear()
        self._entries = 0

    def held(self, tenant: str) -> dict[int, int]:
        """The tenant's feeds by index of worker, as far as they are known."""
        return self._tenants.setdefault(tenant, {})

    def is_capped(self, slot: Slot, tenant: str, rules: Rules) -> bool:
        """Whether a worker has as many of a tenant's feeds as it may."""
        cap = rules.cap_of(tenant)
        return cap is not None and self.held(tenant).get(slot.index, 0) >= cap

    def take(self, slot: Slot, weight: float, tenant: str) -> None:
        slot.take(weight)
        if tenant:
            held = self.held(tenant)
            held[slot.index] = held.get(slot.index, 0) + 1

    def give(self, slot: Slot, weight: float, tenant: str) -> None:
        slot.give(weight)
        if tenant:
            held = self.held(tenant)
            held[slot.index] = max(held.get(slot.index, 0) - 1, 0)
        if slot.key is not None:
            for mask, pool in self._pools.items():
                if mask >> slot.index & 1:
                    heappush(pool.heap, slot.key)


# -- moves -------------------------------------------------------------------------------------------


class Moves:
    """Simulates moves without making them. A feed that moves twice counts once, and not at all when it comes
    back."""

    def __init__(
        self,
        fleet: FleetLoads,
        held: Iterable[FeedToPlace],
        *,
        limit: int,
        under_way: Mapping[UUID, int],
        together: int | None,
    ) -> None:
        """At most ``limit`` feeds are moved, and none from the first on that would be one more than ``together``
        on its way to a worker, with those that are ``under_way`` already; None: any number may be."""
        self.fleet = fleet
        self.made = 0
        """Steps, those of a feed that moved twice included."""
        self.running: list[dict[int, FeedToPlace]] = [{} for _ in fleet.slots]
        """By index of worker: its feeds, by their position in ``held``."""
        self.stranded: dict[int, tuple[int, FeedToPlace]] = {}
        """Feeds that have to leave their worker, by id, with their position."""
        self._limit = limit
        self._together = together
        self._coming = Counter(under_way)
        self._transfers: dict[int, Transfer] = {}
        # By number: Python computes the hash of a UUID by itself, and there may be ten thousands of feeds.
        slots = {slot.worker_id.int: slot for slot in fleet.slots}
        for position, feed in enumerate(held):
            slot = None if feed.worker_id is None else slots.get(feed.worker_id.int)
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

    def move(self, position: int, source: Slot, target: Slot) -> FeedToPlace:
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

    def _arrive(self, position: int, feed: FeedToPlace, target: Slot) -> None:
        self.made += 1
        self.running[target.index][position] = feed
        self._coming[target.worker_id] += 1
        if self._together is not None and self._coming[target.worker_id] > self._together:
            self._limit = len(self._transfers)
        elif target.worker_id == feed.worker_id:
            del self._transfers[feed.feed_id]
        elif feed.worker_id is not None:
            self._transfers[feed.feed_id] = Transfer(feed.feed_id, feed.worker_id, target.worker_id)


def open_tiers(tiers: tuple[int, ...], source: Slot) -> tuple[int, ...]:
    """Lists the tiers of a feed that it may move to: none below the one that it is in."""
    for n, mask in enumerate(tiers):
        if mask >> source.index & 1:
            return tiers[: n + 1]
    return tiers
