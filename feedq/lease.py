"""The lease: who may run a feed, as a state machine and a handful of decisions.

The protocol, in words. PostgreSQL holds one lease row a feed. Whoever holds it holds it under an
*epoch*, a number that only grows; each statement that matters names the epoch it believes in and has no
effect when that epoch has passed. A worker keeps all its leases with one heartbeat. It may act as owner
only inside its *trust window*, which ends before the database can declare it gone::

            sent_at                                  sent_at + ttl - margin
    worker ────┬──────────────── acts as owner ──────────────┬── cuts its sockets
               │ heartbeat                                   │
    database ──┴──┬──────────────────────────────────────────┴─────────┬── may declare it gone
                  expires_at = its clock + ttl                     expires_at

The window is anchored where the heartbeat was *sent*: the round trip may take as long as it likes, the
database cannot have stamped ``expires_at`` earlier than that. So the old owner has let go before a new
one begins, and no clock is compared with another; they need only run at about the same rate.

This module is pure: it neither reads a clock nor a database. `feedq.control` and `feedq.runtime` perform
what it decides; the diagram in ``docs/explanation/lease.md`` is drawn from `TRANSITIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from feedq.model import Feed, Lease, LeaseState, Reason, Status, TargetState, Worker, WorkerState


class Move(StrEnum):
    """What can happen to a lease."""

    ASSIGN = "assign"
    """Reconcile chose a worker: the epoch grows."""
    CLAIM = "claim"
    """The chosen worker took it, under the same epoch."""
    WITHDRAW = "withdraw"
    """Assigned and not claimed: in time, or because it is no longer wanted there. May be assigned anew."""
    ASK_TO_STOP = "ask_to_stop"
    """Pause, edit, removal or drain: the owner is asked to let go."""
    RELEASE = "release"
    """The owner let go."""
    LOSE_WORKER = "lose_worker"
    """The owner was declared gone."""


TRANSITIONS: Mapping[tuple[LeaseState, Move], LeaseState] = MappingProxyType(
    {
        (LeaseState.IDLE, Move.ASSIGN): LeaseState.ASSIGNED,
        (LeaseState.ASSIGNED, Move.CLAIM): LeaseState.RUNNING,
        (LeaseState.ASSIGNED, Move.WITHDRAW): LeaseState.IDLE,
        (LeaseState.ASSIGNED, Move.LOSE_WORKER): LeaseState.IDLE,
        (LeaseState.RUNNING, Move.ASK_TO_STOP): LeaseState.STOPPING,
        (LeaseState.RUNNING, Move.RELEASE): LeaseState.IDLE,
        (LeaseState.RUNNING, Move.LOSE_WORKER): LeaseState.IDLE,
        (LeaseState.STOPPING, Move.RELEASE): LeaseState.IDLE,
        (LeaseState.STOPPING, Move.LOSE_WORKER): LeaseState.IDLE,
    }
)

EPOCH_GROWS = frozenset({Move.ASSIGN})
"""The move that begins a new tenure; every other move keeps the epoch, or it could not be matched."""


def transition(state: LeaseState, move: Move) -> LeaseState:
    """The state after ``move``; an unlisted pair is a bug and raises `ValueError`."""
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise ValueError(f"a lease in state {state!s} cannot {move!s}") from None


def states_before(move: Move) -> tuple[LeaseState, ...]:
    """The states that ``move`` may start from, for the WHERE clause of the statement that makes it."""
    return tuple(state for (state, m) in TRANSITIONS if m is move)


# -- the worker's side -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """Until when this worker may act as owner, on its own monotonic clock."""

    until: float = float("-inf")

    @staticmethod
    def after_heartbeat(*, sent_at: float, ttl_s: float, margin_s: float) -> TrustWindow:
        # Anchored to when the heartbeat was *sent*: a slow round trip must not stretch the lease.
        return TrustWindow(until=sent_at + ttl_s - margin_s)

    def holds(self, monotonic: float) -> bool:
        return monotonic < self.until


# -- the control plane's side ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quiet:
    """Since when the database has been heard from without a break.

    An outage of the database must not become a failover of everything: nobody could renew, so nobody is
    declared gone before a full ttl of uninterrupted service has given everyone the chance to.
    """

    database_started_at: datetime
    fleet_alive_since: datetime

    def ends_at(self, ttl_s: float) -> datetime:
        return max(self.database_started_at, self.fleet_alive_since) + timedelta(seconds=ttl_s)


def is_gone(worker: Worker, *, has_session: bool, now: datetime, quiet: Quiet, ttl_s: float) -> bool:
    """Whether the control plane may free this worker's leases; ``now`` is the database's clock.

    ``has_session`` says whether any database session holds the worker's lock at this moment; it only
    speeds things up, and only for a worker that the beat already suspected before.
    """
    if worker.state is WorkerState.GONE:
        return False
    if now < quiet.ends_at(ttl_s):
        return False
    crashed = worker.suspected_at is not None and not has_session
    return crashed or worker.expires_at < now


def is_dispatch_overdue(lease: Lease, *, now: datetime, timeout_s: float) -> bool:
    """Whether an assignment was never claimed and should be sent again under a new epoch."""
    if lease.state is not LeaseState.ASSIGNED:
        return False
    assert lease.assigned_at is not None
    return now - lease.assigned_at >= timedelta(seconds=timeout_s)


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edited feed asks of its lease."""

    move: Move | None
    reason: Reason | None = None
    purge: bool = False
    """Nobody has the feed and nobody wants it: delete it."""


