"""The status of a feed and why it has it, as a policy: what the view ``feed_status`` is compared with."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from feedq.core.lease import FAILING_FROM, running_status
from feedq.core.model import Feed, Lease, LeaseState, Reason, Status, TargetState


class Standing(NamedTuple):
    """The status of a feed and why it has it, in words that follow the status."""

    status: Status
    because: str | None = None


def standing(feed: Feed, lease: Lease, still: str | None, *, now: datetime) -> Standing:
    """The status of a feed whose worker is ``still``, in words, or moves; ``now`` is the database's clock.

    From the top: what people want of it, what was decided about it, who is known not to move, and only then what
    its worker says. Of what the worker says, a sink that is away comes first, since nothing can land; then what
    becomes of the records that arrive; then that none do. The view ``feed_status`` says the same in SQL.
    """
    if feed.removed_at is not None:
        return Standing(Status.REMOVING, lease.reason if lease.state is LeaseState.STOPPING else None)
    match lease.state:
        case LeaseState.STOPPING:
            return Standing(Status.STOPPING, lease.reason)
        case LeaseState.IDLE if feed.spec.target_state is TargetState.PAUSED:
            return Standing(Status.PAUSED)
        # While it is checked again, too: until it connects, the error stays in view.
        case _ if lease.reason is Reason.FAILED and not lease.connected:
            return Standing(Status.FAILED, lease.last_error)
    if lease.quarantined:
        return Standing(Status.QUARANTINED, lease.blame)
    if lease.state is LeaseState.RUNNING:
        return _running(lease, still, now=now)
    if _is_failing(lease):
        return _failing(lease)
    if lease.state is LeaseState.ASSIGNED:
        return Standing(Status.STARTING, still or _latest_error(lease))
    if lease.reason is Reason.BACKOFF:
        return Standing(Status.BACKOFF, lease.last_error)
    return Standing(Status.WAITING, lease.reason)


def _running(lease: Lease, still: str | None, *, now: datetime) -> Standing:
    status = running_status(lease, is_still=still is not None, now=now)
    because = {
        Status.STALLED: still or lease.last_error,
        Status.SINK_UNAVAILABLE: lease.sink_error,
        Status.REFUSING: lease.dead_letter_error,
        Status.CONNECTING: _latest_error(lease),
    }
    return _failing(lease) if status is Status.FAILING else Standing(status, because.get(status))


WAITS_ANEW = frozenset(
    {Reason.NEW, Reason.EDITED, Reason.NO_CAPACITY, Reason.NO_MATCH, Reason.SETTLING, None}
)
"""Why an idle feed waits that was given a fresh start, or that no worker can have: not for what failed before."""


def _is_failing(lease: Lease) -> bool:
    waits_anew = lease.state is LeaseState.IDLE and lease.reason in WAITS_ANEW
    return lease.failures >= FAILING_FROM and not waits_anew


def _failing(lease: Lease) -> Standing:
    row = f"{lease.failures} failures in a row, and nothing landed since"
    said = row if lease.last_error is None else f"{lease.last_error}; {row}"
    return Standing(Status.FAILING, said)


def _latest_error(lease: Lease) -> str | None:
    """Return what went wrong the last time, or what the feed waits for since it began here; an error of before is
    kept after the feed is well again."""
    began, at = lease.running_since, lease.last_error_at
    is_new = lease.state is LeaseState.RUNNING and began is not None and at is not None and at >= began
    return lease.last_error if lease.attempts or is_new else None
