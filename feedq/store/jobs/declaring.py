"""Desired state: the verbs people use on schedules, each one transaction that also writes history.

Edits look forward only. They move the watermark to ticks that are yet to come, and reach no run that there is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import orjson
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from feedq.errors import Conflict, InvalidInput
from feedq.schedule import due
from feedq.schedule.cron import parse
from feedq.schedule.jitter import fire_time
from feedq.schedule.model import Beat, Cron, RunState, Schedule, ScheduleSpec, ScheduleState
from feedq.schedule.plain import from_plain, to_plain
from feedq.store.jobs.calendars import with_dates
from feedq.store.jobs.pauses import DECLARED, check_reason, ends_when_declared
from feedq.store.jobs.run_rows import SCHEDULE_COLUMNS, shown_schedule_from, stored
from feedq.store.jobs.writing import cancel, locked, locked_row, now, record, ring_some
from feedq.telemetry import EventKind

REMOVED = "its schedule was removed"

SOON_S = 1.0
"""What is declared to fire within this is told to a worker: nobody may look by then. All others see it in time."""
_SOON = timedelta(seconds=SOON_S)


def add(c: Connection, spec: ScheduleSpec) -> Schedule:
    spec = with_dates(c, _as_stored(spec))
    # Jitter is hashed from the id, so the first tick cannot be known before it.
    sql = "SELECT nextval(pg_get_serial_sequence('feedq.schedule', 'id')) AS id, clock_timestamp() AS now"
    given = c.execute(text(sql)).one()
    tick_at, fire_at = due.begin(spec, schedule_id=given.id, now=given.now)
    state = ScheduleState.PAUSED if spec.paused else ScheduleState.ACTIVE
    reason = DECLARED if spec.paused else None
    schedule = Schedule(
        given.id, spec, state, None, reason, 1, tick_at, fire_at, 0, given.now, updated_at=given.now
    )
    sql = f"""
        INSERT INTO feedq.schedule AS s (id, name, job, timing, policy, excluded, state, pause_reason,
            next_tick_at, next_fire_at, created_at, updated_at) OVERRIDING SYSTEM VALUE
        VALUES (:id, :name, CAST(:job AS jsonb), CAST(:timing AS jsonb), CAST(:policy AS jsonb),
            CAST(:excluded AS jsonb), :state, :pause_reason, :next_tick_at, :next_fire_at, :now, :now)
        RETURNING {SCHEDULE_COLUMNS}
    """
    added = _write(c, sql, {**_columns(schedule), "now": given.now})
    record(c, EventKind.SCHEDULE_ADDED, spec.name, generation=1)
    if spec.paused:
        record(c, EventKind.SCHEDULE_PAUSED, spec.name, reason=DECLARED)
    _ring_if_soon(c, added, given.now)
    return added


def edit(c: Connection, name: str, spec: ScheduleSpec) -> Schedule:
    spec = with_dates(c, _as_stored(spec))
    current = shown_schedule_from(locked_row(c, name))
    # Of one that cannot be read not even what does not change is known.
    is_readable = current.unreadable is None
    if isinstance(current.spec.timing, Beat) or isinstance(spec.timing, Beat):
        raise Conflict(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
    if is_readable and spec == current.spec:
        return current
    at = now(c)
    edited = replace(current, spec=spec, generation=current.generation + 1, unreadable=None)
    edited = _with_watermark(edited, current, at) if is_readable else _begun(edited, at)
    ends_pause = ends_when_declared(current.pause_reason)
    if spec.paused and (ends_pause or current.state is ScheduleState.ACTIVE):
        edited = replace(edited, state=ScheduleState.PAUSED, pause_reason=DECLARED)
    elif ends_pause:
        edited = _awake(edited, at)
    changed = [
        f.name
        for f in dataclasses.fields(ScheduleSpec)
        if not is_readable or getattr(spec, f.name) != getattr(current.spec, f.name)
    ]
    edited = _replace(c, edited)
    record(c, EventKind.SCHEDULE_EDITED, spec.name, generation=edited.generation, changed=changed)
    if edited.state is not current.state:
        is_paused = edited.state is ScheduleState.PAUSED
        kind = EventKind.SCHEDULE_PAUSED if is_paused else EventKind.SCHEDULE_RESUMED
        record(c, kind, spec.name, reason=edited.pause_reason or "declared so")
    _ring_if_soon(c, edited, at)
    return edited


def remove(c: Connection, name: str) -> Schedule:
    current = locked_row(c, name)
    cancelled = cancel(c, current.id, (RunState.WAITING,), reason=REMOVED)
    sql = f"""
        UPDATE feedq.schedule s SET removed_at = clock_timestamp(), updated_at = clock_timestamp()
        WHERE id = :id RETURNING {SCHEDULE_COLUMNS}
    """
    removed = _write(c, sql, {"id": current.id, "name": name})
    record(c, EventKind.SCHEDULE_REMOVED, name, cancelled=cancelled)
    return removed


def pause(c: Connection, name: str, *, until: datetime | None, reason: str | None) -> Schedule:
    if until is not None and until.utcoffset() is None:
        raise InvalidInput("until: must end with a Z or an offset such as +01:00")
    check_reason(reason)
    current = locked_row(c, name)
    if (current.state, current.paused_until, current.pause_reason) == (ScheduleState.PAUSED, until, reason):
        return shown_schedule_from(current)
    sql = f"""
        UPDATE feedq.schedule s SET state = 'paused', paused_until = :until, pause_reason = :reason,
            updated_at = clock_timestamp()
        WHERE id = :id RETURNING {SCHEDULE_COLUMNS}
    """
    paused = _write(c, sql, {"id": current.id, "until": until, "reason": reason})
    said = None if until is None else until.isoformat()
    record(c, EventKind.SCHEDULE_PAUSED, name, reason=reason, until=said)
    return paused


def resume(c: Connection, name: str) -> Schedule:
    current = locked(c, name)
    if current.state is ScheduleState.ACTIVE and current.failures == 0:
        return current
    # What was declared as paused is so no longer: to declare it once more is an edit again.
    resumed = replace(current, spec=replace(current.spec, paused=False))
    if current.state is ScheduleState.PAUSED:
        at = now(c)
        resumed = _awake(resumed, at)
        record(c, EventKind.SCHEDULE_RESUMED, name)
        _ring_if_soon(c, resumed, at)
    return _replace(c, replace(resumed, failures=0))


def _ring_if_soon(c: Connection, schedule: Schedule, at: datetime) -> None:
    """Have a worker look for its next tick, with the commit."""
    fires_at = schedule.next_fire_at
    if schedule.state is ScheduleState.ACTIVE and fires_at is not None and fires_at <= at + _SOON:
        ring_some(c, 1)


def _as_stored(spec: ScheduleSpec) -> ScheduleSpec:
    """As it will be read again, so that two can be compared: tuples for lists, floats for whole numbers."""
    return from_plain(orjson.loads(orjson.dumps(to_plain(spec))))


def _with_watermark(edited: Schedule, before: Schedule, at: datetime) -> Schedule:
    spec, tick = edited.spec, before.next_tick_at
    if _has_other_ticks(spec, before.spec):
        return _begun(edited, at)
    if spec.jitter_s != before.spec.jitter_s and tick is not None:
        return replace(edited, next_fire_at=fire_time(spec, schedule_id=edited.id, tick=tick))
    return edited


def _begun(schedule: Schedule, at: datetime) -> Schedule:
    tick_at, fire_at = due.begin(schedule.spec, schedule_id=schedule.id, now=at)
    return replace(schedule, next_tick_at=tick_at, next_fire_at=fire_at)


def _has_other_ticks(spec: ScheduleSpec, before: ScheduleSpec) -> bool:
    """By another timing; or by another name, from which each ``H`` of the same one is hashed."""
    timing, bounds = spec.timing, attrgetter("timing", "start_at", "end_at", "exclude")
    if bounds(spec) != bounds(before) or not isinstance(timing, Cron):
        return bool(bounds(spec) != bounds(before))
    rules = [[parse(text, name=one.name) for text in timing.expressions] for one in (spec, before)]
    return rules[0] != rules[1]


def _awake(schedule: Schedule, at: datetime) -> Schedule:
    tick_at, fire_at = due.resumed(schedule, now=at)
    return replace(
        schedule,
        state=ScheduleState.ACTIVE,
        paused_until=None,
        pause_reason=None,
        next_tick_at=tick_at,
        next_fire_at=fire_at,
    )


def _replace(c: Connection, schedule: Schedule) -> Schedule:
    """Write the whole row, which is locked."""
    sql = f"""
        UPDATE feedq.schedule s SET name = :name, job = CAST(:job AS jsonb), timing = CAST(:timing AS jsonb),
            policy = CAST(:policy AS jsonb), excluded = CAST(:excluded AS jsonb), state = :state,
            paused_until = :paused_until, pause_reason = :pause_reason, generation = :generation,
            next_tick_at = :next_tick_at, next_fire_at = :next_fire_at, failures = :failures,
            updated_at = clock_timestamp()
        WHERE id = :id RETURNING {SCHEDULE_COLUMNS}
    """
    return _write(c, sql, _columns(schedule))


def _columns(schedule: Schedule) -> dict[str, Any]:
    return {
        **stored(schedule.spec),
        "id": schedule.id,
        "state": schedule.state.value,
        "paused_until": schedule.paused_until,
        "pause_reason": schedule.pause_reason,
        "generation": schedule.generation,
        "next_tick_at": schedule.next_tick_at,
        "next_fire_at": schedule.next_fire_at,
        "failures": schedule.failures,
    }


def _write(c: Connection, sql: str, columns: dict[str, Any]) -> Schedule:
    try:
        return shown_schedule_from(c.execute(text(sql), columns).one())
    except IntegrityError as error:
        if getattr(error.orig, "pgcode", None) != "23505":
            raise
        raise Conflict(
            f"schedule {columns['name']!r} exists already; `feedq schedule edit` changes it"
        ) from None
