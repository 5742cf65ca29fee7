"""Named calendars: lists of days that schedules leave out, and what a change of one does to the schedules.

Each schedule has the dates of its calendars in a column of its own: firing reads one row, and a calendar changes
together with the watermarks that follow from it, in one transaction. **The order of locks** is calendars by name,
then schedules by id: who declares a schedule holds its calendars FOR SHARE until it is written, so that a change
of one either is before it or finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, text

from feedq.errors import Conflict, NotFound
from feedq.event_names import EventKind
from feedq.schedule import due
from feedq.schedule.exclusions import with_calendars
from feedq.schedule.model import Calendar, Schedule, ScheduleSpec
from feedq.store.database import Aggregate, GivenRows, in_transaction
from feedq.store.jobs.rows import (
    SCHEDULE_COLUMNS,
    notify_if_soon,
    now,
    record,
    shown_schedule_from,
    stored_dates,
)

SHOWN_MAX = 5
"""Schedules that a refusal names."""
USED = "removed_at IS NULL AND jsonb_exists(s.policy #> '{exclude,calendars}', :name)"

_RETIMED = GivenRows("id bigint, excluded text, next_tick_at timestamptz, next_fire_at timestamptz")


class CalendarStore(Aggregate):
    """Named lists of days that schedules leave out. Thread-safe."""

    @in_transaction
    def set(self, c: Connection, calendar: Calendar) -> int:
        """Declare a calendar, or change it. The schedules that leave it out are timed anew, from now on; a tick
        that is due keeps its place. Returns how many. Raises `InvalidInput`."""
        # Here alone: a worker has no need of what people declare.
        from feedq.schedule.entries import CalendarEntry, plain_calendar

        CalendarEntry.valid(plain_calendar(calendar))
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
        users = [shown_schedule_from(row) for row in c.execute(text(sql), {"name": calendar.name})]
        known = [schedule for schedule in users if schedule.unreadable is None]
        _retime(c, known)
        record(
            c,
            EventKind.CALENDAR_CHANGED,
            calendar=calendar.name,
            dates=len(calendar.dates),
            schedules=len(known),
        )
        return len(known)

    @in_transaction
    def remove(self, c: Connection, name: str) -> None:
        """Raises `NotFound`, `Conflict` when a schedule leaves it out."""
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
        record(c, EventKind.CALENDAR_REMOVED, calendar=name)

    @in_transaction
    def all(self, c: Connection) -> list[Calendar]:
        """All calendars by name."""
        sql = "SELECT name, dates::text AS dates FROM feedq.calendar ORDER BY name"
        return [_calendar_from(row) for row in c.execute(text(sql))]

    def listed(self) -> list[tuple[Calendar, int]]:
        """All, each with how many schedules leave it out."""
        users = self.users()
        return [(found, users.get(found.name, 0)) for found in self.all()]

    @in_transaction
    def users(self, c: Connection) -> Mapping[str, int]:
        """Count the schedules that leave a calendar out, by calendar; without those that none does."""
        sql = """
            SELECT used.name, count(*)::int AS schedules
            FROM feedq.schedule s, jsonb_array_elements_text(s.policy #> '{exclude,calendars}') AS used (name)
            WHERE removed_at IS NULL GROUP BY used.name
        """
        return {row.name: row.schedules for row in c.execute(text(sql))}


def with_dates(c: Connection, spec: ScheduleSpec) -> ScheduleSpec:
    """Adds the dates of its calendars to a declaration; they stay as they are until the transaction ends. Raises
    `InvalidInput` when there is no such calendar."""
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


def _retime(c: Connection, schedules: Sequence[Schedule]) -> None:
    """Write the dates of their calendars, as they are now, and the watermarks that follow from them."""
    if not schedules:
        return
    at = now(c)
    names = {name for schedule in schedules for name in schedule.spec.exclude.calendars}
    calendars = _found(c, sorted(names))
    changed = [_retimed(replace(s, spec=with_calendars(s.spec, calendars)), at) for s in schedules]
    sql = f"""
        UPDATE feedq.schedule s SET excluded = CAST(given.excluded AS jsonb), next_tick_at = given.next_tick_at,
            next_fire_at = given.next_fire_at, updated_at = clock_timestamp()
        FROM {_RETIMED} WHERE s.id = given.id
    """
    rows = (
        (s.id, stored_dates(s.spec.exclude.calendar_dates), s.next_tick_at, s.next_fire_at) for s in changed
    )
    c.execute(text(sql), _RETIMED.of(rows))
    notify_if_soon(c, changed, at)


def _retimed(schedule: Schedule, at: datetime) -> Schedule:
    """A tick that is due keeps its place: whoever fires it finds out whether it is left out now."""
    tick = schedule.next_tick_at
    if tick is not None and tick <= at:
        return schedule
    return due.begin(schedule, now=at)
