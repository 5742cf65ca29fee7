"""The least-utilised worker: as even as it gets.

Equal feeds on equal workers end within one of each other, as each goes to a worker that has fewest. Among equally
utilised workers a feed goes to one that has fewest of its tenant's; then a hash decides.

Feeds are moved from the most utilised workers to the least utilised, one at a time. A feed moves only if its
new worker is then less utilised than its old one was: by anything when all feeds weigh the same (numbers are
compared as integers, crosswise), by more than the band when they do not. So the utilisations, sorted from the
highest, only become smaller: no state comes twice, and a feed never goes to and fro.

Equal feeds on equal workers end within one of each other, after the fewest moves that can do that: each is from
one that has most to one that has fewest, so it takes off an excess or fills a gap, as any other way has to.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf, isclose
from typing import TypeAlias

from feedq.core.placement.base import EligibleWorker, FeedToPlace, Rules
from feedq.core.placement.fleet_loads import Choice, FleetLoads, Moves, Pool, Slot, open_tiers

ROUNDING = 1e-9
"""Relative: a difference that may come from adding up fractions and is none."""

Item: TypeAlias = tuple[float, int]
"""A feed that may be moved: its weight and its position among those held."""

Lot: TypeAlias = dict[str, list[Item]]
"""A worker's feeds of one selector by tenant, in order; tenants without a cap count as one."""


class Balanced:
    """Chooses a worker for one feed after the other; cheapest when a tenant's feeds come one after the other."""

    def __init__(self, fleet: FleetLoads, rules: Rules) -> None:
        self._fleet = fleet
        self._rules = rules
        self._tenant = ""
        self._held: Mapping[int, int] = {}
        self._cap: int | None = None
        self._touched: dict[int, Pool] = {}
        """The pools in which workers that have feeds of the tenant stand apart."""

    def choose(self, feed: FeedToPlace, choice: Choice, avoided: int = 0) -> Slot | None:
        """Choose a worker, none of those ``avoided``, of the first tier that has room for the feed."""
        for mask in choice.tiers:
            slot = self.least(feed, mask, avoided)
            if slot is not None:
                return slot
        return None

    def least(self, feed: FeedToPlace, mask: int, avoided: int = 0) -> Slot | None:
        """Find the least utilised worker of one tier that has room for the feed and that it does not avoid."""
        pool = self._fleet.pool(mask)
        if feed.tenant != self._tenant:
            self._turn_to(feed.tenant)
        slot = self._least(pool, feed.tenant)
        if avoided:
            while slot is not None and avoided >> slot.index & 1:
                pool.bar(slot)
                slot = self._least(pool, feed.tenant)
            pool.forget()
        elif pool.sharing or pool.barred:
            self._touched[mask] = pool
        return slot

    def _least(self, pool: Pool, tenant: str) -> Slot | None:
        if self._cap == 0:
            return None
        return pool.least_for(self._held, self._cap) if tenant else pool.least()

    def _turn_to(self, tenant: str) -> None:
        for pool in self._touched.values():
            pool.forget()
        self._touched.clear()
        self._tenant = tenant
        self._held = self._fleet.held(tenant) if tenant else {}
        self._cap = self._rules.cap_of(tenant)


# -- moves -------------------------------------------------------------------------------------


