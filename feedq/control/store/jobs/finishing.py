"""Ends runs: an attempt is finished by its worker, or taken from a worker that is gone.

**Finishing.** A finish names run, fence and worker. It has an effect only while the run is running under that
fence: not when the attempt was taken away (its worker was declared gone), and not a second time. Those turned
away are written down as events, unless the run was cancelled on purpose, the worker says itself that time ran
out, or it thought a commit lost that has happened: then nothing is lost that anybody could miss.

The schedule's row is locked before its runs', and only when its failures in a row may change: a success after
successes locks nothing but the run.

**Expiry.** A run is its worker's as long as the worker's session lives; there is no lease of its own to
renew. Until the worker is declared gone, nobody else ends the run, whatever its time-out says: its owner
does, and may only be waiting for the database to tell it. An outage of the database is no loss of workers
(`feedq.lease.OutageGrace`), so it ends no run. Afterwards the time-out decides nothing either: what becomes of the
run is a matter of its semantics.

Any node may expire, several at once: what one has locked the others skip. Nothing is waited for, so the order of
locks matters to nobody else, and what was skipped is there for the next scan.

A worker that has lost all its sessions for a moment is taken for dead, and lives. So what it runs is left alone
for `GRACE_S` from the suspicion on. Its process registers again within a fraction of that, and takes its runs over
by their fences: each still `running` under the fence that the process has for it, so nobody else can have begun
it. Whose heartbeats stayed away for a whole ttl, or who left, is owed no grace.

The worker, should it live after all and come later (frozen, cut off), finds its fence passed when it finishes: the
run has ended, or waits for an attempt under a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from feedq.control.store.database import Connection, GivenRows
from feedq.control.store.jobs.rows import FENCES, job_from, record
from feedq.control.store.protocol import call
from feedq.core.schedule.model import Finish, RunState
from feedq.core.schedule.outcome import Ends, RetryIn, after_attempt, after_loss, counts_as_failure
from feedq.core.schedule.spec import ScheduleSpec
from feedq.core.values import storable
from feedq.errors import InvalidInput
from feedq.telemetry.event_names import EventKind

WORKER_GONE = "its worker was declared gone"
GRACE_S = 1.0
"""The runs of a process that was killed end later by this; the process that lives has to register within it."""

# Only what is needed is read of the declaration: one that this release cannot read must not keep runs from ending.
STANDING = """
    s.id, s.name, s.failures, s.state = 'active' AS is_active, s.removed_at IS NOT NULL AS is_removed,
    CASE WHEN jsonb_typeof(s.declaration -> 'pause_on_failure') = 'number'
         THEN (s.declaration ->> 'pause_on_failure')::numeric END AS pause_on_failure
"""
# Those without failures stay unlocked if none comes now. If one comes from elsewhere meanwhile, it came after us.
_LOCK_SCHEDULES = f"""
    SELECT {STANDING} FROM feedq.schedule s
    WHERE s.id = ANY(ARRAY(SELECT schedule_id FROM feedq.run WHERE id = ANY(%(ids)s)))
        AND (s.failures > 0 OR s.id = ANY(ARRAY(SELECT schedule_id FROM feedq.run WHERE id = ANY(%(failed)s))))
    ORDER BY s.id FOR NO KEY UPDATE
"""
_LOCK_RUNS = """
    SELECT r.*, r.job::text AS job_text, s.name AS schedule FROM (
        SELECT DISTINCT id FROM unnest(CAST(%(ids)s AS bigint[])) AS t (id) ORDER BY id
    ) given CROSS JOIN LATERAL (SELECT * FROM feedq.run WHERE id = given.id FOR UPDATE) r
    CROSS JOIN LATERAL (SELECT name FROM feedq.schedule WHERE id = r.schedule_id OFFSET 0) s
