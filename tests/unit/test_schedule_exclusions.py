"""What bounds the ticks of a schedule: its start, its end, days left out, and several timings in one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from time import perf_counter
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.schedule.entries import ScheduleEntry, plain_schedule
from feedq.core.schedule.exclusions import date_problems, first_free
from feedq.core.schedule.model import Cron, Every, Exclusion, Job, Once, ScheduleSpec, Timing
from feedq.core.schedule.timing import next_tick, ticks_after
from feedq.core.values import read

BEGIN = datetime(2026, 12, 23, tzinfo=UTC)
DAY = timedelta(days=1)


def spec_of(timing: Timing, *dates: str, zone: str = "UTC", **bounds: Any) -> ScheduleSpec:
    return ScheduleSpec("report", timing, Job("t"), exclude=Exclusion(dates, zone), **bounds)


def fired(spec: ScheduleSpec, count: int, *, after: datetime = BEGIN - DAY) -> list[str]:
    return [f"{tick:%m-%d %H:%M}" for tick in islice(ticks_after(spec, after=after), count)]


# -- days --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Christmas", "'Christmas' is no date; write 2026-12-24, or a range such as 2026-12-24..2027-01-06"),
        ("12-25", "is no date; write"),
        ("2026-02-30", "'2026-02-30': there is no such day"),
        ("2026-12-24..12-26", "is no date; write"),
        ("2026-12-24..2026-12-20", "ends before it begins; write the earlier date first"),
        ("2026-12-24T08:00", "is no date; write"),
        ("2026-12-24 ", "is no date; write"),
        ("3000-01-01", "must lie before the year 3000"),
        ("..", "is no date"),
    ],
)
def test_what_is_no_date_is_refused(text: str, complaint: str) -> None:
    (found,) = date_problems([text])
    assert complaint in found


spans = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=8)


@given(spans, st.integers(0, 420))
def test_the_next_free_day_is_the_first_that_none_of_the_ranges_has(
    given_spans: list[tuple[int, int]], offset: int
) -> None:
    origin = date(2026, 1, 1)
    ranges = [(origin + first * DAY, origin + (first + length) * DAY) for first, length in given_spans]
    day = free = origin + offset * DAY
    while any(first <= free <= last for first, last in ranges):
        free += DAY
    assert first_free(tuple(f"{first}..{last}" for first, last in ranges), day) == free


# -- ticks -------------------------------------------------------------------------------------------


def test_no_tick_falls_on_a_day_that_is_left_out() -> None:
    spec = spec_of(Cron("0 9 * * *"), "2026-12-24..2026-12-26", "2026-12-31")
    assert fired(spec, 7) == [
        *("12-22 09:00", "12-23 09:00", "12-27 09:00", "12-28 09:00", "12-29 09:00", "12-30 09:00"),
        "01-01 09:00",
    ]


def test_a_day_is_one_on_the_clock_of_the_zone() -> None:
    spec = spec_of(Every(6 * 3600), "2026-12-24", zone="Europe/Berlin")
    assert fired(spec, 4, after=BEGIN + timedelta(hours=13)) == [
        *("12-23 18:00", "12-25 00:00", "12-25 06:00", "12-25 12:00"),
    ]


@given(
    st.sampled_from(
        [Every(7_000.0), Cron("13 */5 * * *", "Europe/Berlin"), Cron(("0 8 * * *", "0 */8 * * *"))]
    ),
    st.lists(st.integers(0, 20), min_size=1, max_size=10),
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Auckland"]),
)
def test_ticks_are_those_of_the_timing_without_the_days_left_out(
    timing: Timing, days: list[int], zone: str
) -> None:
    clock = ZoneInfo(zone)
    begin = datetime(2026, 3, 20, tzinfo=UTC)
    left_out = {begin.date() + n * DAY for n in days}
    spec = spec_of(timing, *(day.isoformat() for day in left_out), zone=zone)
    end = begin + 25 * DAY
    plain = takewhile(lambda tick: tick < end, ticks_after(spec_of(timing), after=begin))
    found = list(takewhile(lambda tick: tick < end, ticks_after(spec, after=begin)))
    assert found == [tick for tick in plain if tick.astimezone(clock).date() not in left_out]
    for earlier, later in pairwise(found):
        assert next_tick(spec, after=earlier) == later


def test_years_that_are_left_out_are_not_gone_through_tick_by_tick() -> None:
    spec = spec_of(Every(0.1), "2026-12-23..2999-12-31")
    begun = perf_counter()
    assert next_tick(spec, after=BEGIN) == datetime(3000, 1, 1, tzinfo=UTC)
    yearly = [f"{year}-12-25" for year in range(2026, 2999)]
    assert next_tick(spec_of(Cron("0 0 25 12 *"), *yearly), after=BEGIN) == datetime(2999, 12, 25, tzinfo=UTC)
    assert perf_counter() - begun < 5


def test_there_is_no_tick_before_the_start_and_none_from_the_end_on() -> None:
    begin, end = BEGIN + timedelta(hours=1), BEGIN + timedelta(hours=3)
    spec = spec_of(Every(3600), start_at=begin, end_at=end)
    assert fired(spec, 9) == ["12-23 01:00", "12-23 02:00"]
    assert next_tick(spec, after=begin) == begin + timedelta(hours=1)
    assert next_tick(spec, after=end - timedelta(hours=1)) is None


def test_several_timings_are_one_tick_where_they_meet() -> None:
    spec = spec_of(Cron(("0 8 * * *", "0 8,17 * * MON-FRI", "30 17 24 12 *")))
    assert fired(spec, 6) == [
        *("12-22 08:00", "12-22 17:00", "12-23 08:00", "12-23 17:00", "12-24 08:00", "12-24 17:00"),
    ]
    later, sooner = BEGIN + DAY, BEGIN
    assert list(ticks_after(spec_of(Once((later, sooner, later))), after=BEGIN - DAY)) == [sooner, later]


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (spec_of(Cron(("@daily", "0 25 * * *"))), "cron: '0 25 * * *' the hour '25' is wrong"),
        (spec_of(Cron(("@daily",) * 101)), "cron: has 101 entries"),
        (spec_of(Every(1), start_at=BEGIN, end_at=BEGIN), "end: must be later than the start"),
        (spec_of(Every(1), end_at=datetime(1960, 1, 1, tzinfo=UTC)), "end: must lie in the years 1970"),
        (spec_of(Every(1), *["2026-12-24"] * 2_001), "exclude: has 2001 dates; at most 2000 are allowed"),
        (spec_of(Every(1), "24.12."), "exclude: '24.12.' is no date"),
        (spec_of(Every(1), "2026-12-24", zone="Mars"), "zone: 'Mars' is no time zone"),
    ],
)
def test_bounds_that_cannot_be_right_are_refused(spec: ScheduleSpec, complaint: str) -> None:
    found = read(ScheduleEntry, plain_schedule(spec))
    assert isinstance(found, list)
    assert [what for _, what in found if complaint in what]
    assert len(found) == 1
