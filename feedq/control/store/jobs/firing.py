"""Fires ticks: those that are due become rows, and each watermark moves behind them, in one transaction.

No node leads. Each scans when it likes; those that scan at the same moment share the due schedules, because a
locked one is skipped, and one that another has just fired is no longer due when its row is read again. Killed
before the commit, nothing has happened, and the next scan does the same. With the commit, workers with room are
told. Should a tick come a second time (a watermark put back by hand, say),
its key is there already: no second row.

Decisions are those of `feedq.core.schedule.ticks`. A schedule about which none can be made (stored by a release
that knows more options, in a time zone that is no more) is paused with the reason, so that it neither stops the
others nor is decided again and again, until it is declared anew."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from feedq.control.store.channels import NotifyReason
from feedq.control.store.database import Connection, GivenRows
from feedq.control.store.jobs.rows import (
    NOT_BEGUN,
    SCHEDULE_COLUMNS,
    UNFIRED,
    cancel,
    notify_some,
    record,
    schedule_from,
    unfinished,
)
from feedq.control.store.protocol import call
from feedq.core.schedule import ticks
from feedq.core.schedule.model import AGEING_S, Fired, RunState, Schedule
from feedq.core.schedule.spec import NOT_OF_JOB, Overlap
from feedq.core.schedule.ticks import DueRun, Firing, Unfinished
from feedq.telemetry.event_names import EventKind

DECIDE_S = 0.25
"""The time for which schedules are decided while all are locked; the rest is left to the next scan. One
schedule may take as long as `feedq.core.schedule.ticks.TICKS_PER_SCAN` ticks of a cron expression do."""
ROWS_PER_SCAN = 5_000
"""No further schedule is decided when this many rows are to be written."""
AGAIN_S = 0.05
"""When others are firing what is due."""
PROBLEM_CHARS_MAX = 500
_NOW = "feedq.now()"

_DUE_SCAN = """
    SELECT extract(epoch FROM (
            SELECT next_fire_at FROM feedq.schedule
            WHERE removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL
            ORDER BY next_fire_at LIMIT 1
        ) - feedq.clock())::float8 AS due_in_s,
        extract(epoch FROM (
            SELECT paused_until FROM feedq.schedule
            WHERE removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL
            ORDER BY paused_until LIMIT 1
        ) - feedq.clock())::float8 AS resumed_in_s,
        NOT EXISTS (SELECT FROM feedq.run WHERE state IN ('buffered', 'waiting', 'running')) AS is_done
"""
_DUE = f"""
    SELECT {SCHEDULE_COLUMNS}, {_NOW} AS now FROM feedq.schedule s
    WHERE removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL AND next_fire_at <= {_NOW}
    ORDER BY next_fire_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""
_PAUSED = f"""
    SELECT {SCHEDULE_COLUMNS}, {_NOW} AS now FROM feedq.schedule s
    WHERE removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL AND paused_until <= {_NOW}
    ORDER BY paused_until LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""
_RUNS = GivenRows(
    "schedule_id bigint, key text, tick_at timestamptz, ticks int, last_tick_at timestamptz, due_at timestamptz, "
    "ahead_s float8, start_by timestamptz, state text, reason text, queue text, exclusive boolean"
)
_INSERT = f"""
    INSERT INTO feedq.run (schedule_id, kind, key, tick_at, ticks, last_tick_at, due_at, rank_at, start_by, state,
        reason, ended_at, job, queue, exclusive)
    SELECT s.id, 'tick', given.key, given.tick_at, given.ticks, given.last_tick_at, given.due_at,
        given.due_at - make_interval(secs => given.ahead_s), given.start_by, given.state, given.reason,
        CASE WHEN given.state NOT IN ('buffered', 'waiting') THEN feedq.clock() END,
        s.declaration - CAST(%(not_of_job)s AS text[]), given.queue, given.exclusive
    FROM {_RUNS.numbered}
    CROSS JOIN LATERAL (SELECT id, declaration FROM feedq.schedule WHERE id = given.schedule_id OFFSET 0) s
    ORDER BY given.n
    ON CONFLICT (schedule_id, key) DO NOTHING
    RETURNING state IN ('buffered', 'waiting') AND due_at <= {_NOW} AS is_due
