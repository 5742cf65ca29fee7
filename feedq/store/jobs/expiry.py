"""Expiry: runs whose worker is gone, or whose time is up, are taken from it.

A run is its worker's as long as the worker's session lives; there is no lease of its own to renew. Any node may
expire, several at once: what one has locked the others skip. Nothing is waited for, so the order of locks matters
to nobody else, and what was skipped is there for the next look.

The worker, should it live after all (frozen, cut off), finds its fence passed when it finishes: the run has ended,
or waits for an attempt under a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from feedq.errors import InvalidInput
from feedq.schedule.model import RunState
from feedq.schedule.outcome import Ends, RunAgain, after_loss
from feedq.schedule.plain import job_from_plain
from feedq.store.channels import Ring, ring_workers
from feedq.store.jobs.claiming import MISS_DEADLINES
from feedq.store.jobs.finishing import STANDING, Ended, Standing, after_end, end, standing_from
from feedq.store.jobs.sessions import end_sessions
from feedq.store.jobs.writing import record
from feedq.telemetry import EventKind

WORKER_GONE = "its worker was declared gone"
TIME_IS_UP = "still running when its time was up"

_NOW = "statement_timestamp()"
# From one worker that runs something to the next, by the index: thousands may run, on a few workers.
FOUND = f"""
    WITH RECURSIVE holder (id) AS (
        (SELECT worker_id FROM feedq.run WHERE state = 'running' ORDER BY worker_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT r.worker_id FROM feedq.run r WHERE r.state = 'running' AND r.worker_id > h.id
            ORDER BY r.worker_id LIMIT 1
        ) FROM holder h WHERE h.id IS NOT NULL
    ), gone AS (
        SELECT h.id FROM holder h WHERE h.id IS NOT NULL
            AND NOT EXISTS (SELECT FROM feedq.worker w WHERE w.id = h.id AND w.state <> 'gone' OFFSET 0)
    )
    (SELECT r.id, r.schedule_id FROM gone CROSS JOIN LATERAL (
        SELECT id, schedule_id FROM feedq.run WHERE worker_id = gone.id AND state = 'running' OFFSET 0
    ) r LIMIT :limit)
    UNION
    (SELECT id, schedule_id FROM feedq.run WHERE state = 'running' AND deadline_at <= {_NOW}
     ORDER BY deadline_at LIMIT :limit)
"""
_ANY_MISSED = f"SELECT EXISTS (SELECT FROM feedq.run WHERE state = 'waiting' AND start_by <= {_NOW})"
_LOCK_SCHEDULES = f"""
    SELECT {STANDING} FROM feedq.schedule s WHERE s.id = ANY(:ids) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED
"""
_LOCK_RUNS = f"""
    SELECT r.*, NOT EXISTS (
            SELECT FROM feedq.worker w WHERE w.id = r.worker_id AND w.state <> 'gone' OFFSET 0
        ) AS is_orphan, r.deadline_at <= {_NOW} AS is_late
    FROM unnest(CAST(:ids AS bigint[])) AS given (id) CROSS JOIN LATERAL (
        SELECT * FROM feedq.run WHERE id = given.id AND schedule_id = ANY(:schedule_ids)
        OFFSET 0 FOR UPDATE SKIP LOCKED
    ) r
    WHERE r.state = 'running' LIMIT :limit
"""


def expire(c: Connection, *, limit: int) -> int:
    """Take at most ``limit`` runs from workers that are gone, or past their deadline. Returns how many.

    Runs that missed their start deadline are ended, too: where nobody claims, nobody else does it.
    """
    if c.execute(text(_ANY_MISSED)).scalar_one():
        c.execute(text(MISS_DEADLINES))
    found = c.execute(text(FOUND), {"limit": limit}).all()
    if not found:
        return 0
    schedule_ids = sorted({row.schedule_id for row in found})
    standings = {
        row.id: standing_from(row) for row in c.execute(text(_LOCK_SCHEDULES), {"ids": schedule_ids})
    }
    parameters = {"ids": [row.id for row in found], "schedule_ids": list(standings), "limit": limit}
    rows = [row for row in c.execute(text(_LOCK_RUNS), parameters) if row.is_orphan or row.is_late]
    ended = [_after(row, standings[row.schedule_id]) for row in rows]
    end(c, ended, standings)
    _record_lost(c, rows, ended, standings)
    end_sessions(c, [(row.id, row.fence) for row in rows])
    late = {row.worker_id for row in rows if not row.is_orphan}
    if late:
        ring_workers(c, list(late), Ring.JOBS)
    return len(ended)


def _after(row: Any, standing: Standing) -> Ended:
    if not row.is_orphan:
        return after_end(row, RunState.TIMED_OUT, TIME_IS_UP, standing)
    losses = row.losses + 1
    match _after_loss(row, standing, losses):
        case Ends(state):
            return Ended(row.id, row.schedule_id, state, WORKER_GONE, row.attempt, losses)
        case RunAgain():
            return Ended(
                row.id, row.schedule_id, RunState.WAITING, WORKER_GONE, row.attempt + 1, losses, due_in_s=0.0
            )


def _after_loss(row: Any, standing: Standing, losses: int) -> RunAgain | Ends:
    if standing.is_removed:
        return Ends(RunState.LOST)
    try:
        return after_loss(job_from_plain(row.job), losses=losses)
    except (InvalidInput, ValueError):
        return Ends(RunState.LOST)  # of another release: whether it may be run twice cannot be known here


def _record_lost(
    c: Connection, rows: Sequence[Any], ended: Sequence[Ended], standings: dict[int, Standing]
) -> None:
    for row, one in zip(rows, ended, strict=True):
        if row.is_orphan:
            record(
                c,
                EventKind.RUN_LOST,
                standings[row.schedule_id].name,
                key=row.key,
                run=row.id,
                attempt=row.attempt,
                state=one.state.value,
            )
