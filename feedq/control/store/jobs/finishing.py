"""Ends runs: an attempt is finished by its worker, or taken from a worker that is gone. The rules stand in
`feedq/control/sql/ends.sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from feedq.control.store.database import Connection
from feedq.control.store.protocol import call, document
from feedq.core.schedule.model import Finish
from feedq.core.values import storable

_ANY = """
    SELECT EXISTS (SELECT FROM feedq.run WHERE state = 'running') OR EXISTS (
            SELECT FROM feedq.run WHERE state IN ('buffered', 'waiting') AND start_by <= feedq.now()
        ) AS expiry,
        EXISTS (SELECT FROM feedq.run WHERE state = 'buffered') AS promotion
"""
_END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND application_name = ANY(%(names)s)
"""


def finish(c: Connection, worker_id: UUID, finishes: Sequence[Finish]) -> list[int]:
    """End these attempts. Returns the ids of those that were still this worker's."""
    told = [f if f.reason is None else replace(f, reason=storable(f.reason)) for f in finishes]
    return call(c, "finish", list[int], session=worker_id, finishes=document(told)) if told else []


def needs(c: Connection) -> Any:
    """Return whether anything runs, or has missed its start deadline (``expiry``), and whether anything is
    buffered (``promotion``): nearly all scans find nothing."""
    return c.execute(_ANY).one()


def expire(c: Connection, *, limit: int) -> int:
    """Take at most ``limit`` runs from workers that are gone. Returns how many.

    Runs that missed their start deadline are ended, too: where nobody claims, nobody else does it.
    """
    call(c, "miss_deadlines", list[int])
    found = call(c, "orphans", list[tuple[int, UUID]], most=limit)
    if not found:
        return 0
    runs, workers = map(list, zip(*found, strict=True))
    taken = call(c, "take_away", list[tuple[int, int]], runs=runs, workers=workers)
    end_sessions(c, taken)
    return len(taken)


def session_name(run_id: int, fence: int) -> str:
    """Return the name of the session of a `transactional` job on the server."""
    return f"feedq-job/{run_id}/{fence}"


def end_sessions(c: Connection, runs: Sequence[tuple[int, int]]) -> None:
    """End the transactions of runs (id, fence) that were taken away: nothing in them can be committed any more."""
    c.execute(_END_SESSIONS, {"names": [session_name(*run) for run in runs]})


def take_over(c: Connection, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
    """Make these runs of a former session of the process (id → fence) this session's. Returns those that are."""
    runs, held_under = list(fences), list(fences.values())
    return set(call(c, "take_over", list[int], session=worker_id, was=was, runs=runs, fences=held_under))
