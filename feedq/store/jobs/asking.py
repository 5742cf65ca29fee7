"""Runs that somebody asks for, beside those that fall due: triggers, backfills, beat's entries; and cancelling.

All of them lock the schedule's row first, as firing does, so that an overlap policy sees what others have made.
They go to no worker in particular: whoever is told first takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import uuid4

from sqlalchemy import Connection, text

from feedq.errors import Conflict, InvalidInput
from feedq.schedule import due
from feedq.schedule.check import BEAT_PREFIX
from feedq.schedule.model import (
    Beat,
    Job,
    Overlap,
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
)
from feedq.schedule.outcome import RunMove, states_before
from feedq.schedule.words import instant, trigger_key
from feedq.store.channels import NotifyReason, ring_workers
from feedq.store.jobs import run_listing
from feedq.store.jobs.base import BACKFILL_MAX
from feedq.store.jobs.run_rows import stored
from feedq.store.jobs.writing import UNFINISHED, NewRun, cancel, insert, locked, locked_row, ring_some

KEY_MAX = 200
"""Characters of a run's key: it is part of the correlation id in every log line of the job."""
PURGED = "purged"
CANCELLED = "cancelled by hand"


def trigger(c: Connection, name: str, *, key: str | None, job: Job | None, ageing_s: float) -> Run:
    said = str(uuid4()) if key is None else _checked(key)
    key = trigger_key(said)
    schedule = locked(c, name)
    found = _run_of(c, schedule, key, said)
    if found is not None:
        return found
    spec = schedule.spec
    if spec.overlap is Overlap.CANCEL_OTHER:
        reason = f"overlap is {Overlap.CANCEL_OTHER}, and the trigger {said} came"
        cancel(c, schedule.id, (RunState.WAITING, RunState.RUNNING), reason=reason)
    objection = due.refusal(spec, _unfinished(c, schedule))
    state = RunState.WAITING if objection is None else RunState.SKIPPED_OVERLAP
    (made,) = insert(
        c,
        schedule.id,
        [NewRun(key, None, state, objection)],
        kind=RunKind.TRIGGER,
        job=spec.job if job is None else job,
        exclusive=spec.overlap is not Overlap.ALLOW_ALL,
        ageing_s=ageing_s,
        start_deadline_s=spec.start_deadline_s,
    )
    if state is RunState.WAITING:
        ring_some(c, 1)
    return run_listing.run(c, made)


def backfill(c: Connection, name: str, ticks: Sequence[datetime], *, ageing_s: float) -> tuple[int, int]:
    if any(tick.utcoffset() is None for tick in ticks):
        raise InvalidInput("a tick of a backfill must end with a Z or an offset such as +01:00")
    wanted = sorted(dict.fromkeys(ticks))
    if len(wanted) > BACKFILL_MAX:
        raise InvalidInput(
            f"a backfill of {len(wanted)} ticks is too large; at most {BACKFILL_MAX} at a time, "
            "so do the range in parts"
        )
    schedule = locked(c, name)
    exclusive = schedule.spec.overlap is not Overlap.ALLOW_ALL
    # No start deadline: they wait for one another, as long as it takes.
    made = insert(
        c,
        schedule.id,
        [NewRun(instant(tick), tick) for tick in wanted],
        kind=RunKind.BACKFILL,
        job=schedule.spec.job,
        exclusive=exclusive,
        ageing_s=ageing_s,
    )
    if made:
        # Of those that go one after another, each free slot finds the next by itself.
        ring_some(c, 1 if exclusive else len(made))
    return len(made), len(wanted) - len(made)


def purge(c: Connection, name: str) -> int:
    return cancel(c, locked_row(c, name).id, (RunState.WAITING,), reason=PURGED)


def cancel_run(c: Connection, run_id: int) -> Run:
    sql = """
        UPDATE feedq.run SET state = 'cancelled', reason = :reason, ended_at = clock_timestamp()
        WHERE id = :id AND state = ANY(:states) RETURNING worker_id
    """
    states = [state.value for state in states_before(RunMove.CANCEL)]
    row = c.execute(text(sql), {"id": run_id, "states": states, "reason": CANCELLED}).one_or_none()
    run = run_listing.run(c, run_id)
    if row is None:
        raise Conflict(f"run {run_id} of {run.schedule} has ended ({run.state}); there is nothing to cancel")
    if row.worker_id is not None:
        ring_workers(c, [row.worker_id], NotifyReason.JOBS)
    return run


def once(c: Connection, entry: str, key: str, tick_at: datetime, job: Job, *, ageing_s: float) -> bool:
    """As `feedq.store.jobs.base.ScheduleStore.once`; False also while the schedule is paused."""
    _checked(key)
    schedule = _behind(c, entry, job)
    if schedule.state is ScheduleState.PAUSED:
        return False
    made = insert(
        c,
        schedule.id,
        [NewRun(key, tick_at)],
        kind=RunKind.BEAT,
        job=job,
        exclusive=False,
        ageing_s=ageing_s,
    )
    if made:
        ring_some(c, 1)
    return bool(made)


def _behind(c: Connection, entry: str, job: Job) -> Schedule:
    """The schedule behind an entry of beat, with this job, its row locked."""
    # Beat sends what it likes when it likes: one run does not wait for another.
    spec = ScheduleSpec(BEAT_PREFIX + entry, Beat(), job, overlap=Overlap.ALLOW_ALL)
    # Of two that make it at once the second waits here, finds it made, and changes nothing.
    sql = """
        INSERT INTO feedq.schedule AS s (name, job, timing, policy)
        VALUES (:name, CAST(:job AS jsonb), CAST(:timing AS jsonb), CAST(:policy AS jsonb))
        ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE
            SET job = excluded.job, generation = s.generation + 1, updated_at = clock_timestamp()
            WHERE s.job <> excluded.job
    """
    c.execute(text(sql), stored(spec))
    return locked(c, spec.name)


def _checked(key: str) -> str:
    if not key or len(key) > KEY_MAX or not key.isprintable():
        raise InvalidInput(f"the key of a run must be printable, of 1 to {KEY_MAX} characters")
    return key


def _run_of(c: Connection, schedule: Schedule, key: str, said: str) -> Run | None:
    """The run of this trigger. Releases that knew no prefix have stored what was said as it was."""
    sql = """
        SELECT id FROM feedq.run WHERE schedule_id = :id AND key = ANY(:keys) AND kind = 'trigger'
        ORDER BY id LIMIT 1
    """
    found = c.execute(text(sql), {"id": schedule.id, "keys": [key, said]}).scalar_one_or_none()
    return None if found is None else run_listing.run(c, found)


def _unfinished(c: Connection, schedule: Schedule) -> due.Unfinished:
    sql = f"""
        SELECT count(*) FILTER (WHERE state = 'waiting')::int AS waiting,
            count(*) FILTER (WHERE state = 'running')::int AS running
        FROM feedq.run WHERE schedule_id = :id AND {UNFINISHED}
    """
    return due.Unfinished(*c.execute(text(sql), {"id": schedule.id}).one())
