"""Ticks of intervals and single moments, jitter, and how a timing is put in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feedq.core.schedule.model import Beat, Cron, Every, Job, Once, ScheduleSpec, Timing
from feedq.core.schedule.timing import Grid, delayed, fire_time, next_tick, ticks_after
from feedq.core.values import instant
from feedq.verbs.wording import timing_words

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

moments = st.integers(-20 * 10**12, 20 * 10**12).map(lambda n: BEGIN + n * MICROSECOND * 50)
"""From 1994 to 2057."""
intervals = st.builds(
    Every,
    st.one_of(st.sampled_from([0.1, 1.0, 60.0, 86_400.0]), st.floats(0.1, 10 * 366 * 86_400.0)),
    st.one_of(st.none(), moments),
)
crons = st.builds(
    Cron,
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "15,45 1-2 * * *", "H H * * 1-5", "@monthly"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
)
timings = st.one_of(intervals, crons, st.builds(Once, moments))


def spec_of(timing: Timing, *, jitter_s: float = 0.0) -> ScheduleSpec:
    return ScheduleSpec("report", timing, Job("shop.report"), jitter_s=jitter_s)


# -- ticks -------------------------------------------------------------------------------------------


@given(timings, moments)
def test_ticks_rise_and_each_is_the_next_after_the_one_before(timing: Timing, after: datetime) -> None:
    spec = spec_of(timing)
    last = after
    for tick in islice(ticks_after(spec, after=after), 20):
        assert tick > last
        assert tick.tzinfo is UTC
        assert next_tick(spec, after=last) == tick
        assert next_tick(spec, after=tick - MICROSECOND) == tick
        last = tick


@given(intervals, moments)
def test_an_interval_ticks_at_whole_multiples_from_its_anchor_on(every: Every, after: datetime) -> None:
    tick = next_tick(spec_of(every), after=after)
    assert tick is not None
    anchor = every.anchor or datetime(1970, 1, 1, tzinfo=UTC)
    period = timedelta(microseconds=round(every.every_s * 1e6))
    assert (tick - anchor) % period == timedelta()
    assert tick >= anchor
    assert tick == anchor or tick - period <= after


@given(intervals, moments)
def test_ticks_of_an_interval_are_counted_without_going_through_them(every: Every, moment: datetime) -> None:
    grid = Grid.of(every)
    number = grid.count_before(moment)
    assert number >= 0
    assert grid.at(number) >= moment
    assert number == 0 or grid.at(number - 1) < moment


def test_a_minute_is_a_minute_of_the_clock() -> None:
    ticks = ticks_after(spec_of(Every(60)), after=BEGIN + timedelta(seconds=1))
    assert list(islice(ticks, 2)) == [BEGIN + timedelta(minutes=1), BEGIN + timedelta(minutes=2)]


def test_the_shortest_interval_does_not_drift() -> None:
    ticks = list(islice(ticks_after(spec_of(Every(0.1)), after=BEGIN), 36_000))
    assert ticks[-1] == BEGIN + timedelta(hours=1)


def test_the_longest_interval_ends_before_time_does() -> None:
    ticks = list(ticks_after(spec_of(Every(10 * 366 * 86_400.0)), after=BEGIN))
    assert 8900 < ticks[-1].year < 9000


def test_a_schedule_has_the_tick_at_its_start_and_none_at_its_end() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    spec = replace(spec_of(Every(60.0)), start_at=start, end_at=start + timedelta(seconds=120))
    ticks = list(ticks_after(spec, after=start - timedelta(days=1)))
    assert ticks == [start, start + timedelta(seconds=60)]


def test_a_single_moment_is_one_tick_and_then_none() -> None:
    spec = spec_of(Once(BEGIN))
    assert list(ticks_after(spec, after=BEGIN - MICROSECOND)) == [BEGIN]
    assert next_tick(spec, after=BEGIN) is None


def test_the_beat_brings_its_own_ticks() -> None:
    assert next_tick(spec_of(Beat()), after=BEGIN) is None


# -- jitter ------------------------------------------------------------------------------------------


@given(timings, moments, st.floats(0, 100_000_000), st.integers(1, 2**63 - 1))
def test_jitter_never_crosses_the_next_tick(
    timing: Timing, after: datetime, jitter_s: float, schedule_id: int
) -> None:
    spec = spec_of(timing, jitter_s=jitter_s)
    tick = next_tick(spec, after=after)
    assume(tick is not None)
    assert tick is not None
    following = next_tick(spec, after=tick)
    fires_at = fire_time(spec, schedule_id=schedule_id, tick=tick)
    assert tick <= fires_at <= tick + timedelta(seconds=jitter_s)
    assert following is None or fires_at < following
    assert fires_at == delayed(spec, schedule_id=schedule_id, tick=tick, following=following)


def test_jitter_is_the_same_on_every_node_and_in_every_release() -> None:
    spec = spec_of(Every(3600), jitter_s=600)
    delays = [fire_time(spec, schedule_id=n, tick=BEGIN) - BEGIN for n in (1, 2)]
    assert [delay.total_seconds() for delay in delays] == [587.725931, 292.197608]


def test_jitter_spreads_schedules_and_ticks_over_its_span() -> None:
    spec = spec_of(Every(60), jitter_s=30)
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
        (Cron(" 0 2  * * *", "Europe/Berlin"), "cron 0 2 * * * Europe/Berlin"),
        (Cron("@daily"), "cron @daily UTC"),
        (Every(30), "every 30 s"),
        (Every(0.1), "every 0.1 s"),
        (Every(90), "every 90 s"),
        (Every(300.0), "every 5 min"),
        (Every(7200), "every 2 h"),
        (Every(86_400), "every 1 d"),
        (Once(BEGIN), "once at 2026-01-01T00:00:00Z"),
        (Beat(), "entry of the beat"),
    ],
)
def test_a_timing_in_a_few_words(timing: Timing, words: str) -> None:
    assert timing_words(timing) == words


def test_a_moment_is_written_in_utc_with_fractions_only_where_there_are_any() -> None:
    berlin = datetime.fromisoformat("2026-11-22T11:00:00+01:00")
    assert instant(berlin) == "2026-11-22T10:00:00Z"
    assert instant(berlin + 100_000 * MICROSECOND) == "2026-11-22T10:00:00.100000Z"
