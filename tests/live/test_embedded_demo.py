"""The source of the demo, which resumes without a gap, and the feeds that are declared for it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.local.demo import specs
from feedq.local.demo_source import RATES, Timetable, parse_hello, serve
from feedq.local.process import free_port
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


async def read_records(port: int, cursor: int | None, *, count: int) -> list[int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(json.dumps({"feed": FEED, "from": cursor}).encode() + b"\n")
    seqs = [json.loads(await reader.readline())["seq"] for _ in range(count)]
    writer.close()
    return seqs


def test_a_source_goes_on_after_the_cursor_and_holds_what_fell_due_meanwhile() -> None:
    async def scenario() -> None:
        port = free_port()
        serving = asyncio.create_task(serve(port))
        for _ in range(200):
            try:
                first = await read_records(port, None, count=10)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
        second = await read_records(port, 10, count=10)
        again = await read_records(port, 3, count=4)
        serving.cancel()
        assert first == list(range(1, 11))
        assert second == list(range(11, 21))
        assert again == [4, 5, 6, 7]

    asyncio.run(scenario())