"""
# A tick that is left out every second must not become a row every second: it is counted in the schedule's newest
# row, if that is of the same state for the same reason. What that row stands for already is not counted again.
_FOLDED = GivenRows(
    "schedule_id bigint, tick_at timestamptz, ticks int, last_tick_at timestamptz, state text, reason text"
)
_FOLD = f"""
    UPDATE feedq.run r SET last_tick_at = greatest(newest.last, given.last_tick_at), ended_at = feedq.clock(),
        ticks = r.ticks + CASE WHEN newest.last < given.tick_at THEN given.ticks ELSE 0 END
    FROM {_FOLDED}
    CROSS JOIN LATERAL (
        SELECT id, kind, state, reason, tick_at AS first, coalesce(last_tick_at, tick_at) AS last FROM feedq.run
        WHERE schedule_id = given.schedule_id ORDER BY id DESC LIMIT 1
    ) newest
    WHERE r.id = newest.id AND newest.kind = 'tick' AND newest.state = given.state
        AND newest.reason = given.reason AND newest.first < given.tick_at
        AND (newest.last < given.tick_at OR newest.last >= given.last_tick_at)
    RETURNING r.schedule_id
"""
# Only forward, whatever was decided: a tick that is behind it has been fired.
_MARKS = GivenRows("id bigint, next_tick_at timestamptz, next_fire_at timestamptz")
_ADVANCE = f"""
    UPDATE feedq.schedule s SET next_tick_at = given.next_tick_at, next_fire_at = given.next_fire_at,
        state = 'active', paused_until = NULL, pause_reason = NULL
    FROM {_MARKS}
    WHERE s.id = given.id AND (s.next_tick_at IS NULL OR given.next_tick_at IS NULL
        OR given.next_tick_at >= s.next_tick_at)
"""
_PAUSED_FOR = GivenRows("id bigint, reason text")
_PAUSE = f"""
    UPDATE feedq.schedule s SET state = 'paused', paused_until = NULL, pause_reason = given.reason
    FROM {_PAUSED_FOR} WHERE s.id = given.id
"""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision about one schedule in one scan."""

    schedule: Schedule
    """The schedule as it was; of an ended pause, as it is without it."""
    firing: Firing
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class FiringProblem:
    """A schedule about which nothing can be decided."""

    schedule_id: int
    name: str
    reason: str


def scan_due(c: Connection) -> Fired:
    """Find whether there is anything to fire or resume, and when; not above zero when it is time. Writes
    nothing."""
    row = c.execute(_DUE_SCAN).one()
    waits = [wait for wait in (row.due_in_s, row.resumed_in_s) if wait is not None]
    return Fired(0, False, min(waits, default=None), is_idle=not waits and row.is_done)


def fire(c: Connection, *, limit: int) -> Fired:
    """Fire what is due of at most ``limit`` schedules."""
    paused = c.execute(_PAUSED, {"limit": limit})
    rows = [*paused, *c.execute(_DUE, {"limit": limit})]
    counted = unfinished(c, [row.id for row in rows]) if rows else {}
    decided, problems = _decide(rows, counted, resuming={row.id for row in paused})
    if made := write(c, decided):
        notify_some(c, made, NotifyReason.RUNS)
    _pause(c, problems)
    waits_s = scan_due(c).next_in_s
    more = len(rows) >= limit or len(decided) + len(problems) < len(rows)
    more = more or any(d.firing.more for d in decided)
    if more:
        waits_s = 0.0
    elif waits_s is not None:
        waits_s = max(waits_s, 0.0 if rows else AGAIN_S)
    return Fired(made, more, waits_s)


def write(c: Connection, decided: Sequence[Decided]) -> int:
    """Write the rows, and the watermarks behind them: with one commit, or a tick is lost or comes twice. Returns
    the number of runs that are to be run now, or when it is their turn."""
    _cancel_others(c, decided)
    made = insert(c, decided)
    if buffered := {
        d.schedule.id for d in decided if any(r.state is RunState.BUFFERED for r in d.firing.runs)
    }:
        call(c, "promote", int, schedules=sorted(buffered))
    advance(c, decided)
    return made


def insert(c: Connection, decided: Sequence[Decided]) -> int:
    """Make rows of ticks. Returns how many of them are to be run now, or when it is their turn."""
    folded = _fold(c, decided)
    runs = [
        (d.schedule, run)
        for d in decided
        for place, run in enumerate(d.firing.runs)
        if place > 0 or d.schedule.id not in folded
    ]
    if not runs:
        return 0
    given = _RUNS.of(_row_of(schedule, run) for schedule, run in runs)
    made = c.execute(_INSERT, given | {"not_of_job": list(NOT_OF_JOB)})
    return sum(row.is_due for row in made)


