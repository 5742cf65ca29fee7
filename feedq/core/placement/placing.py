"""Places feeds: decides which worker each waiting feed goes to.

Feeds that are promised to a worker go there. The others follow, the heaviest first, and those of equal weight by
tenant: each to the worker that the strategy chooses among the eligible ones, which have room, have the labels that
the feed's selector requires, and are below the tenant's cap. Workers with all the labels that it prefers come
first; when all of them are full, any other eligible worker takes it.

A feed goes elsewhere when it has failed somewhere: to an eligible worker on which it has not, and when there is
none, to the one on which it failed longest ago. Workers that cannot write to a feed's sink are not eligible while
any other one is, full or not: it would land nothing there. Workers that lag come after all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from feedq.core.model import Reason
from feedq.core.placement.balanced import Balanced
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Placement, Rules, Strategy, is_settled
from feedq.core.placement.fleet_loads import Choice, FleetLoads, Slot
from feedq.core.placement.rendezvous import Rendezvous


def place(
    waiting: Iterable[FeedToPlace], workers: Sequence[EligibleWorker], *, now: datetime, rules: Rules
) -> Placement:
    """Assign every waiting feed that fits.

    While *every* worker is younger than ``rules.settle_s`` the fleet is starting cold, and nothing is placed but
    what was promised: the first worker up must not take everything. One older worker is enough to go ahead.
    """
    fleet = FleetLoads(workers)
    queue = in_order(waiting)
    assignments, queue = _place_promised(queue, fleet)
    if workers and not any(is_settled(worker, now=now, settle_s=rules.settle_s) for worker in workers):
        return Placement(tuple(assignments), tuple((feed.feed_id, Reason.SETTLING) for feed in queue))
    unplaced: list[tuple[int, Reason]] = []
    for feed, slot in assign(queue, fleet, rules):
        if slot is not None:
            assignments.append((feed.feed_id, slot.worker_id))
        else:
            unplaced.append((feed.feed_id, _why_not(feed, fleet)))
    return Placement(tuple(assignments), tuple(unplaced))


def in_order(waiting: Iterable[FeedToPlace]) -> list[FeedToPlace]:
    """The heaviest first; of equal weight a tenant's one after the other: they fall on different workers."""
    # Three stable sorts by plain values take half the time of one by tuples.
    queue = sorted(waiting, key=attrgetter("feed_id"))
    queue.sort(key=attrgetter("tenant"))
    queue.sort(key=attrgetter("weight"), reverse=True)
    return queue


def assign(
    queue: Sequence[FeedToPlace], fleet: FleetLoads, rules: Rules
) -> Iterator[tuple[FeedToPlace, Slot | None]]:
    """Fill the fleet up with these feeds, in this order, as far as it is asked to: who took each, or None."""
    by_hash = rules.strategy is Strategy.RENDEZVOUS
    choose = Rendezvous(fleet, rules, queue).choose if by_hash else Balanced(fleet, rules).choose
    is_limited = bool(fleet.without)
    for feed in queue:
        # Nearly all feeds avoid nobody: of a million each step counts.
        if feed.avoid or is_limited:
            choice, avoided = fleet.choice_of(feed), fleet.avoided(feed.avoid)
            slot = choose(feed, choice, avoided) or _longest_ago(feed, choice, fleet, rules)
        else:
            slot = choose(feed, fleet.choice(feed.selector))
        if slot is not None:
            fleet.take(slot, feed.weight, feed.tenant)
        yield feed, slot


def _longest_ago(feed: FeedToPlace, choice: Choice, fleet: FleetLoads, rules: Rules) -> Slot | None:
    """Finds, of the workers on which a feed failed and that have room, the one on which it did so longest ago."""
    for name, _ in feed.avoid:
        for slot in fleet.named.get(name, ()):
            is_eligible = any(mask >> slot.index & 1 for mask in choice.tiers)
            if is_eligible and slot.key is not None and not fleet.is_capped(slot, feed.tenant, rules):
                return slot
    return None


def _why_not(feed: FeedToPlace, fleet: FleetLoads) -> Reason:
    has_match = fleet.choice(feed.selector).matched or not fleet.slots
    return Reason.NO_CAPACITY if has_match else Reason.NO_MATCH


def _place_promised(
    queue: Sequence[FeedToPlace], fleet: FleetLoads
) -> tuple[list[tuple[int, UUID]], list[FeedToPlace]]:
    """A promise is counted with its worker already, so it needs no room there and takes none.

    A worker that lacks a required label, as the feed was edited or the worker came back with others, is left out;
    so is one that cannot write to its sink while another can.
    """
    kept: list[tuple[int, UUID]] = []
    rest: list[FeedToPlace] = []
    for feed in queue:
        slot = fleet.by_id.get(feed.worker_id) if feed.worker_id is not None else None
        if slot is None:
            rest.append(feed)
        elif any(mask >> slot.index & 1 for mask in fleet.choice_of(feed).tiers):
            kept.append((feed.feed_id, slot.worker_id))
        else:
            fleet.give(slot, min(feed.weight, slot.load), feed.tenant)
            rest.append(feed)
    return kept, rest
