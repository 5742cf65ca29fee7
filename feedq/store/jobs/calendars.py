"""Named calendars: lists of days that schedules leave out, and what a change of one does to the schedules.

Each schedule has the dates of its calendars in a column of its own: firing reads one row, and a calendar changes
together with the watermarks that follow from it, in one transaction. **The order of locks** is calendars by name,
then schedules by id: who declares a schedule holds its calendars FOR SHARE until it is written, so that a change
of one either is before it or finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, text

from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.schedule import due
from feedq.schedule.check import calendar_problems
from feedq.schedule.exclusions import with_calendars
from feedq.schedule.model import Calendar, Schedule, ScheduleSpec, ScheduleState
from feedq.store.database import Database
from feedq.store.jobs.run_rows import SCHEDULE_COLUMNS, shown_schedule_from, stored_dates
from feedq.store.jobs.writing import now, ring_some
from feedq.telemetry import EventKind

SHOWN_MAX = 5
"""Schedules that a refusal names."""
SOON = timedelta(seconds=1)
USED = "removed_at IS NULL AND jsonb_exists(s.policy #> '{exclude,calendars}', :name)"


class PostgresCalendars:
    """`feedq.store.jobs.base.Calendars` on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, calendar: Calendar) -> int:
        if found := calendar_problems(calendar):
            raise InvalidInput(f"calendar {calendar.name!r}: {'; '.join(found)}")
        with self._database.transaction() as c:
            return _set(c, calendar)

    def remove(self, name: str) -> None:
        with self._database.transaction() as c:
            _remove(c, name)

    def all(self) -> list[Calendar]:
        sql = "SELECT name, dates::text AS dates FROM feedq.calendar ORDER BY name"
        with self._database.transaction() as c:
            return [_calendar_from(row) for row in c.execute(text(sql))]

    def users(self) -> Mapping[str, int]:
        sql = """
            SELECT used.name, count(*)::int AS schedules
            FROM feedq.schedule s, jsonb_array_elements_text(s.policy #> '{exclude,calendars}') AS used (name)
            WHERE removed_at IS NULL GROUP BY used.name
        """
        with self._database.transaction() as c:
            return {row.name: row.schedules for row in c.execute(text(sql))}


def with_dates(c: Connection, spec: ScheduleSpec) -> ScheduleSpec:
    """With the dates of its calendars, which stay as they are until the transaction ends. Raises `InvalidInput`
    when there is no such calendar."""
    names = spec.exclude.calendars
    if not names:
        return spec
    return with_calendars(spec, _found(c, names, lock="FOR SHARE"))


def _found(c: Connection, names: Sequence[str], *, lock: str = "") -> list[Calendar]:
    sql = (
        f"SELECT name, dates::text AS dates FROM feedq.calendar WHERE name = ANY(:names) ORDER BY name {lock}"
    )
    return [_calendar_from(row) for row in c.execute(text(sql), {"names": list(names)})]


def _calendar_from(row: Any) -> Calendar:
    return Calendar(row.name, tuple(orjson.loads(row.dates)))


def _set(c: Connection, calendar: Calendar) -> int:
    sql = """
        INSERT INTO feedq.calendar AS k (name, dates) VALUES (:name, CAST(:dates AS jsonb))
        ON CONFLICT (name) DO UPDATE SET dates = excluded.dates, updated_at = clock_timestamp()
            WHERE k.dates <> excluded.dates
        RETURNING name
    """
    parameters = {"name": calendar.name, "dates": stored_dates(calendar.dates)}
    if c.execute(text(sql), parameters).one_or_none() is None:
        return 0
    sql = f"SELECT {SCHEDULE_COLUMNS} FROM feedq.schedule s WHERE {USED} ORDER BY s.id FOR NO KEY UPDATE"
    found = [shown_schedule_from(row) for row in c.execute(text(sql), {"name": calendar.name})]
    known = [schedule for schedule in found if schedule.unreadable is None]
    _retime(c, known)
    _record(c, EventKind.CALENDAR_CHANGED, calendar.name, dates=len(calendar.dates), schedules=len(known))
    return len(known)


def _retime(c: Connection, schedules: Sequence[Schedule]) -> None:
    """Write the dates of their calendars, as they are now, and the watermarks that follow from them."""
    if not schedules:
        return
    at = now(c)
    names = {name for schedule in schedules for name in schedule.spec.exclude.calendars}
    calendars = _found(c, sorted(names))
    changed = [_retimed(replace(s, spec=with_calendars(s.spec, calendars)), at) for s in schedules]
    sql = """
        UPDATE feedq.schedule s SET excluded = CAST(given.excluded AS jsonb), next_tick_at = given.next_tick_at,
            next_fire_at = given.next_fire_at, updated_at = clock_timestamp()
        FROM unnest(CAST(:ids AS bigint[]), CAST(:excluded AS text[]), CAST(:ticks AS timestamptz[]),
            CAST(:fires AS timestamptz[])) AS given (id, excluded, next_tick_at, next_fire_at)
        WHERE s.id = given.id
    """
    parameters = {
        "ids": [schedule.id for schedule in changed],
        "excluded": [stored_dates(schedule.spec.exclude.calendar_dates) for schedule in changed],
        "ticks": [schedule.next_tick_at for schedule in changed],
        "fires": [schedule.next_fire_at for schedule in changed],
    }
    c.execute(text(sql), parameters)
    active = [schedule.next_fire_at for schedule in changed if schedule.state is ScheduleState.ACTIVE]
    if any(fires_at is not None and fires_at <= at + SOON for fires_at in active):
        ring_some(c, 1)


def _retimed(schedule: Schedule, at: datetime) -> Schedule:
    """A tick that is due keeps its place: whoever fires it finds out whether it is left out now."""
    tick = schedule.next_tick_at
    if tick is not None and tick <= at:
        return schedule
    tick_at, fire_at = due.begin(schedule.spec, schedule_id=schedule.id, now=at)
    return replace(schedule, next_tick_at=tick_at, next_fire_at=fire_at)


def _remove(c: Connection, name: str) -> None:
    sql = "SELECT name FROM feedq.calendar WHERE name = :name FOR UPDATE"
    if c.execute(text(sql), {"name": name}).one_or_none() is None:
        raise NotFound(f"no calendar named {name!r}; `feedq schedule calendar list` shows them all")
    sql = f"SELECT s.name FROM feedq.schedule s WHERE {USED} ORDER BY s.name LIMIT {SHOWN_MAX + 1}"
    users = [row.name for row in c.execute(text(sql), {"name": name})]
    if users:
        more = " and others" if len(users) > SHOWN_MAX else ""
        raise Conflict(
            f"calendar {name!r} is left out by {', '.join(users[:SHOWN_MAX])}{more}; take it from their "
            "exclude.calendars first"
        )
    c.execute(text("DELETE FROM feedq.calendar WHERE name = :name"), {"name": name})
    _record(c, EventKind.CALENDAR_REMOVED, name)


def _record(c: Connection, kind: EventKind, name: str, **detail: Any) -> None:
    sql = "INSERT INTO feedq.event (kind, detail) VALUES (:kind, CAST(:detail AS jsonb))"
    c.execute(text(sql), {"kind": kind.value, "detail": orjson.dumps({"calendar": name} | detail).decode()})
