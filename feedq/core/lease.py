"""The lease: who may run a feed, as a handful of decisions.

The protocol, in words. PostgreSQL holds one lease row a feed. A worker holds a lease under an *epoch*, a number
that only grows; each statement that matters names the epoch it believes in and has no effect when that epoch
has passed. A worker keeps all its leases with one heartbeat. It may act as owner only inside its *trust
window*, which ends before the database can declare it gone::

            sent_at                                  sent_at + ttl - margin
    worker ────┬──────────────── acts as owner ──────────────┬── cuts its sockets
               │ heartbeat                                   │
    database ──┴──┬──────────────────────────────────────────┴─────────┬── may declare it gone
                  expires_at = its clock + ttl                     expires_at

The window is anchored where the heartbeat was *sent*: however long the round trip takes, the database cannot
have stamped ``expires_at`` earlier than that. So the old owner has stopped before a new one begins, and no
clock is compared with another; they need only run at about the same rate.

This module is pure: it neither reads a clock nor a database. `feedq.control.reconcile` and `feedq.worker` perform
what it decides; what is decided of many rows at once stands in the functions of ``feedq/control/sql``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import exp

from feedq.core.model import (
    Feed,
    Lease,
    LeaseState,
    Reason,
    Status,
    TargetState,
    Worker,
    WorkerState,
    WorkerView,
)


class Move(StrEnum):
    """The effect of an edit on a lease."""

    WITHDRAW = "withdraw"
    """It was assigned and has not been claimed yet: it may be assigned anew."""
    ASK_TO_STOP = "ask_to_stop"
    """Its owner is asked to release the feed."""
    PURGE = "purge"
    """The feed is deleted: nobody has it and nobody wants it."""


TRUST_MARGIN = 1 / 6
"""The part of its ttl by which a worker that is cut off lets go sooner than the database gives its feeds away: it
must exceed the drift of two clocks over one ttl, which is a thousandth where a clock is very bad. What is left is
more than one and a half heartbeats."""


# -- the worker's side -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """The time until when this worker may act as owner, on its own monotonic clock."""

    until: float = float("-inf")

    @staticmethod
    def after_heartbeat(*, sent_at: float, ttl_s: float) -> TrustWindow:
        # Anchored to when the heartbeat was *sent*: a slow round trip must not stretch the lease.
        return TrustWindow(until=sent_at + ttl_s * (1 - TRUST_MARGIN))

    def holds(self, monotonic: float) -> bool:
        return monotonic < self.until


# -- the control plane's side ------------------------------------------------------------------------


SECOND_CHECK_S = 0.005
"""The time between the two checks that make a crash: long enough for a reconnect under way to show up."""


def is_gone(
    worker: Worker, *, has_session: bool, now: datetime, served_since: datetime, ttl_s: float
) -> bool:
    """Return whether the control plane may free this worker's leases; ``now`` is the database's clock.

    ``has_session`` says whether any database session holds the worker's lock at this moment; it only
    speeds things up, and only for a worker that the beat already suspected before.

    The last outage of the database, or of the network, ended at ``served_since``. An outage must not become a
    failover of everything: nobody could renew, so nobody is declared gone before a full ttl of uninterrupted
    service has given everyone the chance to.
    """
    if worker.state is WorkerState.GONE:
        return False
    if now < served_since + timedelta(seconds=ttl_s):
        return False
    crashed = worker.suspected_at is not None and not has_session
    return crashed or worker.expires_at < now


@dataclass(frozen=True, slots=True)
class Edit:
    """The change of a lease that an edit of its feed requires."""

    move: Move | None
    reason: Reason | None = None


CLEARED_BY_EDIT = frozenset(
    {Reason.FAILED, Reason.PAUSED, Reason.BACKOFF, Reason.FENCED, Reason.QUARANTINED, None}
)
"""An edit is a fresh start: it clears a failure and whatever backoff there was. An idle lease without any
reason was made by hand, and would wait for ever."""


def on_edit(feed: Feed, lease: Lease) -> Edit:
    """Decide what to do about a feed that a person touched; repeating it changes nothing."""
    if feed.removed_at is not None:
        wanted = Reason.REMOVED
    elif feed.spec.target_state is TargetState.PAUSED:
        wanted = Reason.PAUSED
    elif (
        lease.state in (LeaseState.RUNNING, LeaseState.STOPPING) and lease.generation < feed.stream_generation
    ):
        wanted = Reason.EDITED
    elif lease.state is LeaseState.IDLE and lease.reason in CLEARED_BY_EDIT:
        return Edit(None, Reason.NEW)
    else:
        return Edit(None)

    match lease.state:
        case LeaseState.IDLE if wanted is Reason.REMOVED:
            return Edit(Move.PURGE, wanted)
        case LeaseState.IDLE:
            return Edit(None, wanted)
        case LeaseState.ASSIGNED:
            return Edit(Move.WITHDRAW, wanted)
        case LeaseState.RUNNING:
            return Edit(Move.ASK_TO_STOP, wanted)
        case LeaseState.STOPPING:
            return Edit(None)


# -- blame -------------------------------------------------------------------------------------------

QUARANTINE_S = 600.0
"""A feed that workers were lost to runs apart from others until it has landed records for this long without harm;
twice as long after each further loss. What ended two processes may need some minutes to do so again."""
QUARANTINE_MAX_S = 86_400.0


def is_in_company(lease: Lease) -> bool:
    """Return whether a feed still runs among others that was quarantined meanwhile."""
    return (
        lease.quarantined
        and lease.state is LeaseState.RUNNING
        and lease.running_since is not None
        and (lease.blamed_at is None or lease.running_since < lease.blamed_at)
    )


def is_pardoned(lease: Lease, *, now: datetime) -> bool:
    """Return whether a feed in quarantine has behaved for long enough: it landed records, and did no harm."""
    if not lease.quarantined or lease.state is not LeaseState.RUNNING or lease.running_since is None:
        return False
    length_s = min(QUARANTINE_MAX_S, QUARANTINE_S * 2.0 ** min(max(lease.blamed, 1) - 1, 16))
    landed = lease.last_record_at is not None and lease.last_record_at >= lease.running_since
    return landed and now - lease.running_since >= timedelta(seconds=length_s)


RATE_TIME_S = 30.0
"""Time constant of the smoothed rates: after this long two thirds of a change have been taken in."""


def smoothed(rate: float, *, count: int, elapsed_s: float, is_first: bool) -> float:
    """Return a rate a second, after ``count`` more in ``elapsed_s``; the first report stands for itself."""
    if is_first:
        return count / max(elapsed_s, 1.0)
    elapsed_s = max(elapsed_s, 0.001)
    return rate + (1 - exp(-elapsed_s / RATE_TIME_S)) * (count / elapsed_s - rate)


# -- what a person sees ------------------------------------------------------------------------------

LAGS_S = 2.0
"""A worker whose event loop runs a timer this late stands still. A loaded one is late by tenths of a second."""
SILENT_AFTER = (2, 3)
"""The part of its ttl after which a worker that misses its heartbeats may stand still for all that is known.
With the default settings two of them are missing then; less would blame a statement that took a second."""
FAILING_FROM = 3
"""Failures in a row, with nothing landed since, that make a feed `failing`. One is a restart of the source."""
REFUSING_S = 60.0
"""For how long after its latest dead letter a feed may be `refusing`: what it does now is not known later."""


def stillness(*, loop_lag_s: float, heartbeat_age: timedelta, ttl: timedelta) -> str | None:
    """Say of a worker that it stands still, in words that follow its name; None of one that moves.

    The lag is as of the heartbeat, so what has passed since is added to it.
    """
    if loop_lag_s > LAGS_S:
        return f"has stood still for {loop_lag_s + max(heartbeat_age.total_seconds(), 0.0):.0f} s"
    part, whole = SILENT_AFTER
    if heartbeat_age * whole > ttl * part:
        return f"was last heard of {heartbeat_age.total_seconds():.0f} s ago"
    return None


def stillness_of(view: WorkerView) -> str | None:
    """Says the same of a worker as it is listed; of one that is gone it means nothing."""
    worker = view.worker
    if worker.state is WorkerState.GONE:
        return None
    return stillness(
        loop_lag_s=worker.load.loop_lag_s,
        heartbeat_age=timedelta(seconds=view.heartbeat_age_s),
        ttl=worker.expires_at - worker.heartbeat_at,
    )


def running_status(lease: Lease, *, is_still: bool, now: datetime) -> Status:
    """The status of a feed that runs, for the metrics of the worker that runs it, or that stands still.

    Everybody else reads it, and why it is so, from the view ``feed_status`` in `feedq/control/sql/feeds.sql`.
    """
    if lease.quarantined:
        return Status.QUARANTINED
    if is_still:
        return Status.STALLED
    if lease.sink_error is not None:
        return Status.SINK_UNAVAILABLE
    if (
        lease.dead_per_s > lease.rows_per_s
        and lease.dead_letter_at is not None
        and now - lease.dead_letter_at < timedelta(seconds=REFUSING_S)
    ):
        return Status.REFUSING
    if lease.stalled and lease.attempts < FAILING_FROM:
        return Status.STALLED
    if lease.failures >= FAILING_FROM:
        return Status.FAILING
    if lease.stalled:
        return Status.STALLED
    return Status.STREAMING if lease.connected else Status.CONNECTING
