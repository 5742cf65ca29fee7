"""A reconcile pass: set-based statements inside one transaction, one pass at a time in the fleet.

With nothing to do, a pass is five statements that read a handful of empty partial indexes, and no row of any
feed. The planner cannot know how many feeds somebody has touched: of a million all are dirty, and a minute later
none is. So whatever it assumes, the statements here look up single feeds by their keys.

A million feeds may be without a place for long. So the ones about which something is new come first, and those
that were found to have no place take turns: each pass goes on where the one before it ended.

A feed weighs what is declared, blended with what was measured of it: one that lands as many rows and bytes a
second as the mean of the fleet measures 1; half of the measure is rows, half bytes. Progress holds the smoothed
rates, workers' heartbeats the fleet's sums.

What workers hold is counted, so that a pass reads a row a worker and none of their feeds. Triggers on `lease`
write what a statement changed to ``held_change``, and each pass folds that into ``worker_held``. A change and the
line that tells of it commit together, so the two tables always add up to the truth.

The *sweep* trims what is too old, and weighs feeds anew, a page of them a pass. A page is small, so that no pass
takes long because of it and nothing stays locked; where it ended is kept in the fleet's row. It does not look for
what people have changed by hand: triggers notice that at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from feedq.control.store import history
from feedq.control.store.database import Connection, Database
from feedq.control.store.leases import BIGINT_MAX
from feedq.control.store.protocol import call, document
from feedq.control.store.worker_session import wake_reconcile
from feedq.core import limits
from feedq.core.lease import Edit
from feedq.core.model import Assignment, Feed, Lease, Reason, Worker
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Transfer

OVERDUE_PER_PASS = 10_000
"""Bounds a pass after an outage of the broker; the rest is for the next."""

SWEEP_PAGE = 5_000
"""Feeds of one page, and events that are trimmed with it."""


class SuspectWorker(msgspec.Struct, frozen=True):
    """A worker that may be gone, its row locked until the pass ends."""

    worker: Worker
    has_session: bool


class FleetAtPass(msgspec.Struct):
    """The state in which a pass finds the fleet, and leaves it."""

    now: datetime
    """The database's clock at the beginning of the pass."""
    evened_out: str | None
    """The fleet for which no move was found, as a fingerprint: it need not be considered again."""
    waiting_after: int
    """The feed without a place after which the next pass goes on."""
    sweep_at: datetime | None
    """When the latest sweep began."""
    swept_to: int | None
    """The feed that the next pass sweeps on from; None when the sweep is done."""


class Beginning(msgspec.Struct, frozen=True):
    """The state that a pass begins with."""

    state: FleetAtPass
    suspects: Sequence[SuspectWorker]
    served_since: datetime


class Stock(msgspec.Struct, frozen=True):
    """Work that needed no decision and is done, and work that needs one."""

    reaped: int
    """Leases that were freed because their owner was asked to release them and has not in time."""
    silent: Sequence[UUID]
    """Of each assignment that was never claimed in time, and is withdrawn, the worker."""
    quarantined: Sequence[Lease]
    """Leases of feeds in quarantine that run, in it or still among others."""
    dirty: Sequence[tuple[Feed, Lease]]
    """Feeds that a person touched, with their leases."""


class Moving(msgspec.Struct, frozen=True):
    """Moves in progress, and feeds that might move."""

    held: int
    """Idle feeds that are held for the successor of their worker."""
    under_way: Mapping[UUID, int]
    """Feeds that were asked to move and are not connected at their new worker yet, by that worker."""
    leaving: Mapping[UUID, int]
    """Workers that are to hand over all they have, with how many feeds that still are."""
    candidates: Sequence[EligibleWorker]
    """Workers that may be given feeds."""


class Fleet:
    """The operations on the fleet as a whole."""

    def __init__(self, database: Database, *, retention_days: int) -> None:
        self._database = database
        self._retention_days = retention_days

    @contextmanager
    def reconcile_pass(
        self, *, ttl_s: float = 6.0, measured_load: float = 0.0
    ) -> Iterator[ReconcilePass | None]:
        """Begin a pass; None when another one is under way. Leaving the block commits and stamps it.

        When nobody was heard from for half a ``ttl_s``, the database was away. ``measured_load``, from 0 to 1, is
        how much of a feed's weight is what was measured of it.
        """
        with self._database.transaction() as c:
            begun = call(c, "begin_pass", list[Beginning], ttl_s=ttl_s)
            if not begun:
                yield None
                return
            this_pass = ReconcilePass(
                c, begun[0], retention_days=self._retention_days, measured_load=measured_load
            )
            yield this_pass
            this_pass.stamp()

    def wake(self) -> None:
        """Ask for a reconcile pass soon."""
        with self._database.transaction() as c:
            wake_reconcile(c)


