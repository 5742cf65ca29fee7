"""Chooses which running feeds go on elsewhere, so that the fleet is even again with as few moves as possible.

First the feeds whose worker is to have none leave it, each to where `place` would put it; without a place it
stays. Then the strategy rebalances: see `feedq.core.placement.balanced` and `feedq.core.placement.rendezvous`.
Nothing is moved to a worker that has not settled, or lags, or on which the feed failed, and no move breaks what
`place` keeps to: labels, caps, capacity, sinks. None leads from a worker with the preferred labels to one
without.

Asked again after all of an answer was carried out, `balanced` finds nothing more to move; asked with a limit on
moves, both come to an end: no state of the fleet comes twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from feedq.core.placement.balanced import BalancedRebalancer, balanced_donors
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Rules, Strategy
from feedq.core.placement.fleet_loads import FleetLoads, Moves
from feedq.core.placement.placing import assign, in_order
from feedq.core.placement.rendezvous import rebalance_rendezvous, rendezvous_donors

NOTHING: Mapping[UUID, int] = MappingProxyType({})


def rebalance(
    held: Iterable[FeedToPlace],
    workers: Sequence[EligibleWorker],
    *,
    now: datetime,
    rules: Rules,
    moves: int,
    under_way: Mapping[UUID, int] = NOTHING,
    together: int | None = None,
) -> Moves:
    """Chooses at most so many ``moves``, the most useful first.

    ``held`` are feeds that may be moved, in the order in which they should be chosen among equals. A feed whose
    worker is none of ``workers`` has to leave it, as soon as there is a place for it. To workers that feeds are
    ``under_way`` to, none goes to see whether it fails there still; what they mean with ``together``: see `Moves`.
    """
    fleet = FleetLoads(workers, settled=(now, rules.settle_s))
    feeds = _with_one_try(list(held), fleet, now=now, rules=rules, busy=under_way.keys())
    made = Moves(fleet, feeds, limit=moves, under_way=under_way, together=together)
    while made.left > 0:
        _move_off(made, rules)
        before = made.made
        if made.left > 0:
            if rules.strategy is Strategy.RENDEZVOUS:
                rebalance_rendezvous(made, rules)
            else:
                BalancedRebalancer(made, rules).run()
        # Rebalancing can have made room for what could not leave before.
        if made.made == before or not made.stranded:
            break
    return made


def donors(workers: Sequence[EligibleWorker], *, now: datetime, rules: Rules) -> tuple[UUID, ...]:
    """Workers that `rebalance` could move feeds from, going by their counters alone; none means that it moves none
    (but those of workers that are no candidates). A worker named may turn out to have no feed that fits elsewhere.

    Feeds count as equal in weight when the loads of all workers are in proportion to their numbers of feeds.
    """
    fleet = FleetLoads(workers, settled=(now, rules.settle_s))
    find = rendezvous_donors if rules.strategy is Strategy.RENDEZVOUS else balanced_donors
    return tuple(slot.worker_id for slot in find(fleet, rules))


def _with_one_try(
    held: list[FeedToPlace], fleet: FleetLoads, *, now: datetime, rules: Rules, busy: Collection[UUID]
) -> list[FeedToPlace]:
    """Picks one feed for each worker that feeds avoid and on which none has failed for long: it may be moved
    there. The others may once one of their remote has landed records there. Most feeds avoid nobody."""
    failed: dict[UUID, list[tuple[datetime, int]]] = {}
    long_ago = now - timedelta(seconds=rules.avoid_s)
    for position, feed in enumerate(held):
        if not feed.avoid:
            continue
        if feed.reached:
            kept = tuple(one for one in feed.avoid if one[0] not in feed.reached or one[1] > long_ago)
            held[position] = feed = replace(feed, avoid=kept)
        for name, at in feed.avoid:
            for slot in fleet.named.get(name, ()):
                failed.setdefault(slot.worker_id, []).append((at, position))
    for worker_id, failures in failed.items():
        if worker_id not in busy and max(failures)[0] <= long_ago:
            position, name = min(failures)[1], fleet.by_id[worker_id].name
            feed = held[position]
            held[position] = replace(feed, avoid=tuple(one for one in feed.avoid if one[0] != name))
    return held


def _move_off(made: Moves, rules: Rules) -> None:
    queue = in_order(feed for _, feed in made.stranded.values())
    for feed, slot in assign(queue, made.fleet, rules):
        if slot is not None:
            made.evacuate(feed.feed_id, slot)
            if made.left <= 0:
                break
    # Those that have feeds of the last tenant still stand apart in them.
    made.fleet.drop_pools()