"""
# Repeated later, it ranks as if it had fallen due then; given back or repeated at once, it keeps its rank.
_ENDED = GivenRows("id bigint, state text, reason text, attempt int, losses int, due_in_s float8")
_END = f"""
    UPDATE feedq.run r SET state = given.state, reason = given.reason, attempt = given.attempt,
        losses = given.losses,
        ended_at = CASE WHEN given.state <> 'waiting' THEN clock_timestamp() END,
        worker_id = CASE WHEN given.state <> 'waiting' THEN r.worker_id END,
        started_at = CASE WHEN given.state <> 'waiting' THEN r.started_at END,
        deadline_at = CASE WHEN given.state <> 'waiting' THEN r.deadline_at END,
        due_at = r.due_at + later.by,
        rank_at = CASE WHEN given.due_in_s > 0 THEN r.rank_at + later.by ELSE r.rank_at END,
        start_by = r.start_by + later.by
    FROM {_ENDED} CROSS JOIN LATERAL (
        SELECT id, coalesce(statement_timestamp() + make_interval(secs => given.due_in_s) - due_at,
            interval '0') AS by
        FROM feedq.run WHERE id = given.id OFFSET 0
    ) later
    WHERE r.id = later.id
"""
_FAILED = GivenRows("id bigint, failures int, reason text")
_FAILURES = f"""
    UPDATE feedq.schedule s SET failures = given.failures,
        state = CASE WHEN given.reason IS NOT NULL THEN 'paused' ELSE s.state END,
        pause_reason = coalesce(given.reason, s.pause_reason)
    FROM {_FAILED}
    WHERE s.id = given.id
"""
_NOW = "statement_timestamp()"
# A suspicion that lies ahead was before the database's clock was put back: no grace without an end.
_OWNED = f"""EXISTS (
    SELECT FROM feedq.worker w WHERE w.id = {{worker_id}} AND (w.state <> 'gone'
        OR (w.suspected_at <= {_NOW} AND w.suspected_at > {_NOW} - make_interval(secs => {GRACE_S})))
    OFFSET 0)"""
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
            AND NOT {_OWNED.format(worker_id="h.id")}
    )
    SELECT r.id, r.schedule_id, r.worker_id FROM gone CROSS JOIN LATERAL (
        SELECT id, schedule_id, worker_id FROM feedq.run WHERE worker_id = gone.id AND state = 'running' OFFSET 0
    ) r LIMIT %(limit)s
"""
_ANY = f"""
    SELECT EXISTS (SELECT FROM feedq.run WHERE state = 'running')
        OR EXISTS (SELECT FROM feedq.run WHERE state IN ('buffered', 'waiting') AND start_by <= {_NOW}) AS expiry,
        EXISTS (SELECT FROM feedq.run WHERE state = 'buffered') AS promotion
"""
_LOCK_SCHEDULES_OF_LOST = f"""
    SELECT {STANDING} FROM feedq.schedule s WHERE s.id = ANY(%(ids)s) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED
"""
# Of the worker that was found: a new one, which has taken it over meanwhile, this statement may not see yet.
_HELD = GivenRows("id bigint, worker_id uuid")
_LOCK_LOST = f"""
    SELECT r.*, r.job::text AS job_text FROM {_HELD} CROSS JOIN LATERAL (
        SELECT * FROM feedq.run WHERE id = given.id AND schedule_id = ANY(%(schedule_ids)s)
        OFFSET 0 FOR UPDATE SKIP LOCKED
    ) r
    WHERE r.state = 'running' AND r.worker_id IS NOT DISTINCT FROM given.worker_id
        AND NOT {_OWNED.format(worker_id="r.worker_id")}
"""
_TAKE_OVER = f"""
    WITH mine AS (
        SELECT r.id FROM (SELECT * FROM {FENCES} ORDER BY id) t
        CROSS JOIN LATERAL (SELECT * FROM feedq.run WHERE id = t.id FOR UPDATE) r
        WHERE r.fence = t.fence AND r.worker_id = %(was)s AND r.state = 'running'
            AND EXISTS (SELECT FROM feedq.worker WHERE id = %(worker_id)s AND state <> 'gone')
    )
    UPDATE feedq.run r SET worker_id = %(worker_id)s FROM mine WHERE r.id = mine.id RETURNING r.id
"""
_END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND application_name = ANY(%(names)s)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The state that a running run ends in."""

    row: Any
    """The run as it was found; it is locked."""
    state: RunState
    reason: str | None
    is_lost: bool = False
    """Whether the attempt ended with its worker, or with nothing kept."""
    due_in_s: float | None = None
    """The seconds until the next attempt of a run that waits for one. None: it is over, or is due
    when it was."""


@dataclass(frozen=True, slots=True)
class ScheduleStanding:
    """The part of a schedule that ending a run needs to know; the row is locked."""

    name: str
    failures: int
    is_active: bool
    is_removed: bool
    pause_on_failure: float | None

    def is_too_many(self, failures: int) -> bool:
        most = self.pause_on_failure
        return most is not None and failures >= most and self.is_active and not self.is_removed


# -- told by the worker ------------------------------------------------------------------------------


def finish(c: Connection, worker_id: UUID, finishes: Sequence[Finish]) -> list[int]:
    """End these attempts. Returns the ids of those that were still this worker's."""
    if not finishes:
        return []
    ids = [f.run_id for f in finishes]
    failed = [f.run_id for f in finishes if _may_repeat(f)]
    locked = c.execute(_LOCK_SCHEDULES, {"ids": ids, "failed": failed})
    standings = {row.id: standing_from(row) for row in locked}
    runs = {row.id: row for row in c.execute(_LOCK_RUNS, {"ids": ids})}
    ended: dict[int, Ended] = {}
    for f in finishes:
        row = runs.get(f.run_id)
        if row is not None and f.run_id not in ended and is_current(row, worker_id, f.fence):
            standing = standings.get(row.schedule_id)
            ended[f.run_id] = _after(row, f, is_removed=standing is not None and standing.is_removed)
        else:
            record_rejected(c, row, worker_id, f)
    _end(c, list(ended.values()), standings)
    return list(ended)


