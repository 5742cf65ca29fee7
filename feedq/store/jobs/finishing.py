"""Finishing: an attempt ends, or is to be repeated, if it still is its worker's.

A finish names run, fence and worker. It has an effect only while the run is running under that fence: not when
the attempt was taken away (its worker was declared gone), and not a second time. Those turned away are written
down as events, unless the run was cancelled on purpose, the worker says itself that time ran out, or it thought
a commit lost that has happened: then nothing is lost that anybody could miss.

The schedule's row is locked before its runs', and only when its failures in a row may change: a success after
successes locks nothing but the run. `Ended` and `end` serve `feedq.store.jobs.expiry` as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.errors import InvalidInput
from feedq.schedule.model import Finish, RunState
from feedq.schedule.outcome import Ends, RetryIn, RunAgain, after_attempt, after_loss, counts_as_failure
from feedq.schedule.plain import job_from_plain
from feedq.store.jobs.writing import record
from feedq.telemetry import EventKind

REASON_CHARS_MAX = 2_000
"""Longer ones are cut: a traceback must not fill the table."""

# Only what is needed is read of the declaration: one that this release cannot read must not keep runs from ending.
STANDING = """
    s.id, s.name, s.failures, s.state = 'active' AS is_active, s.removed_at IS NOT NULL AS is_removed,
    CASE WHEN jsonb_typeof(s.policy -> 'pause_on_failure') = 'number'
         THEN (s.policy ->> 'pause_on_failure')::numeric END AS pause_on_failure
"""
# Those without failures stay unlocked if none comes now. If one comes from elsewhere meanwhile, it came after us.
_LOCK_SCHEDULES = f"""
    SELECT {STANDING} FROM feedq.schedule s
    WHERE s.id = ANY(ARRAY(SELECT schedule_id FROM feedq.run WHERE id = ANY(:ids)))
        AND (s.failures > 0 OR s.id = ANY(ARRAY(SELECT schedule_id FROM feedq.run WHERE id = ANY(:failed))))
    ORDER BY s.id FOR NO KEY UPDATE
"""
_LOCK_RUNS = """
    SELECT r.*, s.name AS schedule FROM (
        SELECT DISTINCT id FROM unnest(CAST(:ids AS bigint[])) AS t (id) ORDER BY id
    ) given CROSS JOIN LATERAL (SELECT * FROM feedq.run WHERE id = given.id FOR UPDATE) r
    CROSS JOIN LATERAL (SELECT name FROM feedq.schedule WHERE id = r.schedule_id OFFSET 0) s
"""
# Repeated later, it ranks as if it had fallen due then; given back or repeated at once, it keeps its rank.
END = """
    UPDATE feedq.run r SET state = given.state, reason = given.reason, attempt = given.attempt,
        losses = given.losses,
        ended_at = CASE WHEN given.state <> 'waiting' THEN clock_timestamp() END,
        worker_id = CASE WHEN given.state <> 'waiting' THEN r.worker_id END,
        started_at = CASE WHEN given.state <> 'waiting' THEN r.started_at END,
        deadline_at = CASE WHEN given.state <> 'waiting' THEN r.deadline_at END,
        due_at = r.due_at + later.by,
        rank_at = CASE WHEN given.due_in_s > 0 THEN r.rank_at + later.by ELSE r.rank_at END,
        start_by = r.start_by + later.by
    FROM (
        SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:states AS text[]), CAST(:reasons AS text[]),
            CAST(:attempts AS int[]), CAST(:losses AS int[]), CAST(:dues AS float8[]))
            AS t (id, state, reason, attempt, losses, due_in_s)
    ) given CROSS JOIN LATERAL (
        SELECT id, coalesce(statement_timestamp() + make_interval(secs => given.due_in_s) - due_at,
            interval '0') AS by
        FROM feedq.run WHERE id = given.id OFFSET 0
    ) later
    WHERE r.id = later.id
