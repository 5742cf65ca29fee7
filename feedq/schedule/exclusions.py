"""Days that a schedule leaves out: dates and ranges of dates, of one year or of every year.

==========================  =========================================================
``2026-12-24``              that day
``2026-12-24..2027-01-02``  from the first to the last, both included
``12-25``                   each year; ``02-29`` in leap years
``12-24..01-02``            each year, also past its end
==========================  =========================================================

A day is a day on the clock of a time zone, from midnight to midnight. A tick on such a day never was: nothing is
written of it, and nothing made up for.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from feedq.errors import InvalidInput
from feedq.schedule.model import Calendar, ScheduleSpec

DATES_MAX = 2_000
"""Dates or ranges of one list."""
LEAP_YEAR = 2000
DAYS_OF_YEAR = 365
_DAY = timedelta(days=1)
_MONTH_DAY = re.compile(r"\d{2}-\d{2}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
RANGE = ".."


@dataclass(frozen=True, slots=True)
class DaySet:
    """Days to leave out."""

    spans: tuple[tuple[date, date], ...]
    """First and last, rising, neither overlapping nor next to one another."""
    yearly: frozenset[tuple[int, int]]
    """Month and day."""

    def free_after(self, day: date) -> date | None:
        """The first day from this one on that is not left out; None when this one is not."""
        free = day
        while (beyond := self._beyond(free)) is not None:
            free = beyond
        return None if free == day else free

    def _beyond(self, day: date) -> date | None:
        """The day after the days in a row that this one is left out with; None when it is not."""
        place = bisect_right(self.spans, (day, date.max)) - 1
        if place >= 0 and day <= self.spans[place][1]:
            return self.spans[place][1] + _DAY
        return day + _DAY if (day.month, day.day) in self.yearly else None


def date_problems(texts: Sequence[str]) -> list[str]:
    """Return what is wrong with a list of dates."""
    if len(texts) > DATES_MAX:
        return [f"has {len(texts)} dates; at most {DATES_MAX} are allowed"]
    wrong = []
    for text in texts:
        try:
            _read(text)
        except ValueError as error:
            wrong.append(str(error))
    if not wrong and len(days_of(tuple(texts)).yearly) >= DAYS_OF_YEAR:
        wrong.append("leaves out every day of the year")
    return wrong


@lru_cache(maxsize=1_000)
def days_of(texts: tuple[str, ...]) -> DaySet:
    """The days that these mean. Raises ValueError, as `date_problems` says."""
    spans: list[tuple[date, date]] = []
    yearly: set[tuple[int, int]] = set()
    for text in texts:
        found = _read(text)
        if isinstance(found, frozenset):
            yearly |= found
        else:
            spans.append(found)
    return DaySet(tuple(_joined(sorted(spans))), frozenset(yearly))


def with_calendars(spec: ScheduleSpec, calendars: Iterable[Calendar]) -> ScheduleSpec:
    """Adds the dates of the calendars that it leaves out to a declaration. Raises `InvalidInput` when one of them
    is not there."""
    dates = {calendar.name: calendar.dates for calendar in calendars}
    if missing := [name for name in spec.exclude.calendars if name not in dates]:
        raise InvalidInput(
            f"schedule {spec.name!r}: exclude.calendars: there is no calendar {', '.join(map(repr, missing))}; "
            "declare it under calendars in a manifest, or with `feedq schedule calendar set`"
        )
    found = tuple(dict.fromkeys(date for name in spec.exclude.calendars for date in dates[name]))
    return replace(spec, exclude=replace(spec.exclude, calendar_dates=found))


def midnight(day: date, clock: ZoneInfo) -> datetime:
    """Says when the day begins, in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=clock).astimezone(UTC)


def _joined(spans: Iterable[tuple[date, date]]) -> Iterator[tuple[date, date]]:
    last: tuple[date, date] | None = None
    for span in spans:
        if last is not None and span[0] <= last[1] + _DAY:
            last = (last[0], max(last[1], span[1]))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _read(text: str) -> tuple[date, date] | frozenset[tuple[int, int]]:
    first, dots, last = text.partition(RANGE)
    ends = (first, last if dots else first)
    try:
        if all(_DATE.fullmatch(end) for end in ends):
            begin, end = map(date.fromisoformat, ends)
            if end < begin:
                raise ValueError(f"{text!r} ends before it begins")
            if end.year >= 3000:
                raise ValueError(f"{text!r}: must lie before the year 3000")
            return begin, end
        if all(_MONTH_DAY.fullmatch(end) for end in ends):
            begin, end = (date.fromisoformat(f"{LEAP_YEAR}-{end}") for end in ends)
            return _each_year(begin, end)
    except ValueError as error:
        if text in str(error):
            raise
        raise ValueError(f"{text!r} is no day of the calendar") from None
    raise ValueError(
        f"{text!r} is no date; write 2026-12-24, or 12-25 for each year, or a range such as 2026-12-24..2027-01-02"
    )


def _each_year(begin: date, end: date) -> frozenset[tuple[int, int]]:
    """Return the days of a span in each year, both in the leap year; one that ends before it begins goes on in
    the next year."""
    year = [date(LEAP_YEAR, 1, 1) + n * _DAY for n in range(DAYS_OF_YEAR + 1)]
    wraps = end < begin
    return frozenset(
        (day.month, day.day)
        for day in year
        if (begin <= day <= end if not wraps else day >= begin or day <= end)
    )