def _row_of(schedule: Schedule, run: DueRun) -> tuple[object, ...]:
    """Lists the columns of a run in the order of `_RUNS`."""
    spec = schedule.spec
    return (
        *(schedule.id, run.key, run.tick_at, run.ticks, run.last_tick_at, run.due_at),
        *(spec.priority * AGEING_S, run.start_by, run.state.value, run.reason, spec.queue),
        spec.overlap is not Overlap.ALLOW_ALL,
    )


def _fold(c: Connection, decided: Sequence[Decided]) -> set[int]:
    """Count the first runs of schedules in rows that there are. Returns the ids of the schedules for which that
    was done."""
    runs = [
        (d.schedule.id, d.firing.runs[0])
        for d in decided
        if d.firing.runs and d.firing.runs[0].state.is_left_out
    ]
    if not runs:
        return set()
    rows = [
        (schedule_id, run.tick_at, run.ticks, run.last_tick_at or run.tick_at, run.state.value, run.reason)
        for schedule_id, run in runs
    ]
    return {row.schedule_id for row in c.execute(_FOLD, _FOLDED.of(rows))}


def advance(c: Connection, decided: Sequence[Decided]) -> None:
    """Move watermarks on, and end the pauses that are over."""
    if not decided:
        return
    marks = ((d.schedule.id, d.firing.next_tick_at, d.firing.next_fire_at) for d in decided)
    c.execute(_ADVANCE, _MARKS.of(marks))
    for d in decided:
        if d.is_resumed:
            record(c, EventKind.SCHEDULE_RESUMED, schedule=d.schedule.spec.name, reason="its pause was over")


def _decide(
    rows: Sequence[Any], unfinished: Mapping[int, Unfinished], *, resuming: set[int]
) -> tuple[list[Decided], list[FiringProblem]]:
    """Decides schedules as far as the time and the rows of one look go."""
    decided: list[Decided] = []
    problems: list[FiringProblem] = []
    until = time.monotonic() + DECIDE_S
    made = 0
    for row in rows:
        if (decided or problems) and (made >= ROWS_PER_SCAN or time.monotonic() > until):
            break
        try:
            one = _decide_one(row, unfinished[row.id], is_resumed=row.id in resuming)
        except Exception as error:  # noqa: BLE001 -- whatever is wrong with one, the others must go on
            said = " ".join(str(error).split()) or type(error).__name__
            problems.append(FiringProblem(row.id, row.name, f"{UNFIRED}{said[:PROBLEM_CHARS_MAX]}"))
        else:
            decided.append(one)
            made += len(one.firing.runs)
    return decided, problems


def _decide_one(row: Any, unfinished: Unfinished, *, is_resumed: bool) -> Decided:
    schedule = schedule_from(row)
    if is_resumed:
        schedule = ticks.resumed(schedule, now=row.now)
        tick_at, fire_at = schedule.next_tick_at, schedule.next_fire_at
        if fire_at is None or fire_at > row.now:
            return Decided(schedule, Firing((), False, tick_at, fire_at, False), is_resumed)
    firing = ticks.fire(schedule, now=row.now, unfinished=unfinished)
    assert _moves_on(schedule, firing, row.now), "its watermark did not move on"
    return Decided(schedule, firing, is_resumed)


def _moves_on(schedule: Schedule, firing: Firing, now: datetime) -> bool:
    """Whether the watermark moves on: else the same would be decided again and again. A tick may stay when it
    turns out to fire later than it was written down, by a release that computes jitter otherwise, say."""
    before, after, fires_at = schedule.next_tick_at, firing.next_tick_at, firing.next_fire_at
    if before is None or after is None or fires_at is None:
        return after is None
    return after > before or (after == before and fires_at > now)


def _cancel_others(c: Connection, decided: Sequence[Decided]) -> None:
    """Cancels other runs, before the new ones are written: all that have not ended are others."""
    if reasons := {d.schedule.id: _why(d) for d in decided if d.firing.cancel_others}:
        cancel(c, reasons, (*NOT_BEGUN, RunState.RUNNING))


def _why(decided: Decided) -> str:
    keys = [run.key for run in decided.firing.runs if run.state is RunState.WAITING]
    return (
        f"overlap is {Overlap.CANCEL_OTHER}, and the tick of {keys[-1] if keys else 'a later time'} fell due"
    )


def _pause(c: Connection, problems: Sequence[FiringProblem]) -> None:
    if not problems:
        return
    c.execute(_PAUSE, _PAUSED_FOR.of((p.schedule_id, p.reason) for p in problems))
    for problem in problems:
        record(c, EventKind.SCHEDULE_PAUSED, schedule=problem.name, reason=problem.reason)
