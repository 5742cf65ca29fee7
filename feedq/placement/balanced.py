"""The least-utilised worker: as even as it gets.

Equal feeds on equal workers end within one of each other, as each goes to a worker that has fewest. Among equally
utilised workers a feed goes to one that has fewest of its tenant's; then a hash decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from feedq.placement.base import Rules, WaitingFeed
from feedq.placement.fleet_loads import Choice, FleetLoads, Pool, Slot


class Balanced:
    """Chooses a worker for one feed after the other; cheapest when a tenant's feeds come one after the other."""

    def __init__(self, fleet: FleetLoads, rules: Rules) -> None:
        self._fleet = fleet
        self._rules = rules
        self._tenant = ""
        self._held: Mapping[int, int] = {}
        self._cap: int | None = None
        self._touched: dict[int, Pool] = {}
        self._hopeless: set[tuple[str, int]] = set()
        """Tenants that are at their cap in all of a tier: within one decision that is for good."""

    def choose(self, feed: WaitingFeed, choice: Choice) -> Slot | None:
        """Choose a worker of the first tier that has room for the feed; None when none has."""
        for mask in choice.tiers:
            slot = self.least(feed, mask)
            if slot is not None:
                return slot
        return None

    def choose_but(self, feed: WaitingFeed, choice: Choice, avoided: int) -> Slot | None:
        """Choose one in the same way, of the workers that the feed does not avoid."""
        for mask in choice.tiers:
            slot = self.least_but(feed, mask, avoided)
            if slot is not None:
                return slot
        return None

    def least_but(self, feed: WaitingFeed, mask: int, avoided: int) -> Slot | None:
        """Find the least utilised worker of one tier that has room for the feed and that it does not avoid."""
        slot = self.least(feed, mask)
        if not avoided:
            return slot
        pool = self._fleet.pool(mask)
        while slot is not None and avoided >> slot.index & 1:
            pool.bar(slot)
            slot = self.least(feed, mask)
        if slot is None:
            # Not for good, then: the next feed may avoid others, or none.
            self._hopeless.discard((feed.tenant, mask))
        pool.forget()
        return slot

    def least(self, feed: WaitingFeed, mask: int) -> Slot | None:
        """Find the least utilised worker of one tier that has room for the feed."""
        pool = self._fleet.pool(mask)
        tenant = feed.tenant
        if tenant != self._tenant:
            self._turn_to(tenant)
        if not tenant:
            return pool.least()
        if self._cap is not None and (self._cap <= 0 or (tenant, mask) in self._hopeless):
            return None
        slot = pool.least_for(self._held, self._cap)
        if pool.sharing or pool.barred:
            self._touched[mask] = pool
        if slot is None and self._cap is not None:
            self._hopeless.add((tenant, mask))
        return slot

    def _turn_to(self, tenant: str) -> None:
        if self._touched:
            for pool in self._touched.values():
                pool.forget()
            self._touched.clear()
        self._tenant = tenant
        self._held = self._fleet.held(tenant) if tenant else {}
        self._cap = self._rules.cap_of(tenant)