def record_rejected(
    c: Connection, row: Any | None, worker_id: UUID, f: Finish, *, schedule: str = "", key: str | None = None
) -> None:
    """Write down a finish that had no effect, unless nothing is lost by it that anybody could miss.

    ``row`` is the run as it was found; if it is gone, ``schedule`` and ``key`` are what its worker knows of it.
    """
    is_cancelled = row is not None and row.state == RunState.CANCELLED and row.fence == f.fence
    is_kept = row is not None and row.state == RunState.SUCCEEDED and row.fence == f.fence
    if is_cancelled or f.state is RunState.TIMED_OUT or (is_kept and f.state is RunState.LOST):
        return
    record(
        c,
        EventKind.RUN_FINISH_REJECTED,
        schedule=schedule if row is None else row.schedule,
        key=key if row is None else row.key,
        run=f.run_id,
        fence=f.fence,
        worker=str(worker_id),
        state=f.state.value,
        found=None if row is None else row.state,
    )


def is_current(row: Any, worker_id: UUID, fence: int) -> bool:
    """Return whether a run is this worker's, under this fence. The row is locked, so it stays so until the
    commit."""
    return bool(row.state == RunState.RUNNING and row.fence == fence and row.worker_id == worker_id)


def standing_from(row: Any) -> ScheduleStanding:
    return ScheduleStanding(row.name, row.failures, row.is_active, row.is_removed, row.pause_on_failure)


def _may_repeat(f: Finish) -> bool:
    """Return whether its schedule must be read, under a lock: for its failures, and whether it is there at
    all."""
    return counts_as_failure(f.state) or f.state is RunState.WAITING


# -- what becomes of it ------------------------------------------------------------------------------


def _after(row: Any, f: Finish, *, is_removed: bool) -> Ended:
    """Decide what becomes of a run whose attempt ended so. Of a removed schedule nobody wants
    another attempt."""
    if f.state is RunState.LOST:
        return _after_loss(row, f.reason, is_removed=is_removed)
    if f.state is RunState.WAITING:
        # Given back: as if it had never been claimed.
        return Ended(row, RunState.CANCELLED if is_removed else RunState.WAITING, f.reason)
    job = None if is_removed else _job_of(row)
    if job is None:
        return Ended(row, f.state, f.reason)
    # Lost attempts use up no retries.
    return _ended(row, after_attempt(job, attempt=max(row.attempt - row.losses, 1), ended=f.state), f.reason)


def _after_loss(row: Any, reason: str | None, *, is_removed: bool) -> Ended:
    """Decide what becomes of a run whose attempt ended with its worker, or with nothing kept."""
    job = None if is_removed else _job_of(row)
    decision = Ends(RunState.LOST) if job is None else after_loss(job, losses=row.losses + 1)
    return _ended(row, decision, reason, is_lost=True)


def _ended(row: Any, decision: Ends | RetryIn, reason: str | None, *, is_lost: bool = False) -> Ended:
    match decision:
        case Ends(state):
            return Ended(row, state, reason, is_lost)
        case RetryIn(seconds):
            return Ended(row, RunState.WAITING, reason, is_lost, seconds)


