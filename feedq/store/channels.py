"""Names of the NOTIFY channels and advisory locks, and the statements that ring them.

A notification carries no facts: whoever hears it reads the tables. So a lost one costs time only.
"""

from __future__ import annotations

WAKE = "feedq_wake"
"""Reconcile has something to do."""

WAKE_SQL = f"SELECT pg_notify('{WAKE}', '')"

WORKER_LOCK_CLASS = 0x_FEED_01
"""First key of the session advisory locks of workers; the second is ``worker.lock_key``."""
LEADER_LOCK_CLASS = 0x_FEED_02
"""First key of the session advisory locks of elections; the second is the election's number."""
PASS_LOCK = 0x_FEED_0003
"""Key of the transaction lock that makes reconcile passes one at a time."""


def worker_channel(lock_key: int) -> str:
    """Where a worker hears that something waits for it."""
    return f"feedq_worker_{lock_key}"
