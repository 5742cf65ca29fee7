"""The interfaces of the control database.

Two implementations: `feedq.control.store.postgresql.PostgresStore`, the real one, and `tests.fakes.MemoryStore`,
for scenarios ticked by hand. One contract suite (``tests/contract``) runs over both. Every method is one
transaction and one decision; the database's clock is the only one that counts.

All methods block and may raise `feedq.errors.Unavailable`; none is called from an event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from feedq.core.lease import Edit, OutageGrace
from feedq.core.model import (
    Assignment,
    ChangedCursor,
    Claim,
    Event,
    Feed,
    FeedKey,
    FeedSpec,
    FeedView,
    Heartbeat,
    Lease,
    Load,
    Loss,
    NewWorker,
    Progress,
    Reason,
    Release,
    StopRequest,
    TargetState,
    Version,
    Worker,
    WorkerState,
    WorkerTarget,
    WorkerView,
)
from feedq.core.placement.base import EligibleWorker, Held, Transfer, WaitingFeed
from feedq.core.selection import Selection, SelectionOrder
from feedq.core.tap import TapPart
from feedq.errors import Outdated
from feedq.telemetry.event_names import EventKind


def require_version(what: str, found: Version, expected: Version | None) -> None:
    """Raises `Outdated` unless ``what`` is as it was when it was looked at."""
    if expected is None or found == expected:
        return
    if found[0] != expected[0]:
        raise Outdated(f"{what} was removed and declared anew: look at it again, and repeat the change")
    raise Outdated(
        f"{what} is of generation {found[1]} by now, and not of {expected[1]}: look at it again, and repeat the "
        "change"
    )


class Feeds(Protocol):
    """Desired state. Every change marks the feed dirty, writes an event, and wakes reconcile."""

    def together(self) -> AbstractContextManager[Feeds]:
        """Make all that is done with these feeds within the block one transaction: a few hundred changes take
        hardly longer than ten. An error that leaves the block undoes them all."""

    def add(self, spec: FeedSpec) -> Feed:
        """Declare a feed. It is not dirty: its lease says all there is to know. Raises `Conflict` when a feed of
        that name exists."""

    def edit(self, name: str, spec: FeedSpec, *, expected: Version | None = None) -> Feed:
        """Replace the declaration. Unchanged declarations keep their generation. Raises `NotFound`.

        Here and below, ``expected`` is the version that the change was decided for: `Outdated` when it is another.
        """

    def set_target(self, name: str, target: TargetState, *, expected: Version | None = None) -> Feed: ...

    def restart(self, name: str, *, expected: Version | None = None) -> Feed:
        """Bump the generation without a change: the stream stops and starts anew, failures are forgotten."""

    def cursor_changed(self, name: str, change: ChangedCursor) -> Feed:
        """Record that a person changes the cursor in the sink, and restart the feed; called right before the sink
        commits. Raises `NotFound`, and `Forbidden` when the feed is not the author's to change."""

    def remove(self, name: str, *, expected: Version | None = None) -> Feed:
        """Mark as removed; the feed's rows go once nobody streams it."""

    def move(self, name: str, target: UUID, *, stop_within_s: float) -> None:
        """Promise the feed to this worker, and ask its owner to release it within this time.

        Raises `NotFound`, and `Conflict` when the feed cannot be moved as it is (`lease.objection_to_move`).
        Whether the worker may have it is for the caller to say; should it not take feeds by then, the feed
        goes anywhere.
        """

    def tell(
        self, name: str, kind: EventKind, detail: Mapping[str, Any], *, before: Version | None = None
    ) -> None:
        """Write down what somebody did to the feed elsewhere, in its sink say; or is about to do, ``before``
        which the feed has to be of this version, and theirs to change. Raises `NotFound`."""

    def get(self, name: str) -> Feed: ...

    def view(self, name: str) -> FeedView: ...

    def views(self, *, tenant: str | None = None, worker: str | None = None) -> list[FeedView]:
        """Return all feeds by name, the ones being removed included."""

    def selected(
        self,
        selection: Selection,
        *,
        order: SelectionOrder = SelectionOrder.NAME,
        limit: int | None = None,
    ) -> list[FeedView]:
        """Return the chosen feeds, in this order."""

    def count(self) -> int:
        """Return how many there are, without the ones being removed."""

    def declared(self, *, tenant: str | None = None, after: str = "", limit: int = 1_000) -> list[Feed]:
        """A page of feeds by name, from the first one after this name on, without the ones being removed: for
        whoever wants a hundred thousand."""

    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        """Newest first."""


