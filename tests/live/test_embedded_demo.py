"""The source of the demo, which resumes without a gap, and the feeds that are declared for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.local.demo import specs
from feedq.local.demo_source import RATES, Timetable, parse_hello
from feedq.records.template import fill_in

T0 = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)
FEED = "coastguard/ais-12"


@given(
    base=st.integers(0, 10**9),
    rate=st.sampled_from(sorted(RATES.values())),
    seconds=st.floats(0, 10**6),
)
def test_every_record_is_due_by_the_time_that_it_names(base: int, rate: float, seconds: float) -> None:
    timetable = Timetable(base, T0, rate)
    last = timetable.last_due(T0 + timedelta(seconds=seconds))
    assert last >= base
    tolerance = timedelta(microseconds=2)
    assert timetable.due_at(last) <= T0 + timedelta(seconds=seconds) + tolerance
    assert timetable.due_at(last + 1) >= T0 + timedelta(seconds=seconds) - tolerance


@pytest.mark.parametrize("cursor", [None, 0, 17])
def test_the_declared_hello_is_what_the_source_understands(cursor: int | None) -> None:
    spec = specs(16_000)[0]
    hello = fill_in(spec.source["hello"], feed=spec.name, cursor=cursor, secrets={})
    assert hello.endswith(b"\n")
    assert parse_hello(hello) == (spec.name, cursor or 0)
