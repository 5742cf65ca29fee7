"""Names of the NOTIFY channels and advisory locks, and the statements that notify them.

A notification carries no facts: whoever hears it reads the tables. So a lost one costs time only. A worker's says
whom it is for, so that the others need not read theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from feedq.control.store.database import Connection

WAKE = "feedq_wake"
"""Reconcile has something to do."""


class NotifyReason(StrEnum):
    """The reason why a worker is notified."""

    FEEDS = "feeds"
    """There is a feed to claim, or a stop request."""
    JOBS = "jobs"
    """A schedule has changed, or a run of this worker was taken away."""
    RUNS = "runs"
    """Runs have fallen due, or were asked for."""

    def is_among(self, heard: Collection[str]) -> bool:
        """Return whether these payloads are for this; what another release says may be for anybody."""
        others = {reason.value for reason in NotifyReason if reason is not self}
        return any(payload not in others for payload in heard)


WORKER_LOCK_CLASS = 0x_FEED_01
"""First key of the session advisory locks of workers; the second is ``worker.lock_key``."""
LEADER_LOCK_CLASS = 0x_FEED_02
"""First key of the session advisory locks of elections; the second is the election's number."""
SESSION_LOCK_CLASS = 0x_FEED_05
"""First key of the lock that each session of a worker has for itself; the second is the number of its backend. Who
wants to hear of its end waits for this one (`feedq.control.store.session_ends`)."""
CATALOG_LOCK_CLASS = 0x_FEED_06
"""First key of the session advisory lock of whoever syncs a catalog; the second is a hash of its name."""


def worker_channel(lock_key: int) -> str:
    """Name the channel on which a worker hears that something waits for it."""
    return f"feedq_worker_{lock_key}"


def wake_reconcile(c: Connection) -> None:
    """Ask for a reconcile pass soon."""
    c.execute(f"SELECT pg_notify('{WAKE}', '')")
