"""Days that a schedule leaves out: dates such as ``2026-12-24``, and ranges such as ``2026-12-24..2027-01-06``
with both ends included.

A day lasts from midnight to midnight on the clock of the schedule's time zone. A tick on such a day never was:
nothing is written of it, and it is not made up for.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache

DATES_MAX = 2_000
"""Dates and ranges of one schedule."""
YEAR_END = 3000
"""Dates lie before this year, as all times that people declare do; so there are free days after all of them."""
_DAY = timedelta(days=1)
_DATES = re.compile(r"(?P<first>\d{4}-\d{2}-\d{2})(?:\.\.(?P<last>\d{4}-\d{2}-\d{2}))?", re.ASCII)


def first_free(texts: tuple[str, ...], day: date) -> date:
    """Return the first day, from this one on, that these dates do not leave out."""
    spans = _spans(texts)
    place = bisect_right(spans, (day, date.max)) - 1
    return spans[place][1] + _DAY if place >= 0 and day <= spans[place][1] else day


def date_problems(texts: Sequence[str]) -> list[str]:
    """Return what is wrong with a list of dates."""
    problems = []
    for text in texts:
        try:
            _read(text)
        except ValueError as error:
            problems.append(str(error))
    return problems


@lru_cache(maxsize=1_000)
def _spans(texts: tuple[str, ...]) -> list[tuple[date, date]]:
    """The first and last days that are left out in a row, in order."""
    joined: list[tuple[date, date]] = []
    for first, last in sorted(map(_read, texts)):
        if joined and first <= joined[-1][1] + _DAY:
            first, last = joined[-1][0], max(joined.pop()[1], last)
        joined.append((first, last))
    return joined


def _read(text: str) -> tuple[date, date]:
    found = _DATES.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no date; write 2026-12-24, or a range such as 2026-12-24..2027-01-06")
    try:
        first, last = (date.fromisoformat(said) for said in (found["first"], found["last"] or found["first"]))
    except ValueError:
        raise ValueError(f"{text!r}: there is no such day; check the month and the day") from None
    if last < first:
        raise ValueError(f"{text!r} ends before it begins; write the earlier date first")
    if last.year >= YEAR_END:
        raise ValueError(f"{text!r} must lie before the year {YEAR_END}")
    return first, last