def _job_of(row: Any) -> ScheduleSpec | None:
    """Reads the job of a run; None for one of another release, as how often it may be run cannot be known here."""
    try:
        return job_from(row.job_text)
    except InvalidInput:
        return None


def _end(c: Connection, ended: Sequence[Ended], standings: Mapping[int, ScheduleStanding]) -> None:
    """Write what became of these runs, and of their schedules. All rows are locked."""
    if not ended:
        return
    rows = [
        (
            *(one.row.id, one.state.value, None if one.reason is None else storable(one.reason)),
            *(one.row.attempt + (one.due_in_s is not None), one.row.losses + one.is_lost, one.due_in_s),
        )
        for one in ended
    ]
    c.execute(_END, _ENDED.of(rows))
    _count_failures(c, ended, standings)
    for one in ended:
        if one.is_lost:
            record(
                c,
                EventKind.RUN_LOST,
                schedule=standings[one.row.schedule_id].name,
                key=one.row.key,
                run=one.row.id,
                attempt=one.row.attempt,
                state=one.state.value,
            )


def _count_failures(c: Connection, ended: Sequence[Ended], standings: Mapping[int, ScheduleStanding]) -> None:
    """Count runs in a row that did not succeed, and pause the schedules that had one too many."""
    counts: dict[int, int] = {}
    for one in ended:
        schedule_id = one.row.schedule_id
        if schedule_id not in standings:
            continue
        before = counts.get(schedule_id, standings[schedule_id].failures)
        if counts_as_failure(one.state):
            counts[schedule_id] = before + 1
        elif one.state is RunState.SUCCEEDED and before:
            counts[schedule_id] = 0
    if not counts:
        return
    pauses = {
        schedule_id: f"{failures} runs in a row did not succeed"
        for schedule_id, failures in counts.items()
        if standings[schedule_id].is_too_many(failures)
    }
    failed = ((schedule_id, failures, pauses.get(schedule_id)) for schedule_id, failures in counts.items())
    c.execute(_FAILURES, _FAILED.of(failed))
    for schedule_id, reason in pauses.items():
        record(c, EventKind.SCHEDULE_PAUSED, schedule=standings[schedule_id].name, reason=reason)


# -- taken from a worker that is gone ----------------------------------------------------------------


def needs(c: Connection) -> Any:
    """Return whether anything runs, or has missed its start deadline (``expiry``), and whether anything is
    buffered (``promotion``): nearly all scans find nothing."""
    return c.execute(_ANY).one()


def expire(c: Connection, *, limit: int) -> int:
    """Take at most ``limit`` runs from workers that are gone. Returns how many.

    Runs that missed their start deadline are ended, too: where nobody claims, nobody else does it.
    """
    call(c, "miss_deadlines", list[int])
    found = c.execute(FOUND, {"limit": limit})
    if not found:
        return 0
    schedule_ids = sorted({row.schedule_id for row in found})
    standings = {
        row.id: standing_from(row) for row in c.execute(_LOCK_SCHEDULES_OF_LOST, {"ids": schedule_ids})
    }
    held = _HELD.of((row.id, row.worker_id) for row in found)
    lost = [
        _after_loss(row, WORKER_GONE, is_removed=standings[row.schedule_id].is_removed)
        for row in c.execute(_LOCK_LOST, {**held, "schedule_ids": list(standings)})
    ]
    _end(c, lost, standings)
    end_sessions(c, [(one.row.id, one.row.fence) for one in lost])
    return len(lost)


def session_name(run_id: int, fence: int) -> str:
    """Return the name of the session of a `transactional` job on the server."""
    return f"feedq-job/{run_id}/{fence}"


def end_sessions(c: Connection, runs: Sequence[tuple[int, int]]) -> None:
    """End the transactions of runs (id, fence) that were taken away: nothing in them can be committed any more."""
    c.execute(_END_SESSIONS, {"names": [session_name(*run) for run in runs]})


def take_over(c: Connection, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
    """Make these runs of a former session of the process (id → fence) this session's. Returns those that are."""
    parameters = {"worker_id": worker_id, "was": was, **FENCES.of(fences.items())}
    return {row.id for row in c.execute(_TAKE_OVER, parameters)}
