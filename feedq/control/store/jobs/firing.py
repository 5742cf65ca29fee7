"""Fires ticks: locks what is due, decides it, and writes it down, in one transaction. The statements, and what
they promise, stand in `feedq/control/sql/schedules.sql`.

Decisions are those of `feedq.core.schedule.ticks`. A schedule about which none can be made (stored by a release
that knows more options, in a time zone that is no more) is paused with the reason, so that it neither stops the
others nor is decided again and again, until it is declared anew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from feedq.control.store.database import Connection
from feedq.control.store.jobs.listing import SCHEDULE_COLUMNS, schedule_from
from feedq.control.store.protocol import SCHEMA, call, document
from feedq.core.schedule import ticks
from feedq.core.schedule.model import Fired, NewRun, Schedule
from feedq.core.schedule.spec import NOT_OF_JOB
from feedq.core.schedule.ticks import Firing, Unfinished

UNFIRED = "it cannot be fired: "
"""Begins the reason of a pause of a schedule about which firing could decide nothing, by its declaration."""
DECIDE_S = 0.25
"""The time for which schedules are decided while all are locked; the rest is left to the next scan. One
schedule may take as long as `feedq.core.schedule.ticks.TICKS_PER_SCAN` ticks of a cron expression do."""
ROWS_PER_SCAN = 5_000
"""No further schedule is decided when this many rows are to be written."""
AGAIN_S = 0.05
"""When others are firing what is due."""
PROBLEM_CHARS_MAX = 500
_DUE = f"""
    SELECT {SCHEDULE_COLUMNS}, due.is_resumed, due.at AS now, due.waiting, due.running, due.of_backfills
    FROM {SCHEMA}.lock_due(%(limit)s) due CROSS JOIN LATERAL (SELECT (due.schedule).*) s
"""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision about a schedule, as `feedq_1.fire` is given it."""

    schedule_id: int
    name: str
    next_tick_at: datetime | None = None
    next_fire_at: datetime | None = None
    is_resumed: bool = False
    cancel_others: str | None = None
    problem: str | None = None


def scan_due(c: Connection) -> Fired:
    """Find whether there is anything to fire or resume, and when; not above zero when it is time. Writes
    nothing."""
    return call(c, "scan_due", Fired)


def fire(c: Connection, *, limit: int) -> Fired:
    """Fire what is due of at most ``limit`` schedules."""
    rows = c.execute(_DUE, {"limit": limit})
    decided: list[Decided] = []
    runs: list[NewRun] = []
    until = time.monotonic() + DECIDE_S
    more = len(rows) >= limit
    for row in rows:
        if decided and (len(runs) >= ROWS_PER_SCAN or time.monotonic() > until):
            more = True
            break
        try:
            firing = _decide(schedule_from(row), row)
        except Exception as error:  # noqa: BLE001 -- whatever is wrong with one, the others must go on
            said = " ".join(str(error).split()) or type(error).__name__
            decided.append(Decided(row.id, row.name, problem=f"{UNFIRED}{said[:PROBLEM_CHARS_MAX]}"))
            continue
        moves = firing.next_tick_at, firing.next_fire_at
        decided.append(Decided(row.id, row.name, *moves, row.is_resumed, firing.cancel_others))
        runs += firing.runs
        more |= firing.more
    made = write(c, decided, runs) if decided else 0
    waits_s = scan_due(c).next_in_s
    if more:
        waits_s = 0.0
    elif waits_s is not None:
        waits_s = max(waits_s, 0.0 if rows else AGAIN_S)
    return Fired(made, more, waits_s)


def write(c: Connection, decided: list[Decided], runs: list[NewRun]) -> int:
    """Write down what was decided of schedules that are locked. Returns the number of runs that are to be run now,
    or when it is their turn."""
    given = {"decided": document(decided), "runs": document(runs), "not_of_job": list(NOT_OF_JOB)}
    return call(c, "fire", int, **given)


def _decide(schedule: Schedule, row: Any) -> Firing:
    if row.is_resumed:
        schedule = ticks.resumed(schedule, now=row.now)
        tick_at, fire_at = schedule.next_tick_at, schedule.next_fire_at
        if fire_at is None or fire_at > row.now:
            return Firing((), None, tick_at, fire_at, False)
    unfinished = Unfinished(row.waiting, row.running, row.of_backfills)
    firing = ticks.fire(schedule, now=row.now, unfinished=unfinished)
    assert _moves_on(schedule, firing, row.now), "its watermark did not move on"
    return firing


def _moves_on(schedule: Schedule, firing: Firing, now: datetime) -> bool:
    """Whether the watermark moves on: else the same would be decided again and again. A tick may stay when it
    turns out to fire later than it was written down, by a release that computes jitter otherwise, say."""
    before, after, fires_at = schedule.next_tick_at, firing.next_tick_at, firing.next_fire_at
    if before is None or after is None or fires_at is None:
        return after is None
    return after > before or (after == before and fires_at > now)