CLEARED_BY_EDIT = frozenset({Reason.FAILED, Reason.PAUSED, Reason.BACKOFF, None})
"""An edit is a fresh start: it clears a failure and whatever backoff there was. An idle lease without any reason
was made by hand, and would wait for ever."""


def on_edit(feed: Feed, lease: Lease) -> Edit:
    """What to do about a feed that a person touched; repeating it changes nothing."""
    if feed.removed_at is not None:
        wanted = Reason.REMOVED
    elif feed.spec.target_state is TargetState.PAUSED:
        wanted = Reason.PAUSED
    elif lease.state in (LeaseState.RUNNING, LeaseState.STOPPING) and lease.generation < feed.generation:
        wanted = Reason.EDITED
    elif lease.state is LeaseState.IDLE and lease.reason in CLEARED_BY_EDIT:
        return Edit(None, Reason.NEW)
    else:
        return Edit(None)

    match lease.state:
        case LeaseState.IDLE if wanted is Reason.REMOVED:
            return Edit(None, wanted, purge=True)
        case LeaseState.IDLE:
            return Edit(None, wanted)
        case LeaseState.ASSIGNED:
            return Edit(Move.WITHDRAW, wanted)
        case LeaseState.RUNNING:
            return Edit(Move.ASK_TO_STOP, wanted)
        case LeaseState.STOPPING:
            return Edit(None)


def may_start(feed: Feed, lease: Lease, *, now: datetime) -> bool:
    """Whether an idle feed may be placed now."""
    return (
        lease.state is LeaseState.IDLE
        and feed.removed_at is None
        and feed.spec.target_state is TargetState.RUNNING
        and lease.reason is not Reason.FAILED
        and (lease.retry_at is None or lease.retry_at <= now)
    )


# -- what a person sees ------------------------------------------------------------------------------


def status(feed: Feed, lease: Lease) -> Status:
    """The status of a feed, from its lease and its progress; a task's state never enters into it."""
    match lease.state:
        case LeaseState.STOPPING:
            return Status.REMOVING if feed.removed_at is not None else Status.STOPPING
        case LeaseState.ASSIGNED:
            return Status.STARTING
        case LeaseState.RUNNING if lease.stalled:
            return Status.STALLED
        case LeaseState.RUNNING if lease.connected:
            return Status.STREAMING
        case LeaseState.RUNNING:
            return Status.CONNECTING
    if feed.removed_at is not None:
        return Status.REMOVING
    if feed.spec.target_state is TargetState.PAUSED:
        return Status.PAUSED
    if lease.reason is Reason.FAILED:
        return Status.FAILED
    if lease.reason is Reason.BACKOFF:
        return Status.BACKOFF
    return Status.WAITING
