"""Ticks: of intervals and single moments, within bounds, without days that are left out, with jitter."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feedq.core.schedule.spec import ScheduleSpec, date_problems, first_free
from feedq.core.schedule.ticks import (
    Grid,
    delayed,
    fire_time,
    next_tick,
    ticks_after,
)
from feedq.core.values import read
from feedq.verbs.wording import timing_words
from tests.schedules import Keys, job_spec, schedule_spec

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

MICROSECOND = timedelta(microseconds=1)

moments = st.integers(-20 * 10**12, 20 * 10**12).map(lambda n: BEGIN + n * MICROSECOND * 50)

"""From 1994 to 2057."""

intervals: st.SearchStrategy[Keys] = st.builds(
    dict,
    every=st.one_of(st.sampled_from([0.1, 1.0, 60.0, 86_400.0]), st.floats(0.1, 10 * 366 * 86_400.0)),
    anchor=st.one_of(st.none(), moments),
)

expressions = ["* * * * *", "*/7 * * * *", "30 2 * * *", "15,45 1-2 * * *", "H H * * 1-5", "@monthly"]

crons: st.SearchStrategy[Keys] = st.builds(
    dict,
    cron=st.sampled_from(expressions).map(lambda expression: (expression,)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
)

timings: st.SearchStrategy[Keys] = st.one_of(intervals, crons, st.builds(lambda at: {"at": (at,)}, moments))


def spec_of(timing: Keys, *, jitter: float = 0.0) -> ScheduleSpec:
    return schedule_spec("report", **timing, jitter=jitter)


# -- ticks -------------------------------------------------------------------------------------------


@given(timings, moments)
def test_ticks_rise_and_each_is_the_next_after_the_one_before(timing: Keys, after: datetime) -> None:
    spec = spec_of(timing)
    last = after
    for tick in islice(ticks_after(spec, after=after), 20):
        assert tick > last
        assert tick.tzinfo is UTC
        assert next_tick(spec, after=last) == tick
        assert next_tick(spec, after=tick - MICROSECOND) == tick
        last = tick


@given(intervals, moments)
def test_an_interval_ticks_at_whole_multiples_from_its_anchor_on(every: Keys, after: datetime) -> None:
    tick = next_tick(spec_of(every), after=after)
    assert tick is not None
    anchor = every["anchor"] or datetime(1970, 1, 1, tzinfo=UTC)
    period = timedelta(microseconds=round(every["every"] * 1e6))
    assert (tick - anchor) % period == timedelta()
    assert tick >= anchor
    assert tick == anchor or tick - period <= after


@given(intervals, moments)
def test_ticks_of_an_interval_are_counted_without_going_through_them(every: Keys, moment: datetime) -> None:
    grid = Grid.of(spec_of(every))
    assert grid is not None
    number = grid.count_before(moment)
    assert number >= 0
    assert grid.at(number) >= moment
    assert number == 0 or grid.at(number - 1) < moment


# -- bounds and days that are left out ----------------------------------------------------------------

EVE = datetime(2026, 12, 23, tzinfo=UTC)

DAY = timedelta(days=1)


def without(timing: Keys, *dates: str, **keys: Any) -> ScheduleSpec:
    return schedule_spec("report", **timing, exclude=dates, **keys)


def fired(spec: ScheduleSpec, count: int, *, after: datetime = EVE - DAY) -> list[str]:
    return [f"{tick:%m-%d %H:%M}" for tick in islice(ticks_after(spec, after=after), count)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "Christmas",
            "'Christmas' is not a date; write 2026-12-24, or a range such as 2026-12-24..2027-01-06",
        ),
        ("2026-02-30", "'2026-02-30': there is no such day"),
        ("2026-12-24..12-26", "is not a date; write"),
        ("2026-12-24..2026-12-20", "ends before it begins; write the earlier date first"),
        ("2026-12-24 ", "is not a date; write"),
        ("3000-01-01", "must lie before the year 3000"),
    ],
)
def test_what_is_no_date_is_refused(text: str, complaint: str) -> None:
    (found,) = date_problems([text])
    assert complaint in found


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=8), st.integers(0, 420))
def test_the_next_free_day_is_the_first_that_none_of_the_ranges_has(
    given_spans: list[tuple[int, int]], offset: int
) -> None:
    origin = date(2026, 1, 1)
    ranges = [(origin + first * DAY, origin + (first + length) * DAY) for first, length in given_spans]
    day = free = origin + offset * DAY
    while any(first <= free <= last for first, last in ranges):
        free += DAY
    assert first_free(tuple(f"{first}..{last}" for first, last in ranges), day) == free


@given(
    st.sampled_from(
        [
            {"every": 7_000.0},
            {"cron": ("13 */5 * * *",)},
            {"cron": ("0 8 * * *", "0 */8 * * *")},
        ]
    ),
    st.lists(st.integers(0, 20), min_size=1, max_size=10),
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Auckland", "Africa/Cairo"]),
)
def test_ticks_are_those_of_the_timing_without_the_days_left_out(
    timing: Keys, days: list[int], zone: str
) -> None:
    clock = ZoneInfo(zone)
    begin = datetime(2026, 4, 15, tzinfo=UTC)
    left_out = {begin.date() + n * DAY for n in days}
    spec = without(timing, *(day.isoformat() for day in left_out), zone=zone)
    end = begin + 25 * DAY
    plain = takewhile(lambda tick: tick < end, ticks_after(without(timing, zone=zone), after=begin))
    found = list(takewhile(lambda tick: tick < end, ticks_after(spec, after=begin)))
    assert found == [tick for tick in plain if tick.astimezone(clock).date() not in left_out]
    for earlier, later in pairwise(found):
        assert next_tick(spec, after=earlier) == later


def test_years_that_are_left_out_are_not_gone_through_tick_by_tick() -> None:
    spec = without({"every": 0.1}, "2026-12-23..2999-12-31")
    begun = process_time()
    assert next_tick(spec, after=EVE) == datetime(3000, 1, 1, tzinfo=UTC)
    yearly = [f"{year}-12-25" for year in range(2026, 2999)]
    assert next_tick(without({"cron": ("0 0 25 12 *",)}, *yearly), after=EVE) == datetime(
        2999, 12, 25, tzinfo=UTC
    )
    assert process_time() - begun < 5


def test_there_is_no_tick_before_the_start_and_none_from_the_end_on() -> None:
    begin, end = EVE + timedelta(hours=1), EVE + timedelta(hours=3)
    spec = without({"every": 3600}, start=begin, end=end)
    assert fired(spec, 9) == ["12-23 01:00", "12-23 02:00"]
    assert next_tick(spec, after=begin) == begin + timedelta(hours=1)
    assert next_tick(spec, after=end - timedelta(hours=1)) is None


def test_several_timings_are_one_tick_where_they_meet() -> None:
    spec = without({"cron": ("0 8 * * *", "0 8,17 * * MON-FRI", "30 17 24 12 *")})
    assert fired(spec, 6) == [
        *("12-22 08:00", "12-22 17:00", "12-23 08:00", "12-23 17:00", "12-24 08:00", "12-24 17:00"),
    ]
    later, sooner = EVE + DAY, EVE
    assert list(ticks_after(without({"at": (later, sooner, later)}), after=EVE - DAY)) == [sooner, later]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (without({"cron": ("@daily",) * 101}), "cron: has 101 entries"),
        (without({"every": 1}, start=EVE, end=EVE), "end: must be later than the start"),
        (without({"every": 1}, *["2026-12-24"] * 2_001), "exclude: has 2001 dates; at most 2000 are allowed"),
    ],
)
def test_bounds_that_cannot_be_right_are_refused(spec: ScheduleSpec, complaint: str) -> None:
    found = read(ScheduleSpec, spec.plain())
    assert isinstance(found, list)
    assert [what for _, what in found if complaint in what]
    assert len(found) == 1


# -- jitter ------------------------------------------------------------------------------------------


@given(timings, moments, st.floats(0, 100_000_000), st.integers(1, 2**63 - 1))
def test_jitter_never_crosses_the_next_tick(
    timing: Keys, after: datetime, jitter_s: float, schedule_id: int
) -> None:
    spec = spec_of(timing, jitter=jitter_s)
    tick = next_tick(spec, after=after)
    assume(tick is not None)
    assert tick is not None
    following = next_tick(spec, after=tick)
    fires_at = fire_time(spec, schedule_id=schedule_id, tick=tick)
    assert tick <= fires_at <= tick + timedelta(seconds=jitter_s)
    assert following is None or fires_at < following
    assert fires_at == delayed(spec, schedule_id=schedule_id, tick=tick, following=following)


def test_jitter_is_the_same_on_every_node_and_in_every_release() -> None:
    spec = spec_of({"every": 3600}, jitter=600)
    delays = [fire_time(spec, schedule_id=n, tick=BEGIN) - BEGIN for n in (1, 2)]
    assert [delay.total_seconds() for delay in delays] == [587.725931, 292.197608]


def test_jitter_spreads_schedules_and_ticks_over_its_span() -> None:
    spec = spec_of({"every": 60}, jitter=30)
    ticks = list(islice(ticks_after(spec, after=BEGIN), 50))
    delays = [
        (fire_time(spec, schedule_id=schedule_id, tick=tick) - tick).total_seconds()
        for schedule_id in range(100)
        for tick in ticks
    ]
    assert 14 < sum(delays) / len(delays) < 16
    assert min(delays) < 0.1
    assert 29.9 < max(delays) < 30


# -- words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        ({"cron": (" 0 2  * * *",), "zone": "Europe/Berlin"}, "cron 0 2 * * * Europe/Berlin"),
        ({"every": 30}, "every 30 s"),
        ({"every": 300.0}, "every 5 min"),
        ({"every": 86_400}, "every 1 d"),
        ({"at": (BEGIN,)}, "once at 2026-01-01T00:00:00Z"),
        ({"name": "beat:x", "at": ()}, "entry of the beat"),
    ],
)
def test_a_timing_in_a_few_words(timing: Keys, words: str) -> None:
    assert timing_words(schedule_spec(**timing)) == words


DAY_S = 86_400.0


def job_with(**retries: float) -> ScheduleSpec:
    return job_spec(retries=retries)


def test_attempts_are_repeated_up_to_the_limit_waiting_longer_each_time() -> None:
    job = job_with(limit=4, first=10, factor=3, max=100)
    waits = [job.retries.wait_s(attempt=n) for n in range(1, 7)]
    assert waits == [10, 30, 90, 100, None, None]


durations = st.one_of(st.just(0.0), st.just(DAY_S), st.floats(0, DAY_S))


@given(st.integers(1, 10**6), durations, st.floats(1, 100), durations)
def test_a_wait_is_never_negative_nor_beyond_its_maximum(
    attempt: int, first: float, factor: float, longest: float
) -> None:
    job = job_with(limit=10**6, first=first, factor=factor, max=longest)
    wait_s = job.retries.wait_s(attempt=attempt)
    assert wait_s is not None
    assert min(first, longest) <= wait_s <= longest
    earlier_s = job.retries.wait_s(attempt=max(attempt - 1, 1))
    assert earlier_s is not None
    assert earlier_s <= wait_s
