"""What the statements of `feedq.control.store` decide by themselves, once more in Python, for the store in memory.

The contract suite holds the two against each other.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from feedq.core.lease import AVOIDED_MAX, BLAME_RECENT, FAILOVER_WITHIN, SOON
from feedq.core.model import (
    Feed,
    Lease,
    LeaseState,
    Progress,
    Reason,
    Release,
    TargetState,
    Worker,
    WorkerState,
)


def service_since(
    alive_since: datetime, alive_at: datetime, *, has_restarted: bool, now: datetime, gap_s: float
) -> datetime:
    """Tells since when the database has served without a break, if somebody hears from it now.

    It was last heard from at ``alive_at``, and until then without a break since ``alive_since``. When that lies
    ahead, the clock was put back: what had been served by then counts all the same.
    """
    if has_restarted or now - alive_at > timedelta(seconds=gap_s):
        return now
    return alive_since - max(alive_at - now, timedelta())


def is_dispatch_overdue(lease: Lease, *, now: datetime, timeout_s: float) -> bool:
    """Tells whether an assignment was never claimed and should be sent again under a new epoch."""
    if lease.state is not LeaseState.ASSIGNED:
        return False
    assert lease.assigned_at is not None
    return now - lease.assigned_at >= timedelta(seconds=timeout_s)


def awaits_verdict(lease: Lease, *, is_explained: bool, now: datetime) -> bool:
    """Tells whether a feed whose worker was just lost waits for the verdict before it is placed again.

    All others go on at once. This one was in hand when another worker was lost not long ago; or it was on one that
    was lost a moment ago, and nobody knows yet how (``is_explained`` is false). So a feed that ends each worker
    within a second cannot be faster than the verdict.
    """
    if lease.quarantined:
        return False  # it runs apart in any case
    if lease.blamed_at is not None and now - lease.blamed_at <= BLAME_RECENT:
        return True
    return lease.lost_at is not None and now - lease.lost_at <= SOON and not is_explained


def may_start(feed: Feed, lease: Lease, *, now: datetime) -> bool:
    """Tells whether an idle feed may be placed now; one that cannot run as declared, again in its time."""
    return (
        lease.state is LeaseState.IDLE
        and feed.removed_at is None
        and feed.spec.target_state is not TargetState.PAUSED
        and (lease.reason is not Reason.FAILED if lease.retry_at is None else lease.retry_at <= now)
    )


def avoided_after(lease: Lease, release: Release, *, worker: str, now: datetime) -> dict[str, datetime]:
    """Lists the workers on which the feed has failed, once this one has let go of it: see `Lease.avoid`."""
    if release.reason is Reason.EDITED:
        return {}
    if release.reason not in (Reason.BACKOFF, Reason.FAILED):
        return dict(lease.avoid)
    others = [(name, at) for name, at in lease.avoid.items() if name != worker]
    return dict([*others, (worker, now)][-AVOIDED_MAX:])


def is_new_here(lease: Lease, worker: Worker) -> bool:
    """Whether the feed has not failed in this worker session, nor on many others: if it does, another is tried
    soon."""
    failed_at = lease.avoid.get(worker.name)
    return len(lease.avoid) < AVOIDED_MAX and (failed_at is None or failed_at < worker.started_at)


def is_after_loss(lease: Lease, worker: Worker, lost: Worker | None, *, now: datetime) -> bool:
    """Tells whether the lease that this worker claims was taken from an owner that was lost a moment ago.

    An owner that this worker has lived beside: when a whole fleet was killed and starts anew, all its feeds were
    lost a moment ago, and no source has had their connections for a while.
    """
    if lost is None or lease.lost_at is None or now - lease.lost_at > FAILOVER_WITHIN:
        return False
    is_latest = lease.running_since is None or lease.lost_at > lease.running_since
    return is_latest and lost.heartbeat_at > worker.started_at


def is_known_failure(lease: Lease, release: Release) -> bool:
    """Whether a feed that could not run as declared was looked at again, and nothing is new: history knows."""
    again = release.reason is Reason.FAILED and lease.reason is Reason.FAILED
    return again and release.error == lease.last_error


def can_run(lease: Lease, progress: Progress) -> bool:
    """Whether a feed that had failed is seen to get further than its declaration: to its source, or to records."""
    has_failed = lease.state is LeaseState.RUNNING and lease.reason is Reason.FAILED
    return has_failed and (progress.records > 0 or progress.attempts > 0)


def is_reapable(lease: Lease, *, now: datetime) -> bool:
    """Tells whether an owner that was asked to let go is no longer waited for.

    Nothing is risked: the next owner has another epoch, and the old one's writes are fenced off.
    """
    return lease.state is LeaseState.STOPPING and lease.stop_by is not None and lease.stop_by <= now


def is_kept_for_successor(lease: Lease, release: Release, worker: Worker, *, hold_s: float) -> bool:
    """Whether a feed that its owner let go waits for the process that is about to take the owner's place.

    Only what an announced end lets go does. A crash never waits, nor does what a person asked for meanwhile,
    nor what is on its way to another worker already.
    """
    return (
        hold_s > 0
        and worker.state is WorkerState.DRAINING
        and release.reason in (Reason.DRAINED, Reason.RELEASED)
        and lease.promised_to is None
    )
