"""A reconcile pass: set-based statements inside one transaction, one pass at a time in the fleet.

With nothing to do, a pass reads a handful of partial indexes that are empty, and no row of any feed. The planner
cannot know how many feeds somebody has touched: of a million all are dirty, and a minute later none is. So
whatever it assumes, the statements here look up single feeds by their keys.

The *sweep* trims what is too old, and weighs feeds anew, a page of them a pass. A page is small, so that no pass
takes long because of it and nothing stays locked; where it ended is kept in the fleet's row. It does not look for
what people have changed by hand: triggers notice that at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from feedq.control.store import history
from feedq.control.store.assigning import (
    FeedToPlace,
    PassAssignments,
    experiences,
)
from feedq.control.store.channels import wake_reconcile
from feedq.control.store.database import Connection, Database
from feedq.control.store.feed_rows import (
    avoided_from,
    selector_from,
)
from feedq.control.store.leases import BIGINT_MAX
from feedq.control.store.protocol import call, document
from feedq.core.lease import CLEARED_BY_EDIT, Edit, OutageGrace
from feedq.core.model import Feed, Lease, Worker
from feedq.core.placement.base import NO_EXPERIENCE, Held, Transfer

OVERDUE_PER_PASS = 10_000
"""Bounds a pass after an outage of the broker; the rest is for the next."""

SWEEP_PAGE = 5_000
"""Feeds of one page, and events that are trimmed with it."""


@dataclass(frozen=True, slots=True)
class SuspectWorker:
    """A worker that may be gone, its row locked until the pass ends."""

    worker: Worker
    has_session: bool


class FleetAtPass(msgspec.Struct, frozen=True):
    """The state in which a pass finds the fleet, or leaves it."""

    now: datetime
    evened_out: str | None
    waiting_after: int
    sweep_at: datetime | None
    swept_to: int | None


class Moving(msgspec.Struct, frozen=True):
    """What is on its way in the fleet."""

    held: int
    """Idle feeds that are held for the successor of their worker."""
    under_way: Mapping[UUID, int]
    """Feeds that were asked to move and are not connected at their new worker yet, by that worker."""
    leaving: Mapping[UUID, int]
    """Workers that are to hand over all they have, with how many feeds that still are."""


class FeedThatRuns(FeedToPlace, frozen=True):
    """A feed that may be moved."""

    worker_id: UUID


class Fleet:
    """The operations on the fleet as a whole."""

    def __init__(self, database: Database, *, retention_days: int) -> None:
        self._database = database
        self._retention_days = retention_days

    @contextmanager
    def reconcile_pass(self, *, measured_load: float = 0.0) -> Iterator[ReconcilePass | None]:
        """Begin a pass; None when another one is under way. Leaving the block commits and stamps it.

        ``measured_load``, from 0 to 1, is how much of a feed's weight is what was measured of it.
        """
        with self._database.transaction() as c:
            found = call(c, "begin_pass", list[FleetAtPass])
            if not found:
                yield None
                return
            this_pass = ReconcilePass(
                c, found[0], retention_days=self._retention_days, measured_load=measured_load
            )
            yield this_pass
            this_pass.stamp()

    def wake(self) -> None:
        """Ask for a reconcile pass soon."""
        with self._database.transaction() as c:
            wake_reconcile(c)


class ReconcilePass(PassAssignments):
    """A pass of reconcile: one transaction, and only one in the fleet at a time."""

    def __init__(
        self, connection: Connection, state: FleetAtPass, *, retention_days: int, measured_load: float
    ) -> None:
        self._c = connection
        self._retention_days = retention_days
        self._measured_load = measured_load
        self.now = state.now
        """The database's clock at the beginning of the pass."""
        self.evened_out = state.evened_out
        """The fleet for which no move was found, as a fingerprint: it need not be considered again."""
        self._waiting_after = state.waiting_after
        self._sweep_at = state.sweep_at
        """When the latest sweep began."""
        self._swept_to = state.swept_to
        """The feed that the next pass goes on from; None when the sweep is done."""
        self._page: Mapping[str, int] | None = None
        """The feeds that this pass has swept."""

    def stamp(self) -> None:
        if self._page is not None:
            # At the end: it locks rows that owners report on, and must not wait for anybody after that.
            call(self._c, "weigh", int, **self._page, **self._means)
        state = FleetAtPass(self.now, self.evened_out, self._waiting_after, self._sweep_at, self._swept_to)
        call(self._c, "end_pass", int, state=msgspec.json.encode(state).decode())

    def outage_grace(self, *, ttl_s: float) -> OutageGrace:
        """Return since when the database was heard from without a break of more than half a ttl.

        Such a break may still be under way: the first to come back after an outage may be this very pass.
        """
        # A pass may be the first to come back after an outage, before any heartbeat could renew.
        sql = "SELECT feedq_1.served_since(f, %(ttl_s)s) FROM feedq.fleet f"
        return OutageGrace(self._c.execute(sql, {"ttl_s": ttl_s}).scalar_one())

    def suspects(self) -> list[SuspectWorker]:
        """Workers past their expiry or suspected by the beat, locked so that a late heartbeat waits."""
        return call(self._c, "suspects", list[SuspectWorker])

    def expire_workers(self, worker_ids: Sequence[UUID]) -> int:
        """Declare gone *and* free every lease, in this transaction. Returns how many leases were freed."""
        return call(self._c, "expire", int, workers=list(worker_ids))

    def overdue(self) -> list[UUID]:
        """Withdraw assignments never claimed in time: back to idle, to be placed anew.

        Returns the worker of each.
        """
        return call(self._c, "withdraw_overdue", list[UUID], most=OVERDUE_PER_PASS)

    def end_backfills(self) -> int:
        """Write the end of each backfill that has finished into the history of its feed, and forget it. Returns
        how many."""
        return call(self._c, "end_backfills", int)

    def quarantined(self) -> list[Lease]:
        """Leases of feeds in quarantine that run, in it or still among others."""
        return call(self._c, "quarantined", list[Lease])

    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        """Ask their owners to stop. What is ``quarantined`` here goes on apart, what is not among all others."""
        feeds = [{"feed_id": lease.feed_id, "apart": lease.quarantined} for lease in leases]
        call(self._c, "part", int, feeds=document(feeds), stop_within_s=stop_within_s)

    # -- what people have changed --------------------------------------------------------------------

    def accept_new(self, *, limit: int) -> int:
        """Make the lease rows that are missing, and mark clean what needs a place and nothing else, such as new
        rows made by hand. Of the first ``limit`` dirty feeds. Returns how many are clean now."""
        cleared = [reason.value for reason in CLEARED_BY_EDIT if reason is not None]
        return call(self._c, "accept_new", int, most=limit, cleared=cleared)

    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        """Feeds that a person touched, with their leases; a lease row that is missing is made."""
        return call(self._c, "dirty", list[tuple[Feed, Lease]], most=limit)

    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        """Perform the decisions for these feed ids and mark them clean."""
        given = [
            {"feed_id": feed_id, "move": "purge" if edit.purge else edit.move, "reason": edit.reason}
            for feed_id, edit in edits
        ]
        call(self._c, "apply_edits", bool, edits=document(given), stop_within_s=stop_within_s)

    # -- moves ---------------------------------------------------------------------------------------

    def moving(self, *, within_s: float) -> Moving:
        """What is on its way already; of what was asked to move, what was so within this time."""
        return call(self._c, "moving", Moving, within_s=within_s)

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        """Running feeds of these workers, of each the one that has run there longest first; at most ``limit``
        in all, an equal part of each worker."""
        if not worker_ids:
            return []
        known = experiences(self._c, proven=False)
        share = max(1, limit // len(worker_ids))
        given = {"owners": list(worker_ids), "most": share, **self._means}
        held = []
        for one in call(self._c, "movable", list[FeedThatRuns], **given):
            feed = Held(
                one.feed_id, one.worker_id, one.weight, one.tenant, selector_from(one.selector), sink=one.sink
            )
            if one.avoid or one.remote in known:
                own, others = avoided_from(one.avoid), known.get(one.remote, NO_EXPERIENCE)
                feed = replace(feed, avoid=others.avoided(own), reached=others.reached(own))
            held.append(feed)
        return held

    def reap(self) -> int:
        """Free what an owner was asked to release and has not in time. Returns how many leases."""
        return call(self._c, "reap", int)

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        """Ask the owners to release these feeds, and promise each feed to its target. Returns how many were
        asked."""
        return call(self._c, "transfer", int, transfers=document(transfers), stop_within_s=stop_within_s)

    # -- the sweep -----------------------------------------------------------------------------------

    def sweep_is_due(self, *, interval_s: float) -> bool:
        """Return whether a sweep is under way, or the last one began this long ago."""
        if self._swept_to is not None or self._sweep_at is None:
            return True
        return self._sweep_at <= self.now - timedelta(seconds=interval_s)

    def sweep(self) -> None:
        """Trim the history of one page of feeds, and weigh them anew at the end of the pass. The next pass goes on
        with the next page."""
        c, after = self._c, self._swept_to or 0
        if self._swept_to is None:
            self._sweep_at = self.now
        last = "SELECT id FROM feedq.feed WHERE id > %(after)s ORDER BY id LIMIT 1 OFFSET %(page)s - 1"
        upto = c.execute(last, {"after": after, "page": SWEEP_PAGE}).scalar_one_or_none()
        self._page = page = {"after": after, "upto": BIGINT_MAX if upto is None else upto}
        bounds = {"days": self._retention_days, "per_feed": history.EVENTS_PER_FEED, "most": SWEEP_PAGE}
        too_many, too_old = call(c, "trim_history", tuple[int, int], **page, **bounds)
        if too_many == SWEEP_PAGE or (upto is None and too_old == SWEEP_PAGE):
            upto = after  # there is more to trim: this page once more
        elif upto is None:
            call(c, "forget", int, days=self._retention_days)
        self._swept_to = upto