"""
_FAILURES = """
    UPDATE feedq.schedule s SET failures = given.failures,
        state = CASE WHEN given.reason IS NOT NULL THEN 'paused' ELSE s.state END,
        pause_reason = coalesce(given.reason, s.pause_reason)
    FROM unnest(CAST(:ids AS bigint[]), CAST(:failures AS int[]), CAST(:reasons AS text[]))
        AS given (id, failures, reason)
    WHERE s.id = given.id
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What becomes of a running run; its row is locked."""

    run_id: int
    schedule_id: int
    state: RunState
    reason: str | None
    attempt: int
    losses: int
    due_in_s: float | None = None
    """Of one that waits again: None leaves it due when it was."""


@dataclass(frozen=True, slots=True)
class ScheduleStanding:
    """What ending a run needs to know of its schedule; the row is locked."""

    name: str
    failures: int
    is_active: bool
    is_removed: bool
    pause_on_failure: float | None


class Failures:
    """Runs in a row that did not succeed, by schedule."""

    def __init__(self, standings: Mapping[int, ScheduleStanding]) -> None:
        self._standings = standings
        self.counts: dict[int, int] = {}
        """Of schedules whose number changes."""

    def count(self, ended: Ended) -> None:
        standing = self._standings.get(ended.schedule_id)
        if standing is None:
            return
        before = self.counts.get(ended.schedule_id, standing.failures)
        if counts_as_failure(ended.state):
            self.counts[ended.schedule_id] = before + 1
        elif ended.state is RunState.SUCCEEDED and before:
            self.counts[ended.schedule_id] = 0

    def pauses(self) -> dict[int, str]:
        """Schedules that had one too many, with the reason."""
        return {
            schedule_id: f"{failures} runs in a row did not succeed"
            for schedule_id, failures in self.counts.items()
            if _is_too_many(failures, self._standings[schedule_id])
        }


def finish(c: Connection, worker_id: UUID, finishes: Sequence[Finish]) -> list[int]:
    """End these attempts. Returns the ids of those that were still this worker's."""
    if not finishes:
        return []
    ids = [f.run_id for f in finishes]
    standings = lock_schedules(c, ids, failed=[f.run_id for f in finishes if _may_repeat(f)])
    runs = {row.id: row for row in c.execute(text(_LOCK_RUNS), {"ids": ids})}
    ended: dict[int, Ended] = {}
    for f in finishes:
        row = runs.get(f.run_id)
        if row is not None and f.run_id not in ended and is_current(row, worker_id, f.fence):
            ended[f.run_id] = _after(row, f, standings.get(row.schedule_id))
        else:
            record_rejected(c, row, worker_id, f)
    end(c, list(ended.values()), standings)
    lost = [f.run_id for f in finishes if f.state is RunState.LOST and f.run_id in ended]
    record_lost(c, [(runs[run_id], ended[run_id]) for run_id in lost], standings)
    return list(ended)


def is_current(row: Any, worker_id: UUID, fence: int) -> bool:
    """Whether a run is this worker's, under this fence. The row is locked, so it stays so until the commit."""
    return bool(row.state == RunState.RUNNING and row.fence == fence and row.worker_id == worker_id)


def lock_schedules(
    c: Connection, run_ids: Sequence[int], *, failed: Sequence[int]
) -> dict[int, ScheduleStanding]:
    """Lock the schedules of these runs whose failures may change, in the order of their ids."""
    rows = c.execute(text(_LOCK_SCHEDULES), {"ids": list(run_ids), "failed": list(failed)})
    return {row.id: standing_from(row) for row in rows}


def standing_from(row: Any) -> ScheduleStanding:
    return ScheduleStanding(row.name, row.failures, row.is_active, row.is_removed, row.pause_on_failure)


def end(c: Connection, ended: Sequence[Ended], standings: Mapping[int, ScheduleStanding]) -> None:
    """Write what became of these runs, and of their schedules. All rows are locked."""
    if not ended:
        return
    parameters = {
        "ids": [e.run_id for e in ended],
        "states": [e.state.value for e in ended],
        "reasons": [_cut(e.reason) for e in ended],
        "attempts": [e.attempt for e in ended],
        "losses": [e.losses for e in ended],
        "dues": [e.due_in_s for e in ended],
    }
    c.execute(text(END), parameters)
    failures = Failures(standings)
    for one in ended:
        failures.count(one)
    _write_failures(c, failures, standings)


