"""The reconcile pass on paper: what the real one decides, by the same functions and within the same bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from feedq.control import MOVABLE_PER_PASS, PLACEMENTS_PER_PASS
from feedq.model import Reason, WorkerState, WorkerTarget
from feedq.placement import donors, place, rebalance
from feedq.placement.base import is_settled
from feedq.simulate.fleet import PaperFeed, PaperFleet, moment


@dataclass(slots=True)
class Decided:
    """What follows from a pass."""

    assigned: Sequence[PaperFeed] = ()
    moving: Sequence[PaperFeed] = field(default_factory=list)
    """Feeds whose owners were asked to let go."""
    more: bool = False
    """Whether another pass should follow at once."""
    settling: bool = False
    """Whether the fleet starts cold, and nothing was placed for that."""


class Reconcile:
    """Passes over a fleet."""

    def __init__(self, fleet: PaperFleet) -> None:
        self._fleet = fleet
        self._evened_out: object = None
        """What the fleet looked like when no move was found for it."""

    def run(self, now: int) -> Decided:
        decided = self._place(now) if self._fleet.waiting else Decided()
        if not decided.more and not decided.settling:
            decided.moving = self._even_out(now)
        return decided

    def _place(self, now: int) -> Decided:
        fleet = self._fleet
        page = fleet.next_waiting(PLACEMENTS_PER_PASS)
        decision = place(page, fleet.candidates(), now=moment(now), rules=fleet.rules)
        for feed_id, worker_id in decision.assignments:
            fleet.assign(fleet.feeds[feed_id], fleet.sessions[worker_id])
        for feed_id, reason in decision.unplaced:
            fleet.feeds[feed_id].reason = reason
            # To the end of the queue, so that feeds without a place keep no others from theirs.
            fleet.waiting[feed_id] = fleet.waiting.pop(feed_id)
        assigned = [fleet.feeds[feed_id] for feed_id, _ in decision.assignments]
        return Decided(
            assigned=assigned,
            more=len(page) == PLACEMENTS_PER_PASS and bool(assigned),
            settling=any(reason is Reason.SETTLING for _, reason in decision.unplaced),
        )

    def _even_out(self, now: int) -> list[PaperFeed]:
        fleet, at = self._fleet, moment(now)
        moves = fleet.rules.moves - fleet.moving
        if moves <= 0:
            return []
        candidates, leaving = fleet.candidates(), self._leaving()
        settle_s = fleet.rules.settle_s
        looks = [(c.worker_id, c.feeds, c.load, is_settled(c, now=at, settle_s=settle_s)) for c in candidates]
        if (looks, leaving) == self._evened_out:
            return []
        sources = list(dict.fromkeys([*donors(candidates, now=at, rules=fleet.rules), *leaving]))
        held = fleet.movable(sources, limit=MOVABLE_PER_PASS)
        transfers = rebalance(held, candidates, now=at, rules=fleet.rules, moves=moves) if held else ()
        for transfer in transfers:
            fleet.promise(fleet.feeds[transfer.feed_id], fleet.sessions[transfer.target])
        if not transfers:
            self._evened_out = (looks, leaving)
        return [fleet.feeds[transfer.feed_id] for transfer in transfers]

    def _leaving(self) -> dict[UUID, int]:
        """Drained workers that still have feeds."""
        active = (w for w in self._fleet.sessions.values() if w.state is WorkerState.ACTIVE)
        return {w.id: len(w.leases) for w in active if w.target is WorkerTarget.DRAINED and w.leases}
