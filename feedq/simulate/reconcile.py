"""The reconcile pass on paper: the steps of the real one, over a fleet in memory.

What the steps ask a pass of the control database for, `SimulatedPass` answers from the fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from feedq.control import PassReport, place_the_waiting, rebalance_fleet
from feedq.model import Assignment, Reason, WorkerState, WorkerTarget
from feedq.placement.base import EligibleWorker, Held, Transfer, WaitingFeed
from feedq.settings import Settings
from feedq.simulate.agenda import to_ms
from feedq.simulate.simulated_fleet import SimulatedFeed, SimulatedFleet, moment


class Reconcile:
    """Passes over a fleet."""

    def __init__(self, fleet: SimulatedFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._evened_out: str | None = None

    def run(self, now: int) -> SimulatedPass:
        p = SimulatedPass(self._fleet, now, evened_out=self._evened_out)
        place_the_waiting(p, p.report, rules=self._settings.rules, silent=frozenset())
        if not p.more and not p.settling:
            rebalance_fleet(p, p.report, self._settings, held=self._fleet.held)
        self._evened_out = p.evened_out
        return p


class SimulatedPass:
    """One pass, and what followed from it."""

    def __init__(self, fleet: SimulatedFleet, now: int, *, evened_out: str | None) -> None:
        self._fleet = fleet
        self._at = now
        self.now: datetime = moment(now)
        self.evened_out = evened_out
        self.report = PassReport()
        self.assigned: list[SimulatedFeed] = []
        self.moving: list[SimulatedFeed] = []
        """Feeds whose owners were asked to let go."""

    @property
    def more(self) -> bool:
        """Whether another pass should follow at once."""
        return self.report.more

    @property
    def settling(self) -> bool:
        """Whether the fleet starts cold, and nothing was placed for that."""
        return Reason.SETTLING in self.report.unplaced

    def waiting(self, *, limit: int) -> list[WaitingFeed]:
        page = self._fleet.next_waiting(limit)
        for feed in page:
            # To the end of the queue, so that feeds without a place keep no others from theirs.
            self._fleet.waiting[feed.feed_id] = self._fleet.waiting.pop(feed.feed_id)
        return page

    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        return self._fleet.candidates()

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        fleet, made = self._fleet, []
        for feed_id, worker_id in pairs:
            feed, worker = fleet.feeds[feed_id], fleet.sessions[worker_id]
            fleet.assign(feed, worker)
            self.assigned.append(feed)
            made.append(Assignment(feed.id, feed.epoch, worker.id, worker.name))
        return made

    def explain(self, unplaced: Sequence[tuple[int, Reason]]) -> None:
        for feed_id, reason in unplaced:
            self._fleet.feeds[feed_id].reason = reason

    def leaving(self) -> dict[UUID, int]:
        """Drained workers that still have feeds."""
        drained = (
            w
            for w in self._fleet.sessions.values()
            if w.state is WorkerState.ACTIVE and w.target is WorkerTarget.DRAINED
        )
        return {w.id: len(w.leases) for w in drained if w.leases}

    def moves_under_way(self, *, within_s: float) -> dict[UUID, int]:
        return self._fleet.under_way(since=self._at - to_ms(within_s))

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        # Sets of ids have an order of their own in each process; a seed must not.
        return self._fleet.movable(sorted(worker_ids), limit=limit)

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        for transfer in transfers:
            feed = self._fleet.feeds[transfer.feed_id]
            self._fleet.promise(feed, self._fleet.sessions[transfer.target], now=self._at)
            self.moving.append(feed)
        return len(transfers)