def _write_failures(c: Connection, failures: Failures, standings: Mapping[int, ScheduleStanding]) -> None:
    if not failures.counts:
        return
    pauses = failures.pauses()
    parameters = {
        "ids": list(failures.counts),
        "failures": list(failures.counts.values()),
        "reasons": [pauses.get(schedule_id) for schedule_id in failures.counts],
    }
    c.execute(text(_FAILURES), parameters)
    for schedule_id, reason in pauses.items():
        record(c, EventKind.SCHEDULE_PAUSED, standings[schedule_id].name, reason=reason)


def _is_too_many(failures: int, standing: ScheduleStanding) -> bool:
    most = standing.pause_on_failure
    return most is not None and failures >= most and standing.is_active and not standing.is_removed


def after_end(row: Any, state: RunState, reason: str | None, standing: ScheduleStanding | None) -> Ended:
    """What becomes of a run whose attempt ended in this state: over, or to be repeated."""
    match _decide(row, state, standing):
        case Ends(final):
            return Ended(row.id, row.schedule_id, final, reason, row.attempt, row.losses)
        case RetryIn(seconds):
            return Ended(
                row.id, row.schedule_id, RunState.WAITING, reason, row.attempt + 1, row.losses, seconds
            )


def after_lost(row: Any, reason: str, standing: ScheduleStanding) -> Ended:
    """What becomes of a run whose attempt ended with its worker, or with nothing kept."""
    losses = row.losses + 1
    match _after_loss(row, standing, losses):
        case Ends(state):
            return Ended(row.id, row.schedule_id, state, reason, row.attempt, losses)
        case RunAgain():
            return Ended(
                row.id, row.schedule_id, RunState.WAITING, reason, row.attempt + 1, losses, due_in_s=0.0
            )


def _after_loss(row: Any, standing: ScheduleStanding, losses: int) -> RunAgain | Ends:
    if standing.is_removed:
        return Ends(RunState.LOST)
    try:
        return after_loss(job_from_plain(row.job), losses=losses)
    except (InvalidInput, ValueError):
        return Ends(RunState.LOST)  # of another release: whether it may be run twice cannot be known here


def record_lost(
    c: Connection, lost: Sequence[tuple[Any, Ended]], standings: Mapping[int, ScheduleStanding]
) -> None:
    """Write down attempts that were lost, each with its row as it was found."""
    for row, one in lost:
        record(
            c,
            EventKind.RUN_LOST,
            standings[row.schedule_id].name,
            key=row.key,
            run=row.id,
            attempt=row.attempt,
            state=one.state.value,
        )


def _decide(row: Any, state: RunState, standing: ScheduleStanding | None) -> RetryIn | Ends:
    if standing is not None and standing.is_removed:
        return Ends(state)  # nobody wants another attempt
    try:
        job = job_from_plain(row.job)
    except (InvalidInput, ValueError):
        return Ends(state)  # of another release: how often it may be repeated cannot be known here
    # Lost attempts use up no retries.
    return after_attempt(job, attempt=max(row.attempt - row.losses, 1), ended=state)


def _cut(reason: str | None) -> str | None:
    # NUL cannot be stored in a text column.
    return None if reason is None else reason.replace("\x00", "�")[:REASON_CHARS_MAX]


def _may_repeat(f: Finish) -> bool:
    """Whether its schedule must be looked at, under a lock: for its failures, and whether it is there at all."""
    return counts_as_failure(f.state) or f.state is RunState.WAITING


def _after(row: Any, f: Finish, standing: ScheduleStanding | None) -> Ended:
    if f.state is RunState.LOST:
        assert standing is not None, "locked for its failures"
        return after_lost(row, f.reason or "", standing)
    if f.state is not RunState.WAITING:
        return after_end(row, f.state, f.reason, standing)
    # Given back: as if it had never been claimed, unless its schedule is gone meanwhile.
    state = RunState.CANCELLED if standing is not None and standing.is_removed else RunState.WAITING
    return Ended(row.id, row.schedule_id, state, f.reason, row.attempt, row.losses)


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
        schedule if row is None else row.schedule,
        key=key if row is None else row.key,
        run=f.run_id,
        fence=f.fence,
        worker=str(worker_id),
        state=f.state.value,
        found=None if row is None else row.state,
    )