class BalancedRebalancer:
    """Evens the fleet out as far as the limit on moves allows."""

    def __init__(self, made: Moves, rules: Rules) -> None:
        self._made = made
        self._fleet = made.fleet
        self._rules = rules
        self._lots: dict[int, dict[Choice, Lot]] = {}
        self._capacity = max((slot.capacity for slot in self._fleet.slots), default=0)
        self._slack = _slack(self._fleet.slots, rules, alike=_weigh_alike(self._fleet.slots, made))

    def run(self) -> None:
        if balanced_donors(self._fleet, self._rules):
            # What one gives away can be room for another that was looked at before: until nothing moves.
            while self._made.left > 0 and self._round():
                pass

    def _round(self) -> bool:
        """Relieve each worker in turn, the most utilised first and again after every move; whether anything
        moved."""
        before = self._made.made
        queue = [
            (-slot.utilisation, slot.index, slot)
            for slot, feeds in zip(self._fleet.slots, self._made.running, strict=True)
            if feeds
        ]
        heapify(queue)
        while queue and self._made.left > 0:
            utilisation, _, source = heappop(queue)
            if -utilisation != source.utilisation or self._relieve(source):
                heappush(queue, (-source.utilisation, source.index, source))
        return self._made.made > before

    def _relieve(self, source: Slot) -> bool:
        """Move one feed away from it, to the least utilised worker that any of its feeds may go to."""
        best: tuple[float, int, Slot, Choice, str, Item] | None = None
        for choice, lot in self._lots_of(source).items():
            found = self._find(source, choice, lot)
            if found is not None:
                target, tenant, item = found
                option = (target.utilisation, item[1], target, choice, tenant, item)
                if best is None or option[:2] < best[:2]:
                    best = option
        if best is None:
            return False
        _, position, target, choice, tenant, item = best
        self._leave(source, choice, tenant, item)
        self._made.move(position, source, target)
        if target.index in self._lots:
            lot = self._lots[target.index].setdefault(choice, {})
            insort(lot.setdefault(tenant, []), item)
        return True

    def _find(self, source: Slot, choice: Choice, lot: Lot) -> tuple[Slot, str, Item] | None:
        """The least utilised worker that one of these feeds improves on by going there, and that feed."""
        lightest = min(items[0][0] for items in lot.values())
        tiers = open_tiers(choice.tiers, source)
        for mask in tiers:
            pool = self._fleet.pool(mask)
            found: tuple[Slot, str, Item] | None = None
            target = pool.least()
            while target is not None and found is None and self._may_improve(source, target, lightest):
                picked = self._pick(source, target, lot)
                if picked is not None:
                    found = (target, *picked)
                else:
                    pool.bar(target)
                    target = pool.least()
            pool.forget()
            if found is not None:
                return found
        return None

    def _pick(self, source: Slot, target: Slot, lot: Lot) -> tuple[str, Item] | None:
        """The heaviest feed that leaves the target no more utilised than the source, else the lightest; of equal
        ones the first; None if that would not improve anything or the target is at the tenant's cap."""
        most = self._most(source, target)
        heaviest: tuple[str, Item] | None = None
        lightest: tuple[str, Item] | None = None
        for tenant, items in lot.items():
            if tenant and self._fleet.is_capped(target, tenant, self._rules):
                continue
            fitting = bisect_right(items, (most, inf))
            if fitting:
                item = items[bisect_left(items, (items[fitting - 1][0],))]
                if heaviest is None or (-item[0], item[1]) < (-heaviest[1][0], heaviest[1][1]):
                    heaviest = tenant, item
            if lightest is None or items[0] < lightest[1]:
                lightest = tenant, items[0]
        for choice in (heaviest, lightest):
            if choice is not None and self._improves(source, target, choice[1][0]):
                return choice
        return None

    def _most(self, source: Slot, target: Slot) -> float:
        """The weight that would make the two equally utilised, or less if that is not enough of an improvement."""
        load, theirs = source.load, target.load
        level = (load * target.capacity - theirs * source.capacity) / (source.capacity + target.capacity)
        if not source.capacity:
            return level
        return min(level, (load / source.capacity - self._slack) * target.capacity - theirs)

    def _improves(self, source: Slot, target: Slot, weight: float) -> bool:
        before = source.load * target.capacity
        after = (target.load + weight) * source.capacity
        return weight > 0 and before > after + self._slack * source.capacity * target.capacity

    def _may_improve(self, source: Slot, target: Slot, weight: float) -> bool:
        """Whether a worker that is as utilised as the target, but as large as the largest, would do."""
        before = source.load * target.capacity * self._capacity
        after = target.load * source.capacity * self._capacity + weight * source.capacity * target.capacity
        return before > after + self._slack * source.capacity * target.capacity * self._capacity

    def _lots_of(self, slot: Slot) -> dict[Choice, Lot]:
        found = self._lots.get(slot.index)
        if found is None:
            found = self._lots[slot.index] = {}
            for position, feed in self._made.running[slot.index].items():
                lot = found.setdefault(self._fleet.stay_of(feed), {})
                tenant = feed.tenant if self._rules.cap_of(feed.tenant) is not None else ""
                lot.setdefault(tenant, []).append((feed.weight, position))
            for lot in found.values():
                for items in lot.values():
                    items.sort()
        return found

    def _leave(self, source: Slot, choice: Choice, tenant: str, item: Item) -> None:
        lots = self._lots[source.index]
        items = lots[choice][tenant]
        del items[bisect_left(items, item)]
        if not items:
            del lots[choice][tenant]
            if not lots[choice]:
                del lots[choice]


def balanced_donors(fleet: FleetLoads, rules: Rules) -> list[Slot]:
    """Workers that could have too much, going by their counters: above one that may be given something."""
    slots = fleet.slots
    takers = [slot for slot in slots if slot.key is not None]
    if not takers:
        return []
    weight = weight_of_each(slots)
    slack = _slack(slots, rules, alike=weight is not None)
    # Of equal feeds one alone may be too heavy for a small worker; of others none is as light as nothing.
    least = min(takers, key=lambda slot: (slot.load + (weight or 0.0)) / slot.capacity)
    lowest = (least.load + (weight or 0.0)) / least.capacity + slack
    return [slot for slot in slots if slot.feeds and slot.utilisation > lowest]


def weight_of_each(slots: Iterable[Slot | EligibleWorker]) -> float | None:
    """The weight that each feed has if all weigh the same, which the counters cannot rule out; else None."""
    slots = list(slots)
    feeds = sum(slot.feeds for slot in slots)
    weight = sum(slot.load for slot in slots) / feeds if feeds else 0.0
    alike = all(isclose(slot.load, weight * slot.feeds, rel_tol=ROUNDING) for slot in slots)
    return weight if weight > 0 and alike else None


def _weigh_alike(slots: Sequence[Slot], made: Moves) -> bool:
    weight = weight_of_each(slots)
    return weight is not None and all(
        isclose(feed.weight, weight, rel_tol=ROUNDING) for feeds in made.running for feed in feeds.values()
    )


def _slack(slots: Iterable[Slot], rules: Rules, *, alike: bool) -> float:
    """How much less utilised than the source a target must end: more than rounding, and more than the band if the
    feeds are not all ``alike``."""
    slots = list(slots)
    mean = sum(slot.load for slot in slots) / max(sum(slot.capacity for slot in slots), 1)
    return (ROUNDING if alike else max(rules.band, ROUNDING)) * mean