class Workers(Protocol):
    """Worker sessions."""

    def register(self, new: NewWorker, *, ttl_s: float) -> Worker: ...

    def heartbeat(self, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
        """Renew every lease of the worker, in one statement. None: it was declared gone."""

    def drain(self, worker_id: UUID) -> bool:
        """The process is ending: it takes no more feeds, and releases those it has by itself. What it has
        not claimed yet is free at once. False when it is gone."""

    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
        """Set what a person wants of a worker. Unless it is to serve, what it has not claimed yet is free at
        once; what it runs is handed over by passes. Wakes reconcile. False when it is gone."""

    def leave(self, worker_id: UUID) -> None:
        """Say goodbye: free what is left and end the session."""

    def views(self, *, gone: bool = False) -> list[WorkerView]:
        """All workers by name; ``gone`` includes ended sessions."""

    def report_loss(self, worker_id: UUID, loss: Loss) -> bool:
        """Write down how the process of a worker session was lost, and hold it against the feed that is to blame
        (`lease.on_loss`). Once a session: False when it is known already. Wakes reconcile."""

    def gone_among(self, worker_ids: Collection[UUID]) -> set[UUID]:
        """Return which of these workers are declared gone, or unknown by now."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A lease as seen by a process that streams the feed on behalf of another process's worker session."""

    worker_id: UUID
    worker_state: WorkerState
    stopping: Reason | None
    """Set when the owner was asked to stop."""
    remaining_s: float
    """The seconds until the worker's last heartbeat expires, on the database's clock."""
    tapped: bool = False
    """Whether somebody listens to its records."""


class Leases(Protocol):
    """The owner's side of the lease. Each statement matches feed, epoch and worker, or does nothing."""

    def claim(self, worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        """assigned → running. Keys that do not match are left out: their messages are stale."""

    def claimed(self, worker_id: UUID, key: FeedKey) -> Claim | None:
        """A claim that was granted to this worker before and still holds; None when it does not."""

    def release(self, worker_id: UUID, releases: Sequence[Release]) -> list[FeedKey]:
        """running or stopping → idle; wakes reconcile. Returns what matched."""

    def report(self, worker_id: UUID, progress: Sequence[Progress]) -> list[FeedKey]:
        """Add up progress. Returns what matched; the rest has been lost and must be stopped."""

    def assigned(self, worker_id: UUID, *, limit: int) -> list[FeedKey]:
        """Return the assignments that wait for this worker to claim them, whether or not a message says so."""

    def stop_requests(self, worker_id: UUID) -> list[StopRequest]: ...

    def running_of(self, tenants: Collection[str]) -> dict[str, int]:
        """Return how many feeds of each of these tenants run, on all workers; none is left out."""

    def held(self, worker_id: UUID) -> list[FeedKey]:
        """Return what the database thinks this worker runs (running or stopping)."""

    def follow(self, key: FeedKey) -> Followed | None:
        """Look up who holds the lease under ``key``, and for how long. None: nobody does, under this epoch."""

    def raise_epoch(self, worker_id: UUID, key: FeedKey, *, above: int) -> FeedKey | None:
        """Lift a running lease above the epoch its sink has seen (the control database is a restored one).

        Returns the new key, or None when the lease is no longer held under ``key``.
        """


@dataclass(frozen=True, slots=True)
class SuspectWorker:
    """A worker that may be gone, its row locked until the pass ends."""

    worker: Worker
    has_session: bool


class Placing(Protocol):
    """The operations that give feeds their places, and move them to better ones."""

    now: datetime
    """The database's clock at the beginning of the pass."""
    evened_out: str | None
    """The fleet for which no move was found, as a fingerprint: it need not be considered again."""

    def waiting(self, *, limit: int) -> list[WaitingFeed]:
        """Feeds to place now. When there are more than ``limit`` the next pass begins where this one ends, so
        that feeds without a place keep no others from theirs."""

    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        """Workers that may be given feeds; with their feeds of these tenants, counted from the leases."""

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]: ...

    def explain(self, unplaced: Sequence[tuple[int, Reason]]) -> None:
        """Write why feeds wait, where that changed."""

    def leaving(self) -> dict[UUID, int]:
        """Workers that are to hand over all they have, with how many feeds that still are."""

    def moves_under_way(self, *, within_s: float) -> dict[UUID, int]:
        """Feeds that were asked to move within this time and are not connected at their new worker yet, by that
        worker."""

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        """Running feeds of these workers, of each the one that has run there longest first; at most ``limit``
        in all, an equal part of each worker."""

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        """Ask the owners to release these feeds, and promise each feed to its target. Returns how many were
        asked."""


class ReconcilePass(Placing, Protocol):
    """A pass of reconcile: one transaction, and only one in the fleet at a time."""

    def outage_grace(self, *, ttl_s: float) -> OutageGrace:
        """Return since when the database was heard from without a break of more than half a ttl.

        Such a break may still be under way: the first to come back after an outage may be this very pass.
        """

    def suspects(self) -> list[SuspectWorker]:
        """Workers past their expiry or suspected by the beat, locked so that a late heartbeat waits."""

    def expire_workers(self, worker_ids: Sequence[UUID]) -> int:
        """Declare gone *and* free every lease, in this transaction. Returns how many leases were freed."""

    def accept_new(self, *, limit: int) -> int:
        """Make the lease rows that are missing, and mark clean what needs a place and nothing else, such as new
        rows made by hand. Of the first ``limit`` dirty feeds. Returns how many are clean now."""

    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        """Feeds that a person touched, with their leases; a lease row that is missing is made."""

    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        """Perform the decisions for these feed ids and mark them clean."""

    def end_backfills(self) -> int:
        """Write the end of each backfill that has finished into the history of its feed, and forget it. Returns
        how many."""

    def quarantined(self) -> list[Lease]:
        """Leases of feeds in quarantine that run, in it or still among others."""

    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        """Ask their owners to stop. What is ``quarantined`` here goes on apart, what is not among all others."""

    def reap(self) -> int:
        """Free what an owner was asked to release and has not by its `stop_by`. Returns how many leases."""

    def overdue(self, *, timeout_s: float) -> list[UUID]:
        """Withdraw assignments never claimed in time: back to idle, to be placed anew.

        Returns the worker of each.
        """

    def sweep(self, *, stop_within_s: float) -> int:
        """Compare one page of feeds with their leases, mark what does not add up as dirty, count anew what
        workers hold, trim history. Returns repairs. It goes on with the next page in the pass that comes
        after."""

    def sweep_is_due(self, *, interval_s: float) -> bool:
        """Return whether a sweep is under way, or the last one began this long ago."""

    def waiting_by_reason(self) -> dict[Reason, int]:
        """Idle feeds by reason: those held right now, and the rest as the last sweep counted them."""


class FleetStore(Protocol):
    """The operations on the fleet as a whole."""

    def reconcile_pass(self, *, measured_load: float = 0.0) -> AbstractContextManager[ReconcilePass | None]:
        """Begin a pass; None when another one is under way. Leaving the block commits and stamps it.

        ``measured_load``, from 0 to 1, is how much of a feed's weight is what was measured of it.
        """

    def wake(self) -> None:
        """Ask for a reconcile pass soon."""


class DatabaseSession(Protocol):
    """A session that lives as long as its worker, and holds the worker's lock."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification; True when one came in time. Raises `Unavailable` as soon as the session
        breaks."""

    def interrupt(self) -> None:
        """End a `wait` under way in another thread."""

    def close(self) -> None: ...


class Listener(DatabaseSession, Protocol):
    """Notifications for one worker."""

    @property
    def heard(self) -> Collection[str]:
        """The payloads of what came in the last `wait`, see `feedq.control.store.channels.NotifyReason`."""


class WorkerSession(DatabaseSession, Protocol):
    """The lease keeper's own session, which carries the worker's heartbeat."""

    @property
    def locks_hold(self) -> bool:
        """Whether the session lock is really ours; not so behind a transaction pooler."""

    def heartbeat(self, load: Load) -> Heartbeat | None: ...


class Taps(Protocol):
    """What listeners are shown of running feeds."""

    def put(self, worker_id: UUID, parts: Sequence[TapPart]) -> None:
        """Show what this worker has landed; what nobody listens to is dropped."""


class Store(Protocol):
    """The control database."""

    @property
    def feeds(self) -> Feeds: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def fleet(self) -> FleetStore: ...

    def session(self, worker: Worker, *, ttl_s: float) -> WorkerSession:
        """Open the lease keeper's session. Raises `Unavailable`."""

    def worker_listener(self, worker: Worker) -> Listener:
        """Hears stop requests for this worker."""

    def close(self) -> None: ...


class WorkerStore(Store, Protocol):
    """The control database as the process of a worker needs it."""

    @property
    def taps(self) -> Taps: ...
