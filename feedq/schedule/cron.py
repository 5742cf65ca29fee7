"""Cron expressions: five fields, and the moments at which they fire in a time zone.

Matching dates and times is done by the library `cronsim`, on wall-clock time without a zone. What a change of the
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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from feedq.schedule.hashed import replaced
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
"""There are no ticks beyond it: arithmetic of dates ends in the year 9999, and zones must not reach it."""

_FIELDS = {
    # What is allowed, and the largest step.
    "minute": ("0 to 59", 60),
    "hour": ("0 to 23", 24),
    "day of the month": ("1 to 31, L (the last one) or LW (the last from Monday to Friday)", 31),
    "month": ("1 to 12 or JAN to DEC", 12),
    "day of the week": ("0 to 7 or SUN to SAT, 5L (the last Friday) or 1#2 (the second Monday)", 7),
}
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_NUMBERS = {name: str(n) for names in (_DAYS, ("", *_MONTHS)) for n, name in enumerate(names) if name}
_STEP = re.compile(r"/(0*[1-9]\d*)$", re.ASCII)
_OTHERWISE = "or *, lists such as 1,5, ranges such as 1-5, steps such as */2, and H"

_AROUND = timedelta(hours=26)
"""Farther than the clocks were ever changed at once: the day that Samoa left out has 24 hours."""

_REFERENCE = datetime(2000, 1, 1)  # noqa: DTZ001  # wall-clock time, which has no zone


@dataclass(frozen=True, slots=True)
class CronRule:
    """An expression that has been understood."""

    fields: str
    """The five fields for cronsim: no names such as ``@daily``, no ``H``."""
    repeats: bool
    """Whether it has ``*`` or a step in its minute or hour field, and so runs in elapsed time."""

    def ticks_after(self, after: datetime, *, zone: str, gap: DstGap, fold: DstFold) -> Iterator[datetime]:
        """Its moments later than ``after``, in UTC, strictly rising. There is no end to most."""
        if self.repeats:
            gap, fold = DstGap.SKIP, DstFold.BOTH
        clock = ZoneInfo(zone)
        last = after
        for moment in _moments(CronSim(self.fields, _wall_before(after, clock)), clock, gap, fold):
            if moment > last:
                last = moment
                yield moment


def parse(expression: str, *, name: str) -> CronRule:
    """Understand an expression of the schedule called ``name``.

    Raises ValueError, saying which field is wrong and what is allowed there, or that the expression never fires.
    """
    if len(expression) > EXPRESSION_MAX:
        raise ValueError(f"has {len(expression)} characters; at most {EXPRESSION_MAX} are allowed")
    text = " ".join(expression.split()).upper()
    # Without an H the name makes no difference: thousands of schedules share a few expressions.
    return _parse(text, name if "H" in text else "")


@lru_cache(maxsize=20_000)
def _parse(expression: str, name: str) -> CronRule:
    fields = NAMES.get(expression.lower(), expression).split()
    if expression.startswith("@") and expression.lower() not in NAMES:
        raise ValueError(f"{expression.lower()} is not known; the names are {', '.join(NAMES)}")
    if len(fields) != len(_FIELDS):
        raise ValueError(f"has {len(fields)} fields and needs five: {', '.join(_FIELDS)}")
    repeats = any("*" in field or "/" in field for field in fields[:2])
    for index, field in enumerate(_FIELDS):
        fields[index] = _checked(field, fields[index], name)
    rule = CronRule(" ".join(fields), repeats)
    if next(_walls(rule.fields), None) is None:
        raise ValueError("never fires: no such day exists")
    return rule


def _checked(field: str, text: str, name: str) -> str:
    """One field as cronsim is to see it."""
    allowed, step_max = _FIELDS[field]
    try:
        found = replaced(text, field=field, name=name)
    except ValueError as error:
        raise ValueError(f"the {field} is wrong: {error}") from None
    for item in found.split(","):
        step = _STEP.search(item)
        if step is not None and int(step[1]) > step_max:
            # cronsim would take */90 for 0, which is every hour and not every 90 minutes.
            raise ValueError(f"the {field} {text!r} is wrong: its step may be from 1 to {step_max}")
    found = ",".join(_narrowed(item) for item in found.split(","))
    if not _is_understood(field, found):
        raise ValueError(f"the {field} {text!r} is wrong; allowed are {allowed}, {_OTHERWISE}")
    return found


@lru_cache(maxsize=2_000)
def _is_understood(field: str, text: str) -> bool:
    """Whether cronsim takes this for the field. Of all the fields of thousands of schedules few differ."""
    alone = ["*"] * len(_FIELDS)
    alone[list(_FIELDS).index(field)] = text
    try:
        CronSim(" ".join(alone), _REFERENCE)
    except (CronSimError, AssertionError):
        return False
    return True


def _narrowed(item: str) -> str:
    """A range of one value without its step: cronsim would take 6-6/2 for 6/2, every other one from 6 on."""
    values = _STEP.sub("", item)
    first, dash, last = (_NUMBERS.get(value, value.lstrip("0")) for value in values.partition("-"))
    return values.partition("-")[0] if dash and first == last else item


def _walls(fields: str) -> Iterator[datetime]:
    """Its times on the clock, from the year 2000 on; none if there is none at all.

    cronsim looks 50 years ahead, and the rarest day there is, a certain weekday of 29 February, comes back
    within 40 years.
    """
    try:
        yield from CronSim(fields, _REFERENCE)
    except CronSimError:
        # A day of the month that none of the months has.
        return


# -- wall-clock times and moments ----------------------------------------------------------------------


def _wall_before(after: datetime, clock: ZoneInfo) -> datetime:
    """The time on the clock from which to look so that nothing after ``after`` is left out."""
    offsets = {moment.astimezone(clock).utcoffset() for moment in (after - _AROUND, after, after + _AROUND)}
    wall = after.astimezone(clock).replace(tzinfo=None)
    # Near a fold, times that the clock has shown already may come again.
    return wall if len(offsets) == 1 else wall - _AROUND


def _moments(walls: Iterator[datetime], clock: ZoneInfo, gap: DstGap, fold: DstFold) -> Iterator[datetime]:
    """When the clock shows these times. Rising, and the end of a gap as often as times are moved out of it."""
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
