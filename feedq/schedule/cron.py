"""Cron expressions: five fields, and the moments at which they fire in a time zone.

What the fields mean on wall-clock time without a zone, `feedq.schedule.cronfields` says. What a change of the
clocks does to a wall-clock time is decided here; ``docs/reference/dst.md`` has the rules and a table of examples:

- A wall-clock time that exists once fires once.
- In a *gap* (clocks put forward) it does not exist, and `DstGap` says what becomes of it.
- In a *fold* (clocks put back) it exists twice, and `DstFold` says which of them fires.
- An expression with ``*`` or a step in its minute or hour field repeats through the day, and is meant in elapsed
  time: it fires at whichever moment shows a matching time on the clock. That is `DstGap.SKIP` with `DstFold.BOTH`,
  whatever the schedule says.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from feedq.schedule.cronfields import (
    FIELDS,
    HOUR,
    MINUTE,
    MONTH,
    DayRule,
    days_of_month,
    plain_field,
    read_days,
    read_values,
)
from feedq.schedule.model import DstFold, DstGap

EXPRESSION_MAX = 1000
"""Characters of an expression."""

NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

YEAR_MAX = 9000
"""The year of the last ticks: arithmetic of dates ends in the year 9999, and zones must not reach it."""

YEARS_WITHOUT_MAX = 50
"""The rarest day there is, a certain weekday of 29 February, comes back within 40 years."""

_EVERY = re.compile(r"@EVERY (\S+)")
_SECONDS = re.compile(r"\*/(\d+)(?: [*?]){5}", re.ASCII)
_AROUND = timedelta(hours=26)
"""Farther than the clocks were ever changed at once: the day that Samoa left out has 24 hours."""

_REFERENCE = datetime(2000, 1, 1)  # noqa: DTZ001  # wall-clock time, which has no zone


@dataclass(frozen=True, slots=True)
class CronRule:
    """An expression that has been understood."""

    fields: str
    """The five fields, with no name such as ``@daily``, no ``H`` and no ``?``; all else follows from them."""
    repeats: bool
    """Whether it has ``*`` or a step in its minute or hour field, and so runs in elapsed time."""
    minutes: tuple[int, ...] = field(compare=False, repr=False)
    """Rising, as the hours are."""
    hours: tuple[int, ...] = field(compare=False, repr=False)
    days: DayRule = field(compare=False, repr=False)
    months: frozenset[int] = field(compare=False, repr=False)

    def ticks_after(self, after: datetime, *, zone: str, gap: DstGap, fold: DstFold) -> Iterator[datetime]:
        """Yields its moments later than ``after``, in UTC, strictly rising. There is no end to most."""
        if self.repeats:
            gap, fold = DstGap.SKIP, DstFold.BOTH
        clock = ZoneInfo(zone)
        last = after
        for moment in _moments(self.walls_after(_wall_before(after, clock)), clock, gap, fold):
            if moment > last:
                last = moment
                yield moment

    def walls_after(self, wall: datetime) -> Iterator[datetime]:
        """Yields its times on the clock that are later than this one."""
        year, month, empty_until = wall.year, wall.month, wall.year + YEARS_WITHOUT_MAX
        first = (wall.year, wall.month, wall.day)
        while year <= min(YEAR_MAX, empty_until):
            for day in days_of_month(self.days, year, month) if month in self.months else ():
                empty_until = year + YEARS_WITHOUT_MAX
                date = (year, month, day)
                if date >= first:
                    yield from self._walls_of(date, (wall.hour, wall.minute) if date == first else (-1, 0))
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)

    def _walls_of(self, date: tuple[int, int, int], after: tuple[int, int]) -> Iterator[datetime]:
        """Yields its times of a day that are later than this hour and minute."""
        for hour in self.hours:
            if hour >= after[0]:
                for minute in self.minutes:
                    if (hour, minute) > after:
                        yield datetime(*date, hour, minute)  # noqa: DTZ001  # on the clock


def parse(expression: str, *, name: str) -> CronRule:
    """Understand an expression of the schedule called ``name``.

    Raises ValueError, saying which field is wrong and what to write instead, or that the expression never fires.
    """
    if len(expression) > EXPRESSION_MAX:
        raise ValueError(f"has {len(expression)} characters; at most {EXPRESSION_MAX} are allowed")
    text = " ".join(expression.split()).upper()
    # Without an H the name makes no difference: thousands of schedules share a few expressions.
    return _parse(text, name if "H" in text else "")


@lru_cache(maxsize=20_000)
def _parse(expression: str, name: str) -> CronRule:
    fields = NAMES.get(expression.lower(), expression).split()
    if len(fields) != len(FIELDS) or fields[0].startswith("@"):
        raise ValueError(_not_five(expression))
    repeats = any("*" in text or "/" in text for text in fields[:2])
    fields = [plain_field(kind, text, name=name) for kind, text in zip(FIELDS, fields, strict=True)]
    minute, hour, month_day, month, weekday = fields
    minutes, hours = tuple(sorted(read_values(MINUTE, minute))), tuple(sorted(read_values(HOUR, hour)))
    months, days = read_values(MONTH, month), read_days(month_day, weekday)
    rule = CronRule(" ".join(fields), repeats, minutes, hours, days, months)
    if next(rule.walls_after(_REFERENCE), None) is None:
        raise ValueError("never fires: no such day exists")
    return rule


def _not_five(expression: str) -> str:
    """Return what is wrong with an expression that has not five fields, and what to write instead."""
    fields = expression.split()
    if every := _EVERY.fullmatch(expression):
        return f"@every is not cron: write every: {every[1].lower()} in place of cron"
    if expression == "@REBOOT":
        return "@reboot is no time; `feedq schedule trigger` runs a schedule now"
    if expression.startswith("@"):
        return f"{expression.lower()} is not known; the names are {', '.join(NAMES)}"
    if expression.startswith(("CRON_TZ=", "TZ=")):
        return f"{fields[0]} does not belong here: give the time zone as zone"
    said = f"has {len(fields)} fields and needs five: {', '.join(kind.name for kind in FIELDS)}"
    if every := _SECONDS.fullmatch(expression):
        return f"{said}; there is none of seconds: write every: {every[1]}s in place of cron"
    if len(fields) in (6, 7):
        if fields[0] == "0" and "?" not in (fields[2], fields[4]):
            return f"{said}; there is none of seconds: write {' '.join(fields[1:6])}"
        if len(fields) == 6 and "?" in (fields[2], fields[4]):
            return f"{said}; there is none of years: write {' '.join(fields[:5])}"
        return f"{said}; there is none of seconds: for less than a minute write every: 30s and the like"
    return said


# -- wall-clock times and moments ----------------------------------------------------------------------


def _wall_before(after: datetime, clock: ZoneInfo) -> datetime:
    """The time on the clock from which to look so that nothing after ``after`` is left out."""
    offsets = {moment.astimezone(clock).utcoffset() for moment in (after - _AROUND, after, after + _AROUND)}
    wall = after.astimezone(clock).replace(tzinfo=None)
    # Near a fold, times that the clock has shown already may come again.
    return wall if len(offsets) == 1 else wall - _AROUND


def _moments(walls: Iterator[datetime], clock: ZoneInfo, gap: DstGap, fold: DstFold) -> Iterator[datetime]:
    """Yields the moments at which the clock shows these times. Rising, and the end of a gap as often as times are
    moved out of it."""
    second_pass: deque[datetime] = deque()
    for wall in walls:
        if wall.year > YEAR_MAX:
            break
        first = wall.replace(tzinfo=clock, fold=0).astimezone(UTC)
        second = wall.replace(tzinfo=clock, fold=1).astimezone(UTC)
        moment = first
        if first > second:
            if gap is DstGap.SKIP:
                continue
            moment = _end_of_gap(second, first, clock)
        elif first < second:
            if fold is DstFold.SECOND:
                moment = second
            elif fold is DstFold.BOTH:
                second_pass.append(second)
        while second_pass and second_pass[0] < moment:
            yield second_pass.popleft()
        yield moment
    yield from second_pass


def _end_of_gap(before: datetime, after: datetime, clock: ZoneInfo) -> datetime:
    """The moment between these two at which the clock is put forward, to the second."""
    offset = before.astimezone(clock).utcoffset()
    seconds = int((after - before).total_seconds())
    low, high = 0, seconds
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(clock).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
