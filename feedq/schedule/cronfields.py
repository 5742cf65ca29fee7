"""The five fields of a cron expression: which values, and which days of a month, each of them means.

``docs/reference/cron.md`` is the table of what is understood and of what is refused; a test reads it. The days
are in two fields: if both leave some out, a day that is in either of them will do (as in every cron since 1979);
if one begins with ``*`` or is ``?``, a day must be in both.

``H`` is a value hashed from the schedule's name, so that many schedules do not fire at once:

======================  =====================================================================
``H``                   one value of the field
``H(a-b)``              one value from a to b
``H/n``                 every n-th value, the first of them hashed
``H(a-b)/n``            the same, from a to b
======================  =====================================================================

Of days of the month ``H`` means 1 to 28, which every month has. The hash depends on the name and the field and on
nothing else: the same on every node and in every release. In a list each item stands for itself, and all of one
field have the same hash: ``H(0-29),H(30-59)`` is every half hour.

No library reads this dialect: cronsim, croniter and APScheduler each lack ``H``, ``L-3``, and more besides.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class FieldRange:
    """The range that one of the five fields may hold."""

    name: str
    low: int
    high: int
    allowed: str
    """The allowed values in words."""
    names: Mapping[str, int] = field(hash=False)
    step_max: int
    """Longer steps are taken for what they cannot mean: ``*/90`` in the minutes for every 90 minutes."""
    hashed_max: int
    """The highest value of ``H``."""


_WEEKDAYS = {name: n for n, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_MONTHS = {
    name: n
    for n, name in enumerate(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), start=1
    )
}
MINUTE = FieldRange("minute", 0, 59, "0 to 59", {}, 60, 59)
HOUR = FieldRange("hour", 0, 23, "0 to 23", {}, 24, 23)
MONTH_DAY = FieldRange(
    "day of the month",
    1,
    31,
    "1 to 31, L (the last one), L-3, 15W, LW (the last from Monday to Friday)",
    {},
    31,
    28,
)
MONTH = FieldRange("month", 1, 12, "1 to 12 or JAN to DEC", _MONTHS, 12, 12)
WEEKDAY = FieldRange(
    "day of the week", 0, 7, "0 to 7 or SUN to SAT, 5L (the last Friday) or MON#2", _WEEKDAYS, 7, 6
)
FIELDS = (MINUTE, HOUR, MONTH_DAY, MONTH, WEEKDAY)
OTHERWISE = "or *, lists such as 1,5, ranges such as 1-5, steps such as */2, and H"
DAYS_OF_WEEK = 7
FROM_END_MAX = 30
OCCURRENCES_MAX = 5
"""No weekday comes more often in a month."""

_VALUES = re.compile(
    r"(?P<first>\*|[A-Z]+|\d{1,4})(?:-(?P<last>[A-Z]+|\d{1,4}))?(?:/(?P<step>\d{1,4}))?", re.ASCII
)
_MONTH_DAY = re.compile(r"(?P<end>L)?(?:(?P<dash>(?<=L)-)?(?P<number>\d{1,2}))?(?P<work>W)?", re.ASCII)
_HASHED = re.compile(r"H(?:\((?P<first>\d{1,4})-(?P<last>\d{1,4})\))?(?:/(?P<step>\d{1,4}))?", re.ASCII)
_WEEKDAY = re.compile(r"(?P<day>[A-Z]{3}|\d)(?:L|#(?P<number>\d))", re.ASCII)


@dataclass(frozen=True, slots=True)
class MonthDay:
    """A day of the month that is not the same in each: ``L``, ``L-3``, ``15W``, ``LW``."""

    number: int
    """The day; or, from the end, how many days before the last."""
    from_end: bool
    nearest: bool
    """Whether the day from Monday to Friday that is nearest to it, within the month, is meant."""

    def of(self, first_weekday: int, last: int) -> int | None:
        """The day in a month whose first day is this weekday (0 is Monday) and that ends on ``last``; None when
        it has no such day."""
        day = last - self.number if self.from_end else self.number
        if not 1 <= day <= last:
            return None
        if not self.nearest:
            return day
        match (first_weekday + day - 1) % DAYS_OF_WEEK:
            case 5:
                return day - 1 if day > 1 else day + 2
            case 6:
                return day + 1 if day < last else day - 2
        return day


@dataclass(frozen=True, slots=True)
class DayRule:
    """The days that the two fields of days mean."""

    month_days: frozenset[int]
    moving_days: tuple[MonthDay, ...]
    weekdays: frozenset[int]
    """0 is Sunday."""
    nth_weekdays: tuple[tuple[int, int], ...]
    """A weekday, and which of the month it is from 1; 0 is the last."""
    both: bool
    """Whether a day must be in both fields."""

    def of(self, year: int, month: int) -> list[int]:
        """The days of that month, rising."""
        first_weekday, last = monthrange(year, month)
        by_date = {day for day in self.month_days if day <= last}
        by_date.update(
            day for moving in self.moving_days if (day := moving.of(first_weekday, last)) is not None
        )
        by_weekday = {
            day for day in range(1, last + 1) if (first_weekday + day) % DAYS_OF_WEEK in self.weekdays
        }
        by_weekday.update(self._nth(first_weekday, last))
        return sorted(by_date & by_weekday if self.both else by_date | by_weekday)

    def _nth(self, first_weekday: int, last: int) -> Iterator[int]:
        for weekday, number in self.nth_weekdays:
            first = 1 + (weekday - 1 - first_weekday) % DAYS_OF_WEEK
            days = range(first, last + 1, DAYS_OF_WEEK)
            if number == 0:
                yield days[-1]
            elif number <= len(days):
                yield days[number - 1]


@lru_cache(maxsize=10_000)
def days_of_month(rule: DayRule, year: int, month: int) -> tuple[int, ...]:
    """Remembers what `DayRule.of` says: whoever looks for a next tick mostly looks into the month of the last
    one."""
    return tuple(rule.of(year, month))


def read_values(field: FieldRange, text: str) -> frozenset[int]:
    """The values of a field that is none of days, or of which only plain values are wanted. Raises ValueError."""
    return frozenset(value for item in text.split(",") for value in _values(field, item, text))


def read_days(month_day: str, weekday: str) -> DayRule:
    """Return what the two fields of days mean. Raises ValueError."""
    plain_days: set[int] = set()
    moving: list[MonthDay] = []
    for item in month_day.split(","):
        found = _moving(item)
        if found is None:
            plain_days.update(_values(MONTH_DAY, item, month_day))
        else:
            moving.append(found)
    plain_weekdays: set[int] = set()
    nth: list[tuple[int, int]] = []
    for item in weekday.split(","):
        numbered = _numbered(item)
        if numbered is None:
            plain_weekdays.update(value % DAYS_OF_WEEK for value in _values(WEEKDAY, item, weekday))
        else:
            nth.append(numbered)
    both = month_day.startswith("*") or weekday.startswith("*")
    return DayRule(frozenset(plain_days), tuple(moving), frozenset(plain_weekdays), tuple(nth), both)


def plain_field(field: FieldRange, text: str, *, name: str) -> str:
    """The field without ``H`` and ``?``. Raises ValueError when it has one of them that means nothing."""
    if text == "?" and field in (MONTH_DAY, WEEKDAY):
        return "*"
    # THU and MAR have an H as well.
    return ",".join(_unhashed(field, i, name) if i.startswith("H") else i for i in text.split(","))


def _unhashed(field: FieldRange, item: str, name: str) -> str:
    found = _HASHED.fullmatch(item)
    if found is None:
        raise ValueError(f"the {field.name} is wrong: {item!r} is none of H, H(a-b), H/n and H(a-b)/n")
    low, high = field.low, field.hashed_max
    if found["first"] is not None:
        low, high = int(found["first"]), int(found["last"])
        if not field.low <= low <= high <= field.high:
            lies = f"must rise and lie within {field.low} to {field.high}"
            raise ValueError(f"the {field.name} is wrong: the range of {item!r} {lies}")
    size = high - low + 1
    value = int.from_bytes(blake2b(f"{field.name}\0{name}".encode(), digest_size=8).digest(), "big")
    if found["step"] is None:
        return str(low + value % size)
    step = int(found["step"])
    if not 1 <= step <= size:
        raise ValueError(f"the {field.name} is wrong: the step of {item!r} must be from 1 to {size}")
    return ",".join(str(one) for one in range(low + value % step, high + 1, step))


@lru_cache(maxsize=2_000)
def _values(field: FieldRange, item: str, text: str) -> tuple[int, ...]:
    """Lists the values of one item of a list; of all the fields of thousands of schedules few differ."""
    found = _VALUES.fullmatch(item)
    if found is None or (found["first"] == "*" and found["last"]):
        raise _refusal(field, item, text)
    if found["step"] is not None and not 1 <= int(found["step"]) <= field.step_max:
        raise _long_step(field, item, text)
    step = int(found["step"] or 1)
    if found["first"] == "*":
        return tuple(range(field.low, field.high + 1, step))
    first = _number(field, found["first"], item, text)
    if found["last"] is None:
        return tuple(range(first, field.high + 1, step)) if found["step"] else (first,)
    last = _number(field, found["last"], item, text)
    if first <= last:
        return tuple(range(first, last + 1, step))
    # Past the end of the field and on from its beginning; Sunday is 0 as well as 7.
    high = field.high if field is not WEEKDAY else DAYS_OF_WEEK - 1
    first = first if field is not WEEKDAY else first % DAYS_OF_WEEK
    around = (
        (*range(first, high + 1), *range(field.low, last + 1)) if first > last else range(first, last + 1)
    )
    return tuple(around[::step])


def _number(field: FieldRange, text: str, item: str, whole: str) -> int:
    number = field.names.get(text, int(text) if text.isdecimal() else -1)
    if not field.low <= number <= field.high:
        raise _refusal(field, item, whole)
    return number


def _moving(item: str) -> MonthDay | None:
    found = _MONTH_DAY.fullmatch(item)
    if found is None or not (found["end"] or found["work"]):
        return None
    number = int(found["number"] or 0)
    if found["end"]:
        well_formed = bool(found["dash"]) == bool(found["number"]) and number <= FROM_END_MAX
        return MonthDay(number, True, bool(found["work"])) if well_formed else None
    return MonthDay(number, False, True) if 1 <= number <= MONTH_DAY.high else None


def _numbered(item: str) -> tuple[int, int] | None:
    found = _WEEKDAY.fullmatch(item)
    if found is None:
        return None
    day = _WEEKDAYS.get(found["day"], int(found["day"]) if found["day"].isdecimal() else -1)
    number = 0 if found["number"] is None else int(found["number"])
    if not 0 <= day <= DAYS_OF_WEEK or number > OCCURRENCES_MAX or found["number"] == "0":
        return None
    return day % DAYS_OF_WEEK, number


# -- what is refused ---------------------------------------------------------------------------------

_ONE_DAY = "# and L go with one day; write a list such as MON#2,TUE#2"
_HINTS: tuple[tuple[tuple[FieldRange, ...], str, str], ...] = (
    ((MINUTE, HOUR, MONTH), r"\?", "? is for days; write *"),
    ((MONTH_DAY, WEEKDAY), r".*\?.*", "? stands alone; write *, or the days"),
    ((MINUTE,), r"60", "the full hour is 0"),
    ((HOUR,), r"24", "midnight is 0"),
    (
        (MONTH_DAY,),
        r".*#.*|.*(?:SUN|MON|TUE|WED|THU|FRI|SAT).*",
        "days of the week go in the fifth field, as MON#2",
    ),
    ((MONTH_DAY,), r"\dL", "L stands alone, or as L-3 or LW; 5L in the fifth field is the last Friday"),
    ((MONTH_DAY,), r"L(?P<number>\d+W?)", "write L-{number}"),
    (
        (MONTH_DAY,),
        r".*W.*",
        "W goes with one day, as 15W; MON-FRI in the fifth field are all from Monday to Friday",
    ),
    ((WEEKDAY,), r"L", "write SAT, or SATL for the last Saturday of the month"),
    ((WEEKDAY,), r".*\dW|W", "W goes in the third field, as 15W; MON-FRI are all from Monday to Friday"),
    ((WEEKDAY,), r"\w+#\d+", f"the number after # is from 1 to {OCCURRENCES_MAX}; FRIL is the last Friday"),
    ((WEEKDAY,), r"\w+-\w+(?:#\d+|L)", _ONE_DAY),
    (FIELDS, r"(?P<first>\d+)~(?P<last>\d+)", "write H({first}-{last}) for a value hashed from the name"),
    (FIELDS, r"(?P<first>\w+)\.\.(?P<last>\w+)", "write {first}-{last}"),
)
"""The items of these fields that deserve a hint, and what to write instead."""
_WORD = re.compile(r"[A-Z]{4,}", re.ASCII)


def _long_step(field: FieldRange, item: str, text: str) -> ValueError:
    said = f"the {field.name} {text!r} is wrong: its step may be from 1 to {field.step_max}"
    unit = {MINUTE: "m", HOUR: "h"}.get(field)
    step = re.fullmatch(r"\*/0*([1-9]\d*)", item, re.ASCII)
    return ValueError(f"{said}; write every: {step[1]}{unit} in place of cron" if unit and step else said)


def _refusal(field: FieldRange, item: str, text: str) -> ValueError:
    for of, pattern, hint in _HINTS:
        if field in of and (found := re.fullmatch(pattern, item, re.ASCII)):
            return ValueError(f"the {field.name} {text!r} is wrong: {hint.format(**found.groupdict())}")
    short = _WORD.sub(lambda word: word[0][:3] if word[0][:3] in field.names else word[0], item)
    if short != item:
        return ValueError(f"the {field.name} {text!r} is wrong: names have three letters; write {short}")
    return ValueError(f"the {field.name} {text!r} is wrong; allowed are {field.allowed}, {OTHERWISE}")
