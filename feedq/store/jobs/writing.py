"""What all that writes schedules and runs shares: the row lock, new and cancelled runs, the bell, history.

Whatever makes or cancels the runs of a schedule locks the schedule's row before it counts or touches them: so two
that decide at once are one after the other, and the second sees what the first has done. Rows are locked in one
order everywhere, the schedule before its runs and runs by their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, text

from feedq.errors import NotFound
from feedq.schedule.model import Job, RunKind, RunState, Schedule
from feedq.schedule.outcome import RunMove, states_before
from feedq.store.channels import NotifyReason, ring_workers
from feedq.store.jobs.run_rows import SCHEDULE_COLUMNS, schedule_from, stored_job
from feedq.telemetry import EventKind

UNFINISHED = "state IN ('waiting', 'running')"
"""As the index `run_unfinished` has it."""


def now(c: Connection) -> datetime:
    moment: datetime = c.execute(text("SELECT clock_timestamp()")).scalar_one()
    return moment


def locked(c: Connection, name: str) -> Schedule:
    """The declared schedule of that name, its row locked. Raises `NotFound`, `Unreadable`."""
    return schedule_from(locked_row(c, name))


def locked_row(c: Connection, name: str) -> Any:
    """Its `SCHEDULE_COLUMNS`, for who need not read the declaration. Raises `NotFound`."""
    sql = f"""
        SELECT {SCHEDULE_COLUMNS} FROM feedq.schedule s
        WHERE name = :name AND removed_at IS NULL FOR NO KEY UPDATE
    """
    row = c.execute(text(sql), {"name": name}).one_or_none()
    if row is None:
        raise no_schedule(name)
    return row


def no_schedule(name: str) -> NotFound:
    return NotFound(f"no schedule named {name!r}; `feedq schedule list` shows them all")


def no_run(run_id: int) -> NotFound:
    return NotFound(f"no run {run_id}; it never was, or its schedule's history has been trimmed since")


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run about to be written. Any worker may take it at once: it has no segment."""

    key: str
    tick_at: datetime | None
    """None: now."""
    state: RunState = RunState.WAITING
    reason: str | None = None


def insert(
    c: Connection,
    schedule_id: int,
    runs: Sequence[NewRun],
    *,
    kind: RunKind,
    job: Job,
    exclusive: bool,
    ageing_s: float,
    start_deadline_s: float | None = None,
) -> list[int]:
    """Write these runs, due now and one after another. Returns the ids of those whose key was new."""
    sql = """
        INSERT INTO feedq.run
            (schedule_id, kind, key, tick_at, due_at, rank_at, start_by, state, reason, ended_at,
             job, queue, exclusive)
        SELECT :schedule_id, :kind, given.key, coalesce(given.tick_at, clock.now), clock.now,
            -- A microsecond apart, so that what is given in an order is taken in it.
            clock.now + (given.n - 1) * interval '1 microsecond'
                - make_interval(secs => :ahead_s),
            clock.now + make_interval(secs => :start_deadline_s),
            given.state, given.reason, CASE WHEN given.state <> 'waiting' THEN clock.now END,
            CAST(:job AS jsonb), :queue, :exclusive
        FROM (SELECT clock_timestamp() AS now) clock,
            unnest(CAST(:keys AS text[]), CAST(:ticks AS timestamptz[]), CAST(:states AS text[]),
                   CAST(:reasons AS text[])) WITH ORDINALITY AS given (key, tick_at, state, reason, n)
        ORDER BY given.n
        ON CONFLICT (schedule_id, key) DO NOTHING
        RETURNING id
    """
    parameters = {
        "schedule_id": schedule_id,
        "kind": kind.value,
        "keys": [run.key for run in runs],
        "ticks": [run.tick_at for run in runs],
        "states": [run.state.value for run in runs],
        "reasons": [run.reason for run in runs],
        "job": stored_job(job),
        "queue": job.queue,
        "ahead_s": job.priority * ageing_s,
        "exclusive": exclusive,
        "start_deadline_s": start_deadline_s,
    }
    return [row.id for row in c.execute(text(sql), parameters)]


def cancel(c: Connection, schedule_id: int, states: Sequence[RunState], *, reason: str) -> int:
    """Cancel its runs in these states, and tell the workers of running ones. Returns how many."""
    assert set(states) <= set(states_before(RunMove.CANCEL))
    sql = f"""
        WITH found AS (
            SELECT id FROM feedq.run
            WHERE schedule_id = :schedule_id AND {UNFINISHED} AND state = ANY(:states)
            ORDER BY id FOR UPDATE
        )
        UPDATE feedq.run r SET state = 'cancelled', reason = :reason, ended_at = clock_timestamp()
        FROM found WHERE r.id = found.id RETURNING r.worker_id
    """
    parameters = {"schedule_id": schedule_id, "states": [s.value for s in states], "reason": reason}
    workers = [row.worker_id for row in c.execute(text(sql), parameters)]
    if any(workers):
        ring_workers(c, list({worker for worker in workers if worker is not None}), NotifyReason.JOBS)
    return len(workers)


def ring_some(c: Connection, runs: int) -> None:
    """Tell one worker for each of so many runs, with the commit: those with a slot free first. A worker that is
    not told looks by itself, on an idle fleet seconds later; by then the others have done all of a backlog."""
    sql = """
        SELECT pg_notify('feedq_worker_' || lock_key, :ring) FROM (
            SELECT lock_key FROM feedq.worker w
            WHERE state = 'active' AND target_state = 'serving' AND job_slots > 0
                AND expires_at > clock_timestamp()
            ORDER BY job_slots > (
                SELECT count(*) FROM feedq.run r WHERE r.worker_id = w.id AND r.state = 'running'
            ) DESC, random() LIMIT :runs
        ) these
    """
    c.execute(text(sql), {"ring": NotifyReason.JOBS.value, "runs": runs})


def record(c: Connection, kind: EventKind, name: str, **detail: Any) -> None:
    """A line of history. It names the schedule and does not point to it: history outlives it."""
    sql = "INSERT INTO feedq.event (kind, detail) VALUES (:kind, CAST(:detail AS jsonb))"
    facts = {"schedule": name, **{key: value for key, value in detail.items() if value is not None}}
    c.execute(text(sql), {"kind": kind.value, "detail": orjson.dumps(facts).decode()})
