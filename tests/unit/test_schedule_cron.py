"""Cron: the tables of the documentation, and what fires on days on which clocks are changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from time import process_time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedq.core.schedule.cron import FIELDS, CronField, CronRule, parse

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cron.md"
MINUTE = timedelta(minutes=1)


# -- the documentation -------------------------------------------------------------------------------


def table(*titles: str) -> list[list[str]]:
    """The rows of the table of the page that has these titles."""
    text = PAGE.read_text()
    begin = text.index("| " + " | ".join(titles) + " |")
    lines = takewhile(lambda line: line.startswith("|"), text[begin:].splitlines()[2:])
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def fired_on(day: date, rule: CronRule, zone: str) -> str:
    clock = ZoneInfo(zone)
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    ticks = rule.ticks_after(noon - timedelta(days=2), zone=zone)
    local = (
        tick.astimezone(clock) for tick in takewhile(lambda tick: tick < noon + timedelta(days=2), ticks)
    )
    return ", ".join(f"{at:%H:%M} {at.isoformat()[19:]}" for at in local if at.date() == day)


RULES = [
    ("* * * * *", "2026-06-01", "Mon 06-01 00:00, Mon 06-01 00:01, Mon 06-01 00:02"),
    ("30 8 * * *", "2026-06-01", "Mon 06-01 08:30, Tue 06-02 08:30"),
    (
        "0 8,12,18-19 * * *",
        "2026-06-01",
        "Mon 06-01 08:00, Mon 06-01 12:00, Mon 06-01 18:00, Mon 06-01 19:00, Tue 06-02 08:00",
    ),
    ("0 9-11 * * *", "2026-06-01", "Mon 06-01 09:00, Mon 06-01 10:00, Mon 06-01 11:00, Tue 06-02 09:00"),
    ("*/25 * * * *", "2026-06-01", "Mon 06-01 00:00, Mon 06-01 00:25, Mon 06-01 00:50, Mon 06-01 01:00"),
    ("0 8-18/4 * * *", "2026-06-01", "Mon 06-01 08:00, Mon 06-01 12:00, Mon 06-01 16:00, Tue 06-02 08:00"),
    ("0 15/4 * * *", "2026-06-01", "Mon 06-01 15:00, Mon 06-01 19:00, Mon 06-01 23:00, Tue 06-02 15:00"),
    ("0 0 1 mar,Sep *", "2026-06-01", "Tue 09-01 00:00, Mon 03-01 00:00"),
    ("0 0 * * MON", "2026-06-01", "Mon 06-01 00:00, Mon 06-08 00:00"),
    ("0 0 * * 5-7", "2026-06-01", "Fri 06-05 00:00, Sat 06-06 00:00, Sun 06-07 00:00, Fri 06-12 00:00"),
    ("0 0 L * *", "2028-01-01", "Mon 01-31 00:00, Tue 02-29 00:00, Fri 03-31 00:00"),
    (
        "0 0 LW * *",
        "2026-01-01",
        "Fri 01-30 00:00, Fri 02-27 00:00, Tue 03-31 00:00, Thu 04-30 00:00, Fri 05-29 00:00",
    ),
    ("0 0 * * 5L", "2026-01-01", "Fri 01-30 00:00, Fri 02-27 00:00, Fri 03-27 00:00"),
    ("0 0 * * MON#2", "2026-06-01", "Mon 06-08 00:00, Mon 07-13 00:00, Mon 08-10 00:00"),
    ("0 0 * * MON#5", "2026-06-01", "Mon 06-29 00:00, Mon 08-31 00:00, Mon 11-30 00:00"),
    (
        "0 0 13 * FRI",
        "2026-02-01",
        "Fri 02-06 00:00, Fri 02-13 00:00, Fri 02-20 00:00, Fri 02-27 00:00, Fri 03-06 00:00, Fri 03-13 00:00",
    ),
    ("0 0 */2 * FRI", "2026-02-01", "Fri 02-13 00:00, Fri 02-27 00:00, Fri 03-13 00:00, Fri 03-27 00:00"),
    ("H H * * *", "2026-06-01", "Mon 06-01 03:35, Tue 06-02 03:35"),
    ("H(0-29) 2 * * *", "2026-06-01", "Mon 06-01 02:05, Tue 06-02 02:05"),
    (
        "H/15 * * * *",
        "2026-06-01",
        "Mon 06-01 00:05, Mon 06-01 00:20, Mon 06-01 00:35, Mon 06-01 00:50, Mon 06-01 01:05",
    ),
    (
        "H(0-29)/10 2 * * *",
        "2026-06-01",
        "Mon 06-01 02:05, Mon 06-01 02:15, Mon 06-01 02:25, Tue 06-02 02:05",
    ),
    ("@hourly", "2026-06-01", "Mon 06-01 00:00, Mon 06-01 01:00"),
    ("@daily", "2026-06-01", "Mon 06-01 00:00, Tue 06-02 00:00"),
    ("@midnight", "2026-06-01", "Mon 06-01 00:00, Tue 06-02 00:00"),
    ("@weekly", "2026-06-01", "Sun 06-07 00:00, Sun 06-14 00:00"),
    ("@monthly", "2026-06-01", "Mon 06-01 00:00, Wed 07-01 00:00"),
    ("@yearly", "2026-06-01", "Fri 01-01 00:00, Sat 01-01 00:00"),
    ("@annually", "2026-06-01", "Fri 01-01 00:00, Sat 01-01 00:00"),
]
"""Expressions, a day in UTC, and what fires first from then on."""

MORE_DAYS = [
    ("Europe/Berlin", "2026-03-29", "0 2,3 * * *", "03:00 +02:00"),
    ("Europe/Berlin", "2026-03-29", "0-59/30 2 * * *", "03:00 +02:00"),
    ("Europe/Berlin", "2026-10-25", "0-59/30 2 * * *", "02:00 +02:00, 02:30 +02:00"),
    ("Australia/Lord_Howe", "2026-10-04", "15,45 2 * * *", "02:30 +11:00, 02:45 +11:00"),
    ("Australia/Lord_Howe", "2026-04-05", "*/20 2 * * *", "02:00 +10:30, 02:20 +10:30, 02:40 +10:30"),
    ("Pacific/Apia", "2011-12-31", "0 9 * * *", "00:00 +14:00, 09:00 +14:00"),
]
"""As in the table of the page: days on which clocks are changed. Samoa left out 30 December 2011."""


@pytest.mark.parametrize(("expression", "begin", "fires"), RULES)
def test_each_form_fires_as_it_should(expression: str, begin: str, fires: str) -> None:
    after = datetime.fromisoformat(begin).replace(tzinfo=UTC) - MINUTE
    ticks = parse(expression, name="report").ticks_after(after, zone="UTC")
    assert ", ".join(f"{tick:%a %m-%d %H:%M}" for tick in islice(ticks, fires.count(",") + 1)) == fires


def test_each_form_on_the_page_is_among_them() -> None:
    forms = {
        form
        for written, _ in table("Written", "Means")
        for form in re.findall(r"[^`, ]+(?:,[^`, ]+)*", written)
    }
    assert len(forms) > 15
    assert forms <= {field for expression, _, _ in RULES for field in expression.split()}


@pytest.mark.parametrize(
    ("zone", "day", "expression", "fires"), [*table("Zone", "Day", "Expression", "Fires at"), *MORE_DAYS]
)
def test_what_fires_when_clocks_are_changed(zone: str, day: str, expression: str, fires: str) -> None:
    fired = fired_on(date.fromisoformat(day), parse(expression, name="report"), zone)
    assert fired == ("" if fires == "–" else fires)


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
    end = 7 if high == 6 else high  # Sunday is 0 as well as 7
    values = sorted(draw(st.sets(st.integers(low, high), min_size=1, max_size=4)))
    return draw(
        st.sampled_from(
            [
                ("*", frozenset(range(low, high + 1))),
                (f"*/{step}", frozenset(range(low, high + 1, step))),
                (f"{first}-{last}", frozenset(range(first, last + 1))),
                (f"{first}/{step}", frozenset(n % 7 if end == 7 else n for n in range(first, end + 1, step))),
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


@cache
def clock_around(zone: str, day: str) -> dict[datetime, datetime]:
    """What the clock of a zone shows in each minute of some days."""
    clock = ZoneInfo(zone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
    moments = (midnight + n * MINUTE for n in range(-6000, 6000))
    return {moment: moment.astimezone(clock).replace(tzinfo=None) for moment in moments}


def seen(
    begin: datetime,
    end: datetime,
    walls: dict[datetime, datetime],
    expression: list[tuple[str, frozenset[int]]],
) -> Iterator[datetime]:
    """What fires from ``begin`` to ``end``, found by looking at the clock each minute."""
    repeats = any(text.startswith("*") for text, _ in expression[:2])
    # Of a fixed time shown twice, only the first counts.
    shown = {wall for moment, wall in walls.items() if moment < begin}
    moment = begin
    while moment < end:
        wall, before = walls[moment], walls[moment - MINUTE]
        left_out = (before + k * MINUTE for k in range(1, int((wall - before) / MINUTE)))
        if repeats:
            fires = matches(wall, expression)
        else:
            fires = wall not in shown and any(matches(one, expression) for one in (*left_out, wall))
        if fires:
            yield moment
        shown.add(wall)
        moment += MINUTE


@settings(deadline=None)
@given(
    st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days]),
    st.integers(-2000, 0),
    expressions(),
)
def test_it_fires_what_one_sees_who_looks_at_the_clock_each_minute(
    change: tuple[str, str], minutes: int, expression: list[tuple[str, frozenset[int]]]
) -> None:
    zone, day = change
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) + minutes * MINUTE
    end = begin + timedelta(days=2)
    rule = parsed(expression)
    ticks = rule.ticks_after(begin - MINUTE, zone=zone) if rule else iter(())
    expected = list(seen(begin, end, clock_around(zone, day), expression))
    assert list(takewhile(lambda tick: tick < end, ticks)) == expected


@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone, days in CHANGES.items() for day in days])
@pytest.mark.parametrize("expression", ["10,25,40,55 0-23 * * *", "*/20 * * * *"])
def test_from_wherever_one_looks_the_same_ticks_follow(zone: str, day: str, expression: str) -> None:
    rule = parse(expression, name="report")
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=12)
    ticks = list(islice(rule.ticks_after(begin, zone=zone), 100))
    for moment in (begin + n * 11 * MINUTE for n in range(36 * 60 // 11)):
        later = [tick for tick in ticks if tick > moment][:3]
        if len(later) == 3:
            assert list(islice(rule.ticks_after(moment, zone=zone), 3)) == later


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "has 0 fields"),
        (
            "0 0 12 * * *",
            "has 6 fields and needs five: minute, hour, day of the month, month, day of the week; "
            "there is none for seconds",
        ),
        ("@every 5m", "@every is not cron: write every: 5m instead of cron"),
        ("@reboot", "'@reboot' is not known; the names are @yearly,"),
        ("CRON_TZ=Europe/Berlin 0 2 * * *", "has a time zone in it; write it as zone"),
        (
            "0 24 * * *",
            "the hour '24' is wrong: write 0 to 23, *, a list such as 1,5, an ascending range such as 1-5, a "
            "step such as */2, or H",
        ),
        (
            "0 22-1 * * *",
            "the hour '22-1' is wrong: write 0 to 23, *, a list such as 1,5, an ascending range",
        ),
        (
            "*/90 * * * *",
            "the minute '*/90' is wrong: a step is from 1 to 60; for other intervals write every: "
            "90m or the like instead of cron",
        ),
        (
            "0 0 ? * MON",
            "the day of the month '?' is wrong: write 1 to 31, L (the last day), LW (the last "
            "from Monday to Friday), *",
        ),
        ("0 0 15W * *", "the day of the month '15W' is wrong"),
        ("0 0 L-3 * *", "the day of the month 'L-3' is wrong"),
        ("0 0 1 JANUARY *", "the month 'JANUARY' is wrong: write 1 to 12, JAN to DEC"),
        (
            "0 0 * * FRIL",
            "the day of the week 'FRIL' is wrong: write 0 to 7, SUN to SAT, 5L (the last Friday), "
            "MON#2 (the second Monday)",
        ),
        (
            "0 0 30 2 *",
            "never fires: no day matches its day of the month, month and day of the week together",
        ),
        ("61 * * * *", "the minute '61' is wrong: write 0 to 59"),
        ("0 0 * * 8", "the day of the week '8' is wrong: write 0 to 7"),
        ("5-1-2 * * * *", "the minute '5-1-2' is wrong"),
        ("0 0 * * 1#0", "the day of the week '1#0' is wrong"),
        ("*/0 * * * *", "a step is from 1 to 60"),
        ("0 */25 * * *", "a step is from 1 to 24"),
        ("1,,2 * * * *", "the minute '1,,2' is wrong"),
        ("٣ * * * *", "the minute '٣' is wrong"),
        ("9" * 990 + " * * * *", "the minute"),
        ("1," * 600 + "1 * * * *", "has 1209 characters"),
        ("H(0-60) * * * *", "the minute 'H(0-60)' is wrong: its range must ascend and lie within 0 to 59"),
        ("H(0-9)/11 * * * *", "its step must be from 1 to 10"),
        ("HH * * * *", "the minute 'HH' is wrong: write H, H(1-5), H/2 or H(1-5)/2"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("* * LW * */7", "never fires"),
    ],
)
def test_a_wrong_expression_is_refused_at_once_and_in_plain_words(expression: str, complaint: str) -> None:
    begun = process_time()
    with pytest.raises(ValueError, match=re.escape(complaint)) as refused:
        parse(expression, name="report")
    assert len(str(refused.value)) < 1_300
    assert process_time() - begun < 5


# -- hashed values -----------------------------------------------------------------------------------


def hashed(field: CronField, text: str, name: str) -> list[int]:
    """The numbers that stand for the hashed field."""
    place = FIELDS.index(field)
    expression = " ".join(text if n == place else "1" for n in range(len(FIELDS)))
    return [int(value) for value in parse(expression, name=name).fields.split()[place].split(",")]


def test_a_hashed_value_is_the_same_in_every_release() -> None:
    assert parse("H H * * *", name="report").fields == "35 3 * * *"
    assert parse("H/15 H(0-5) H * H", name="report").fields == "5,20,35,50 3 7 * 1"
    assert parse("H(0-29),H(30-59) * * * THU", name="report").fields == "5,35 * * * THU"


@settings(deadline=None)
@given(st.text("abcdefgh/", min_size=1, max_size=20), st.sampled_from(FIELDS), st.data())
def test_hashed_values_stay_within_their_bounds(name: str, field: CronField, data: st.DataObject) -> None:
    first = data.draw(st.integers(field.low, min(field.high, 28)))
    last = data.draw(st.integers(first, min(field.high, 28)))
    step = data.draw(st.integers(1, last - first + 1))
    (free,), (one,) = hashed(field, "H", name), hashed(field, f"H({first}-{last})", name)
    assert field.low <= free <= field.hashed_high
    assert first <= one <= last
    several = hashed(field, f"H({first}-{last})/{step}", name)
    assert first <= several[0] < first + step
    assert several == list(range(several[0], last + 1, step))


def test_hashed_values_spread_schedules_over_the_hour() -> None:
    minutes = [hashed(FIELDS[0], "H", f"report-{n}")[0] for n in range(6000)]
    counts = [minutes.count(minute) for minute in range(60)]
    assert min(counts) > 50
    assert max(counts) < 150
