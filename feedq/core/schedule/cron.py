"""Cron expressions: five fields, and the moments at which they fire in a time zone.

The library cronsim reads the fields and finds the times on the clock at which they fire. Ours are:

- ``H``, a number hashed from the schedule's name, so that many schedules do not fire at once. It depends on the
  name and the field and on nothing else: the same on every node and in every release.
- What a refusal says.
- The time zone. cronsim is asked for times on a clock without one: with one it misses ticks where clocks are
  changed by half an hour (`Australia/Lord_Howe`).

``docs/reference/cron.md`` has the dialect, and what fires on the two days of the year on which clocks are changed;
a test reads its tables.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

EXPRESSION_MAX = 1000
"""Characters of an expression."""
YEAR_MAX = 9000
"""The year of the last ticks: dates end in the year 9999, and cronsim looks 50 years ahead."""
NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class CronField(NamedTuple):
    """One of the five fields."""

    name: str
    low: int
    high: int
    hashed_high: int
    """The highest value of ``H``: every month has 28 days, and Sunday is 0 as well as 7."""
    allowed: str
    """The values in words."""


FIELDS = (
    CronField("minute", 0, 59, 59, "0 to 59"),
    CronField("hour", 0, 23, 23, "0 to 23"),
    CronField(
        "day of the month", 1, 31, 28, "1 to 31, L (the last day), LW (the last from Monday to Friday)"
    ),
    CronField("month", 1, 12, 12, "1 to 12, JAN to DEC"),
    CronField(
        "day of the week", 0, 7, 6, "0 to 7, SUN to SAT, 5L (the last Friday), MON#2 (the second Monday)"
    ),
)
_OTHERWISE = "*, a list such as 1,5, an ascending range such as 1-5, a step such as */2, or H"
_HASHED = re.compile(r"H(?:\((?P<first>\d{1,4})-(?P<last>\d{1,4})\))?(?:/(?P<step>\d{1,4}))?", re.ASCII)
_STEP = re.compile(r"/(\d+)", re.ASCII)
_REFERENCE = datetime(2000, 1, 1)  # noqa: DTZ001 -- a time on the clock, which has no zone
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class CronRule:
    """An expression that has been understood."""

    fields: str
    """The five fields, without a name such as ``@daily`` and without ``H``."""
    repeats: bool
    """Whether the minute or the hour begins with ``*``: the expression is meant in elapsed time."""

    def ticks_after(self, after: datetime, *, zone: str) -> Iterator[datetime]:
        """Yield its moments later than ``after``, in UTC, strictly rising. Most have no end.

        Clocks that are put forward leave out times, and clocks that are put back show some twice. An expression
        that repeats fires whenever the clock shows a matching time: never for a time left out, and both times for
        one shown twice. Any other fires for a time left out at the first moment after it, and for one shown twice
        the first time.
        """
        last = after
        for moment in self._moments(after, ZoneInfo(zone)):
            # Times left out are all moved to one moment; and a search may begin a little early.
            if moment > last:
                last = moment
                yield moment

    def _moments(self, after: datetime, clock: ZoneInfo) -> Iterator[datetime]:
        begin = after.astimezone(clock)
        ahead = (after + _DAY).astimezone(clock)
        # Where clocks are about to be put back, times before this one will be shown again.
        back = max(_offset(begin) - _offset(ahead), timedelta())
        second_pass: deque[datetime] = deque()
        for wall in CronSim(self.fields, begin.replace(tzinfo=None) - back):
            if wall.year > YEAR_MAX:
                break
            first, second = _both(wall, clock)
            if first > second:
                if self.repeats:
                    continue
                first = _after_gap(wall, clock)
            elif first < second and self.repeats:
                second_pass.append(second)
            while second_pass and second_pass[0] < first:
                yield second_pass.popleft()
            yield first
        yield from second_pass


def _offset(at: datetime) -> timedelta:
    offset = at.utcoffset()
    assert offset is not None
    return offset


def _both(wall: datetime, clock: ZoneInfo) -> tuple[datetime, datetime]:
    """The moments at which the clock shows this time first and last. For a time left out, the first is later."""
    local = wall.replace(tzinfo=clock)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


def _after_gap(wall: datetime, clock: ZoneInfo) -> datetime:
    """The first moment after the times that the clock leaves out. Clocks are changed on a full minute."""
    first, second = _both(wall, clock)
    while first > second:
        wall += _MINUTE
        first, second = _both(wall, clock)
    return first


# -- what is understood ------------------------------------------------------------------------------


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
    said = NAMES.get(expression.lower(), expression).split()
    if len(said) != len(FIELDS) or said[0].startswith("@"):
        raise ValueError(_not_five(expression))
    fields = [_without_hash(field, text, name) for field, text in zip(FIELDS, said, strict=True)]
    try:
        fires = next(CronSim(" ".join(fields), _REFERENCE), None) is not None
    except CronSimError:
        for number, field in enumerate(FIELDS):
            _check_alone(number, field, fields[number])
        fires = False
    if not fires:
        raise ValueError(
            "never fires: no day matches its day of the month, month and day of the week together"
        )
    return CronRule(" ".join(fields), fields[0].startswith("*") or fields[1].startswith("*"))


def _without_hash(field: CronField, text: str, name: str) -> str:
    """The field with numbers in place of each ``H``."""
    for step in _STEP.findall(text):
        if not 1 <= int(step) <= field.high - field.low + 1:
            most = field.high - field.low + 1
            raise ValueError(
                f"the {field.name} {text!r} is wrong: a step is from 1 to {most}; for other intervals write "
                "every: 90m or the like instead of cron"
            )
    # THU and MARCH have an H as well.
    return ",".join(_hashed(field, item, name) if item.startswith("H") else item for item in text.split(","))


def _hashed(field: CronField, item: str, name: str) -> str:
    found = _HASHED.fullmatch(item)
    if found is None:
        raise ValueError(f"the {field.name} {item!r} is wrong: write H, H(1-5), H/2 or H(1-5)/2")
    low, high = field.low, field.hashed_high
    if found["first"] is not None:
        low, high = int(found["first"]), int(found["last"])
        if not field.low <= low <= high <= field.high:
            bounds = f"its range must ascend and lie within {field.low} to {field.high}"
            raise ValueError(f"the {field.name} {item!r} is wrong: {bounds}")
    value = int.from_bytes(blake2b(f"{field.name}\0{name}".encode(), digest_size=8).digest(), "big")
    size = high - low + 1
    if found["step"] is None:
        return str(low + value % size)
    step = int(found["step"])
    if step > size:
        raise ValueError(f"the {field.name} {item!r} is wrong: its step must be from 1 to {size}")
    return ",".join(str(one) for one in range(low + value % step, high + 1, step))


def _check_alone(number: int, field: CronField, text: str) -> None:
    """Raise ValueError if this field is wrong whatever the others are."""
    alone = ["*"] * len(FIELDS)
    alone[number] = text
    try:
        CronSim(" ".join(alone), _REFERENCE)
    except CronSimError:
        message = f"the {field.name} {text!r} is wrong: write {field.allowed}, {_OTHERWISE}"
        raise ValueError(message) from None


def _not_five(expression: str) -> str:
    """Say what is wrong with an expression that has not five fields."""
    if expression.startswith("@EVERY "):
        return f"@every is not cron: write every: {expression[7:].lower()} instead of cron"
    if expression.startswith("@"):
        return f"{expression.lower()!r} is not known; the names are {', '.join(NAMES)}"
    if expression.startswith(("CRON_TZ=", "TZ=")):
        return "has a time zone in it; write it as zone"
    count = len(expression.split())
    return f"has {count} fields and needs five: {', '.join(field.name for field in FIELDS)}" + (
        "; there is none for seconds: for less than a minute write every: 30s instead of cron"
        if count == 6
        else ""
    )
