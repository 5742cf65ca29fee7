"""Names of the NOTIFY channels and advisory locks, and the statements that notify them.

A notification carries no facts: whoever hears it reads the tables. So a lost one costs time only. A worker's says
whom it is for, so that the others need not read theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from uuid import UUID

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
PASS_LOCK = 0x_FEED_0003
"""Key of the transaction lock that makes reconcile passes one at a time."""

WORKER_LOCKS = f"""
    SELECT CAST(k.classid AS bigint) AS class, CAST(k.objid AS bigint) AS key, k.pid FROM pg_locks k
    WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2
      AND k.classid IN ({WORKER_LOCK_CLASS}, {SESSION_LOCK_CLASS})
      AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""The locks that sessions of workers hold. All in one reading: the server's table of locks is gone through as a
whole each time, and a fleet of a thousand workers has thousands."""

HELD_LOCKS = f"SELECT key AS lock_key FROM ({WORKER_LOCKS}) locks WHERE class = {WORKER_LOCK_CLASS}"
"""The lock keys of workers that have a database session."""


def worker_channel(lock_key: int) -> str:
    """Name the channel on which a worker hears that something waits for it."""
    return f"feedq_worker_{lock_key}"


def wake_reconcile(c: Connection) -> None:
    """Ask for a reconcile pass soon."""
    c.execute(f"SELECT pg_notify('{WAKE}', '')")


def notify_workers(c: Connection, worker_ids: list[UUID], reason: NotifyReason) -> None:
    """Tell these workers that something waits for them: a stop request, a feed to claim, the end of a run."""
    sql = (
        "SELECT pg_notify('feedq_worker_' || lock_key, %(reason)s) FROM feedq.worker WHERE id = ANY(%(ids)s)"
    )
    c.execute(sql, {"ids": worker_ids, "reason": reason.value})
