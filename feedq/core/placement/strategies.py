"""The strategies by name, each as the functions that differ: one row here is all that another one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from feedq.core.placement.balanced import Balanced, BalancedRebalancer, balanced_donors
from feedq.core.placement.base import Rules, Strategy, WaitingFeed
from feedq.core.placement.fleet_loads import Choice, FleetLoads, Moves, Slot
from feedq.core.placement.rendezvous import Rendezvous, RendezvousRebalancer, rendezvous_donors


class WorkerChoice(Protocol):
    """Chooses a worker for one feed after the other."""

    def choose(self, feed: WaitingFeed, choice: Choice) -> Slot | None:
        """Choose a worker of the first tier that has room for the feed; None when none has."""

    def choose_but(self, feed: WaitingFeed, choice: Choice, avoided: int) -> Slot | None:
        """Choose one in the same way, of the workers that the feed does not avoid."""


@dataclass(frozen=True, slots=True)
class PlacementStrategy:
    """The functions of one strategy."""

    chooser: Callable[[FleetLoads, Rules, Sequence[WaitingFeed]], WorkerChoice]
    """Makes what chooses workers for these feeds, which are about to be placed."""
    rebalance: Callable[[Moves, Rules], None]
    """Moves feeds as far as the limit on moves allows."""
    donors: Callable[[FleetLoads, Rules], list[Slot]]
    """Lists the workers whose feeds `rebalance` could move, going by their counters alone."""


STRATEGIES: Mapping[Strategy, PlacementStrategy] = {
    Strategy.BALANCED: PlacementStrategy(
        lambda fleet, rules, _: Balanced(fleet, rules),
        lambda made, rules: BalancedRebalancer(made, rules).run(),
        balanced_donors,
    ),
    Strategy.RENDEZVOUS: PlacementStrategy(
        Rendezvous, lambda made, rules: RendezvousRebalancer(made, rules).run(), rendezvous_donors
    ),
}
