"""Cron: what fires when clocks are changed, as the documentation says, and what holds for any expression."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, product, takewhile
from pathlib import Path
from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feedq.schedule.cron import NAMES, CronRule, parse
from feedq.schedule.cronfields import (
    FIELDS,
    MONTH,
    WEEKDAY,
    FieldRange,
    plain_field,
    read_days,
    read_values,
)
from feedq.schedule.model import DstFold, DstGap

PAGES = Path(__file__).parents[2] / "docs" / "reference"
MINUTE = timedelta(minutes=1)


# -- the documentation -------------------------------------------------------------------------------


def cells(page: str) -> list[list[str]]:
    """The cells of the tables of a page, titles included."""
    lines = [line for line in (PAGES / page).read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows() -> list[list[str]]:
    """The rows of the tables of what fires when clocks are changed."""
    return [[cell.strip("`") for cell in row] for row in cells("dst.md") if row[0] != "Zone"]


def dialect(width: int) -> list[list[str]]:
    """The rows of that table of the cron dialect which has so many columns, without what the rule is."""
    found = [row[-3:] for row in cells("cron.md") if len(row) == width]
    return [[row[0].strip("`"), *row[1:]] for row in found[1:]]


def fired_on(day: date, rule: CronRule, zone: str, gap: DstGap, fold: DstFold) -> str:
    clock = ZoneInfo(zone)
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    around = timedelta(days=2)
    ticks = rule.ticks_after(noon - around, zone=zone, gap=gap, fold=fold)
    local = (tick.astimezone(clock) for tick in takewhile(lambda tick: tick < noon + around, ticks))
    return ", ".join(shown(at) for at in local if at.date() == day)


def shown(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="minutes")[11:16] + " " + at.isoformat()[19:]


@pytest.mark.parametrize(("zone", "day", "expression", "gap", "fold", "expected"), rows())
def test_what_the_documentation_says_fires_when_clocks_are_changed(
    zone: str, day: str, expression: str, gap: str, fold: str, expected: str
) -> None:
    rule = parse(expression, name="report")
    gaps = list(DstGap) if gap == "any" else [DstGap(gap)]
    folds = list(DstFold) if fold == "any" else [DstFold(fold)]
    fired = {fired_on(date.fromisoformat(day), rule, zone, g, f) for g, f in product(gaps, folds)}
    assert fired == {"" if expected == "–" else expected}


def test_the_documentation_shows_every_policy_in_every_kind_of_zone() -> None:
    zones = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
    seen = {(row[0], policy) for row in rows() for policy in row[3:5]}
    assert seen >= set(product(zones, ("shift", "skip", "first", "second", "both")))
    assert seen >= {("Pacific/Apia", "shift"), ("Pacific/Apia", "skip")}


@pytest.mark.parametrize(("expression", "begin", "fires"), dialect(4))
def test_what_the_table_of_the_cron_dialect_says_fires(expression: str, begin: str, fires: str) -> None:
    rule = parse(expression, name="report")
    after = datetime.fromisoformat(begin).replace(tzinfo=UTC) - MINUTE
    ticks = rule.ticks_after(after, zone="UTC", gap=DstGap.SHIFT, fold=DstFold.FIRST)
    found = [f"{tick:%a %Y-%m-%d %H:%M}" for tick in islice(ticks, fires.count(",") + 1)]
    assert ", ".join(found) == fires


@pytest.mark.parametrize(("expression", "instead"), dialect(2))
def test_what_the_table_of_the_cron_dialect_says_is_refused(expression: str, instead: str) -> None:
    with pytest.raises(ValueError, match=re.escape(instead) + "$"):
        parse(expression, name="report")


def test_the_table_of_the_cron_dialect_has_every_rule() -> None:
    examples = " ".join(expression for expression, *_ in dialect(4))
    rules = ("L ", "L-3", "LW", "L-2W", "15W", "5L", "FRIL", "MON#2", "?", "FRI-SUN", "13 * FRI", "*/2 * FRI")
    assert [
        rule for rule in (*rules, "H", "H(0-29)", "H/15", "H(0-29)/10", "/") if rule not in examples
    ] == []
    written = " ".join(cell for row in cells("cron.md") for cell in row)
    assert [name for name in NAMES if f"`{name}`" not in written] == []
    assert len(dialect(2)) > 20


def test_both_fields_of_days_are_either_unless_one_is_a_star_or_a_question_mark() -> None:
    days = {text: read_days(*text.split()).of(2026, 2) for text in ("13 5", "* 5", "13 *", "*/2 5")}
    assert days == {
        "13 5": [6, 13, 20, 27],
        "* 5": [6, 13, 20, 27],
        "13 *": [13],
        "*/2 5": [13, 27],
    }
    assert parse("0 0 ? * FRI", name="report") == parse("0 0 * * FRI", name="report")


@settings(deadline=None)
@given(st.integers(1, 31), st.integers(1, 12), st.integers(1970, 2200), st.booleans())
def test_the_nearest_working_day_is_one_and_stays_in_its_month(
    number: int, month: int, year: int, from_end: bool
) -> None:
    last = monthrange(year, month)[1]
    wanted = last - (number - 1) if from_end else number
    found = read_days(f"L-{number - 1}W" if from_end else f"{number}W", "*").of(year, month)
    if not 1 <= wanted <= last:
        assert found == []
        return
    (day,) = found
    working = [n for n in range(1, last + 1) if date(year, month, n).isoweekday() < 6]
    assert day in working
    assert abs(day - wanted) == min(abs(n - wanted) for n in working)


@settings(deadline=None)
@given(st.sampled_from(FIELDS), st.data())
def test_a_range_goes_past_the_end_of_its_field(kind: FieldRange, data: st.DataObject) -> None:
    high = 6 if kind is WEEKDAY else kind.high
    first, last = (data.draw(st.integers(kind.low, high)) for _ in range(2))
    step = data.draw(st.integers(1, kind.step_max))
    expected, value = [first], first
    while value != last:
        value = value + 1 if value < high else kind.low
        expected.append(value)
    text = f"{first}-{last}/{step}"
    wanted = frozenset(expected[::step])
    found = read_days("*", text).weekdays if kind is WEEKDAY else read_values(kind, text)
    assert found == wanted


# -- any expression ----------------------------------------------------------------------------------

SPANS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
    "Africa/Cairo": ("2026-04-24", "2026-10-29"),
    "Africa/Casablanca": ("2024-03-10", "2024-04-14"),
    "Pacific/Apia": ("2011-12-30", "2011-09-24"),
    "Asia/Kolkata": ("2026-01-01", "2026-07-01"),
}
"""Days on which the clocks of a zone are changed, and of a zone that does not do that."""


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> tuple[str, frozenset[int]]:
    """A field, and the values that it means."""
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, high))
    values = sorted(draw(st.sets(st.integers(low, high), min_size=1, max_size=4)))
    return draw(
        st.sampled_from(
            [
                ("*", frozenset(range(low, high + 1))),
                (f"*/{step}", frozenset(range(low, high + 1, step))),
                (f"{first}-{last}", frozenset(range(first, last + 1))),
                (f"{first}-{last}/{step}", frozenset(range(first, last + 1, step))),
                (",".join(map(str, values)), frozenset(values)),
            ]
        )
    )


@st.composite
def expressions(draw: st.DrawFn) -> list[tuple[str, frozenset[int]]]:
    """Fields of an expression; the last three let most days pass, or hardly anything would fire."""
    any_day = st.just(("*", frozenset(range(32))))
    return [
        draw(fields(*span) if place < 2 else st.one_of(any_day, any_day, fields(*span)))
        for place, span in enumerate(SPANS)
    ]


def parsed(expression: list[tuple[str, frozenset[int]]]) -> CronRule | None:
    """None for one that matches no day at all, such as 30 February."""
    try:
        return parse(" ".join(text for text, _ in expression), name="report")
    except ValueError as refusal:
        if "never fires" not in str(refusal):
            raise
        return None


def matches(wall: datetime, expression: list[tuple[str, frozenset[int]]]) -> bool:
    (_, minutes), (_, hours), (day, days), (_, months), (weekday, weekdays) = expression
    if not (wall.minute in minutes and wall.hour in hours and wall.month in months):
        return False
    on_day, on_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
    return (on_day and on_weekday) if "*" in (day[0], weekday[0]) else (on_day or on_weekday)


@dataclass(frozen=True)
class Clock:
    """What the clock of a zone shows, by the minutes of some days; and when it shows that first and last."""

    walls: Mapping[datetime, datetime]
    first: Mapping[datetime, datetime]
    last: Mapping[datetime, datetime]


@cache
def clock_around(zone: str, day: str) -> Clock:
    clock = ZoneInfo(zone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
    moments = [midnight + n * MINUTE for n in range(-6000, 6000)]
    walls = {moment: moment.astimezone(clock).replace(tzinfo=None) for moment in moments}
    first = {wall: moment for moment, wall in reversed(walls.items())}
    return Clock(walls, first, last={wall: moment for moment, wall in walls.items()})


def naive_ticks(
    begin: datetime,
    end: datetime,
    clock: Clock,
    expression: list[tuple[str, frozenset[int]]],
    policy: str,
) -> Iterator[datetime]:
    """What fires from ``begin`` to ``end``, found by looking at the clock each minute."""
    repeats = any(mark in text for text, _ in expression[:2] for mark in "*/")
    moment = begin
    while moment < end:
        wall, before = clock.walls[moment], clock.walls[moment - MINUTE]
        left_out = int((wall - before) / MINUTE)
        moved_here = (matches(before + k * MINUTE, expression) for k in range(1, left_out))
        in_this_pass = (
            repeats
            or "both" in policy
            or ("first" in policy and clock.first[wall] == moment)
            or ("second" in policy and clock.last[wall] == moment)
        )
        is_moved_here = "shift" in policy and not repeats and any(moved_here)
        if is_moved_here or (matches(wall, expression) and in_this_pass):
            yield moment
        moment += MINUTE


policies = st.tuples(st.sampled_from(DstGap), st.sampled_from(DstFold))
changes = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])


@settings(deadline=None)
@given(changes, st.integers(-2000, 0), expressions(), policies)
def test_it_fires_what_one_sees_who_looks_at_the_clock_each_minute(
    change: tuple[str, str],
    minutes: int,
    expression: list[tuple[str, frozenset[int]]],
    policy: tuple[DstGap, DstFold],
) -> None:
    zone, day = change
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) + minutes * MINUTE
    end = begin + timedelta(days=2)
    rule = parsed(expression)
    expected = list(naive_ticks(begin, end, clock_around(zone, day), expression, " ".join(policy)))
    gap, fold = policy
    ticks = rule.ticks_after(begin - MINUTE, zone=zone, gap=gap, fold=fold) if rule else iter(())
    assert list(takewhile(lambda tick: tick < end, ticks)) == expected


def test_the_name_of_a_schedule_makes_a_difference_to_h_only() -> None:
    assert parse("0 2 * * THU", name="acme/a") == parse("0  2 * * thu", name="acme/b")
    assert parse("30 2 * * *", name="acme/a") is parse("30 2 * * *", name="acme/b"), "understood once"
    assert len({parse("H 2 * * *", name=f"acme/{n}").fields for n in range(50)}) > 10


@settings(deadline=None)
@given(
    expressions(),
    st.sampled_from(sorted(CHANGES)),
    st.sampled_from(range(0, 70 * 366 * 86_400, 12_345)),
    policies,
)
def test_ticks_rise_and_each_is_the_next_after_the_one_before(
    expression: list[tuple[str, frozenset[int]]],
    zone: str,
    seconds: int,
    policy: tuple[DstGap, DstFold],
) -> None:
    gap, fold = policy
    after = datetime(1990, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    rule = parsed(expression)
    assume(rule is not None)
    assert rule is not None
    ticks = [after, *islice(rule.ticks_after(after, zone=zone, gap=gap, fold=fold), 30)]
    assert len(ticks) == 31
    for earlier, later in pairwise(ticks):
        assert earlier < later
        for moment in (earlier, later - timedelta(microseconds=1)):
            assert next(rule.ticks_after(moment, zone=zone, gap=gap, fold=fold)) == later


def is_changed_around(moment: datetime, zone: str) -> bool:
    """Whether the clock is changed within an hour of it."""
    offsets = {(moment + n * timedelta(hours=1)).astimezone(ZoneInfo(zone)).utcoffset() for n in (-1, 1)}
    return len(offsets) > 1


@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone, days in CHANGES.items() for day in days])
def test_from_wherever_one_looks_the_same_ticks_follow(zone: str, day: str) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=12)
    end = begin + timedelta(hours=36)
    policies = ((DstGap.SHIFT, DstFold.SECOND), (DstGap.SKIP, DstFold.BOTH))
    for expression, (gap, fold) in product(("10,25,40,55 0-23 * * *", "*/20 * * * *"), policies):
        rule = parse(expression, name="report")
        found = rule.ticks_after(begin, zone=zone, gap=gap, fold=fold)
        ticks = list(takewhile(lambda tick: tick < end, found))
        assert len(ticks) > 80
        for number, tick in enumerate(ticks[:-3]):
            if is_changed_around(tick, zone):
                later = rule.ticks_after(tick, zone=zone, gap=gap, fold=fold)
                assert list(islice(later, 3)) == ticks[number + 1 : number + 4]


def test_there_are_no_ticks_beyond_the_end_of_time() -> None:
    rule = parse("@yearly", name="report")
    after = datetime(8999, 6, 1, tzinfo=UTC)
    ticks = rule.ticks_after(after, zone="Europe/Berlin", gap=DstGap.SHIFT, fold=DstFold.FIRST)
    assert [tick.year for tick in ticks] == [8999]


# -- what is understood ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "day", "fires"),
    [
        ("0 0 L * *", "2028-02-29", True),
        ("0 0 L * *", "2028-02-28", False),
        ("0 0 LW * *", "2026-05-29", True),
        ("0 0 * * 5L", "2026-01-30", True),
        ("0 0 * * 5L", "2026-01-23", False),
        ("0 0 * * MON#2", "2026-06-08", True),
        ("0 0 * * mon#2", "2026-06-15", False),
        ("0 0 * jan-mar sun", "2026-03-01", True),
        ("0 0 * * 7", "2026-03-01", True),
        ("0 0 * * 6-6/1", "2026-03-01", False),
        ("0 0 * * SAT-6/1", "2026-02-28", True),
        ("  0   0  1 6 * ", "2026-06-01", True),
        ("0 0 13 * 5", "2026-05-15", True),
        ("0 0 13 * 5", "2026-05-13", True),
        ("@weekly", "2026-03-01", True),
        ("@Monthly", "2026-03-01", True),
        ("@annually", "2026-03-01", False),
    ],
)
def test_days_are_named_in_the_usual_ways(expression: str, day: str, fires: bool) -> None:
    rule = parse(expression, name="report")
    fired = fired_on(date.fromisoformat(day), rule, "UTC", DstGap.SHIFT, DstFold.FIRST)
    assert fired == ("00:00 +00:00" if fires else "")


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields and needs five: minute, hour,"),
        ("0 * * * * *", "has 6 fields"),
        ("61 * * * *", "the minute '61' is wrong; allowed are 0 to 59"),
        ("0 25 * * *", "the hour '25' is wrong; allowed are 0 to 23"),
        ("0 0 0 * *", "the day of the month '0' is wrong; allowed are 1 to 31"),
        ("0 0 1 13 *", "the month '13' is wrong; allowed are 1 to 12"),
        ("0 0 * * 8", "the day of the week '8' is wrong; allowed are 0 to 7"),
        ("0 0 * * FRY", "the day of the week 'FRY' is wrong"),
        ("5-1-2 * * * *", "the minute '5-1-2' is wrong"),
        ("*-1 * * * *", "the minute '*-1' is wrong"),
        ("0 0 L-31 * *", "the day of the month 'L-31' is wrong"),
        ("0 0 0W * *", "the day of the month '0W' is wrong"),
        ("0 0 L/2 * *", "the day of the month 'L/2' is wrong"),
        ("0 0 * * 8L", "the day of the week '8L' is wrong"),
        ("0 0 * * 1#0", "the day of the week '1#0' is wrong"),
        ("*/0 * * * *", "the minute '*/0' is wrong"),
        ("*/90 * * * *", "the minute '*/90' is wrong: its step may be from 1 to 60"),
        ("x-x/2 * * * *", "the minute 'X-X/2' is wrong"),
        ("5-5/0 * * * *", "the minute '5-5/0' is wrong"),
        ("5-5/x * * * *", "the minute '5-5/X' is wrong"),
        ("1,,2 * * * *", "the minute '1,,2' is wrong"),
        ("٣ * * * *", "the minute '٣' is wrong"),
        ("9" * 990 + " * * * *", "the minute"),
        ("1," * 600 + "1 * * * *", "has 1209 characters"),
        ("@dayly", "@dayly is not known; the names are @yearly"),
        ("@reboot", "@reboot is no time"),
        ("H(0-60) * * * *", "the range of 'H(0-60)' must rise and lie within 0 to 59"),
        ("H(9-3) * * * *", "the range of 'H(9-3)' must rise"),
        ("H/61 * * * *", "the step of 'H/61' must be from 1 to 60"),
        ("H/0 * * * *", "the step of 'H/0' must be from 1 to 60"),
        ("HH * * * *", "'HH' is none of H, H(a-b), H/n and H(a-b)/n"),
        ("1-H * * * *", "the minute '1-H' is wrong"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 LW * */7", "never fires"),
    ],
)
def test_a_wrong_expression_is_refused_at_once_and_in_plain_words(expression: str, complaint: str) -> None:
    begun = perf_counter()
    with pytest.raises(ValueError, match=re.escape(complaint)) as refused:
        parse(expression, name="report")
    assert len(str(refused.value)) < 1_300
    assert perf_counter() - begun < 5


@pytest.mark.parametrize("expression", ["0 0 29 2 */7", "0 0 * 2 MON#5", "0 0 29 2 *"])
def test_the_rarest_days_are_found(expression: str) -> None:
    rule = parse(expression, name="report")
    after = datetime(2072, 3, 1, tzinfo=UTC)
    tick = next(rule.ticks_after(after, zone="UTC", gap=DstGap.SHIFT, fold=DstFold.FIRST))
    assert (tick.month, tick.day) == (2, 29)


# -- hashed values -----------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=20)
hashed_fields = st.sampled_from(FIELDS)


def test_a_hashed_value_is_the_same_in_every_release() -> None:
    assert parse("H H * * *", name="report").fields == "35 3 * * *"
    assert parse("H/15 H(0-5) H * H", name="report").fields == "5,20,35,50 3 7 * 1"


@given(names, hashed_fields)
def test_a_hashed_value_lies_within_its_field(name: str, field: FieldRange) -> None:
    assert field.low <= int(plain_field(field, "H", name=name)) <= field.hashed_max


@given(names, hashed_fields, st.data())
def test_hashed_ranges_and_steps_stay_within_their_bounds(
    name: str, field: FieldRange, data: st.DataObject
) -> None:
    first = data.draw(st.integers(field.low, field.high))
    last = data.draw(st.integers(first, field.high))
    step = data.draw(st.integers(1, last - first + 1))
    one = int(plain_field(field, f"H({first}-{last})", name=name))
    several = [int(v) for v in plain_field(field, f"H({first}-{last})/{step}", name=name).split(",")]
    assert first <= one <= last
    assert first <= several[0] < first + step
    assert several == list(range(several[0], last + 1, step))


def test_hashed_values_spread_schedules_over_the_hour() -> None:
    minutes = [int(plain_field(FIELDS[0], "H", name=f"report-{n}")) for n in range(6000)]
    counts = [minutes.count(minute) for minute in range(60)]
    assert min(counts) > 50
    assert max(counts) < 150


def test_items_of_a_list_are_hashed_each() -> None:
    first, second = plain_field(FIELDS[0], "H(0-29),H(30-59)", name="report").split(",")
    assert int(second) - int(first) == 30
    assert plain_field(FIELDS[0], "5,H/30", name="report").startswith("5,")
    assert plain_field(MONTH, "THU,MAR", name="report") == "THU,MAR"


def test_one_hashed_time_is_a_fixed_time_and_a_hashed_step_repeats() -> None:
    assert not parse("H H(0-5) * * *", name="report").repeats
    assert parse("H/20 1 * * *", name="report").repeats
    assert parse("0 H/6 * * *", name="report").repeats