class ReconcilePass:
    """A pass of reconcile: one transaction, and only one in the fleet at a time."""

    def __init__(
        self, connection: Connection, beginning: Beginning, *, retention_days: int, measured_load: float
    ) -> None:
        self._c = connection
        self.state = beginning.state
        self.suspects = beginning.suspects
        """Workers past their expiry or suspected by the beat, locked so that a late heartbeat waits."""
        self.served_since = beginning.served_since
        self._retention_days = retention_days
        self._measured = measured_load
        self.now = beginning.state.now
        self._page: Mapping[str, int] | None = None
        """The feeds that this pass has swept."""

    def stamp(self) -> None:
        if self._page is not None:
            # At the end: it locks rows that owners report on, and must not wait for anybody after that.
            call(self._c, "weigh", int, **self._page, measured=self._measured)
        call(self._c, "end_pass", int, state=document(self.state))

    def expire_workers(self, worker_ids: Sequence[UUID]) -> int:
        """Declare gone *and* free every lease, in this transaction. Returns how many leases were freed."""
        return call(self._c, "expire", int, workers=list(worker_ids))

    def take_stock(self, *, edits: int) -> Stock:
        """Do what needs no decision, and find what does; of feeds that somebody touched so many."""
        return call(self._c, "take_stock", Stock, most_edits=edits, most_overdue=OVERDUE_PER_PASS)

    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        """Ask their owners to stop. What is ``quarantined`` here goes on apart, what is not among all others."""
        feeds = [
            {
                "feed_id": lease.feed_id,
                "apart": lease.quarantined,
                "reason": Reason.QUARANTINED if lease.quarantined else Reason.RELEASED,
            }
            for lease in leases
        ]
        call(self._c, "ask_to_stop", int, feeds=document(feeds), stop_within_s=stop_within_s)

    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        """Perform the decisions for these feed ids and mark them clean."""
        given = [{"feed_id": feed_id, "move": edit.move, "reason": edit.reason} for feed_id, edit in edits]
        call(self._c, "apply_edits", bool, edits=document(given), stop_within_s=stop_within_s)

    # -- placement -----------------------------------------------------------------------------------

    def waiting(self, *, limit: int) -> list[FeedToPlace]:
        """Feeds to place now. When there are more than ``limit`` the next pass begins where this one ends, so
        that feeds without a place keep no others from theirs."""
        given = {"most": limit, "after": self.state.waiting_after, "measured": self._measured}
        feeds, self.state.waiting_after = call(self._c, "waiting", tuple[list[FeedToPlace], int], **given)
        return feeds

    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        """Workers that may be given feeds; with their feeds of these tenants, counted from the leases."""
        return call(self._c, "candidates", list[EligibleWorker], of_tenants=list(tenants))

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        places = [{"feed_id": feed_id, "worker_id": worker_id} for feed_id, worker_id in pairs]
        within = limits.DISPATCH_TIMEOUT_S
        return call(
            self._c,
            "assign",
            list[Assignment],
            places=document(places),
            claim_within_s=within,
            measured=self._measured,
        )

    def explain(self, reasons: Sequence[tuple[int, Reason]]) -> None:
        """Write why feeds are idle, where that changed."""
        if not reasons:
            return
        given = [{"feed_id": feed_id, "reason": reason} for feed_id, reason in reasons]
        call(self._c, "explain", int, reasons=document(given))

    # -- moves ---------------------------------------------------------------------------------------

    def moving(self, *, within_s: float) -> Moving:
        """What is on its way already; of what was asked to move, what was so within this time."""
        return call(self._c, "moving", Moving, within_s=within_s)

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[FeedToPlace]:
        """Running feeds of these workers, of each the one that has run there longest first; at most ``limit``
        in all, an equal part of each worker."""
        if not worker_ids:
            return []
        share = max(1, limit // len(worker_ids))
        given = {"owners": list(worker_ids), "most": share, "measured": self._measured}
        return call(self._c, "movable", list[FeedToPlace], **given)

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        """Ask the owners to release these feeds, and promise each feed to its target. Returns how many were
        asked."""
        return call(self._c, "ask_to_stop", int, feeds=document(transfers), stop_within_s=stop_within_s)

    # -- the sweep -----------------------------------------------------------------------------------

    def sweep_is_due(self, *, interval_s: float) -> bool:
        """Return whether a sweep is under way, or the last one began this long ago."""
        s = self.state
        return (
            s.swept_to is not None
            or s.sweep_at is None
            or s.sweep_at <= s.now - timedelta(seconds=interval_s)
        )

    def sweep(self) -> None:
        """Trim the history of one page of feeds, and weigh them anew at the end of the pass. The next pass goes on
        with the next page."""
        c, after = self._c, self.state.swept_to or 0
        if self.state.swept_to is None:
            self.state.sweep_at = self.now
        last = "SELECT id FROM feedq.feed WHERE id > %(after)s ORDER BY id LIMIT 1 OFFSET %(page)s - 1"
        upto = c.execute(last, {"after": after, "page": SWEEP_PAGE}).scalar_one_or_none()
        self._page = page = {"after": after, "upto": BIGINT_MAX if upto is None else upto}
        bounds = {"days": self._retention_days, "per_feed": history.EVENTS_PER_FEED, "most": SWEEP_PAGE}
        too_many, too_old = call(c, "trim_history", tuple[int, int], **page, **bounds)
        if too_many == SWEEP_PAGE or (upto is None and too_old == SWEEP_PAGE):
            upto = after  # there is more to trim: this page once more
        elif upto is None:
            call(c, "forget", int, days=self._retention_days)
        self.state.swept_to = upto
