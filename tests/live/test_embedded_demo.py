"""The demo: a source that resumes without a gap, a count that tells lost from doubled, and the view."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from feedq.cli.demo_view import render, summarize
from feedq.core.model import Feed, FeedView, Lease, LeaseState, Load, Status, Worker, WorkerState, WorkerView
from feedq.local.demo import FeedTally, RateMeter, Snapshot, demo_specs
from feedq.local.demo_source import RATES, DemoSource, Timetable, parse_hello, record, sample
from feedq.local.process import free_port
from feedq.records.template import fill_in
from feedq.verbs.manifest.feed_entry import validate
from tests.fakes.sink import IDENTITY

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


def test_a_record_is_the_same_whenever_it_is_sent() -> None:
    one, other = (json.loads(record(FEED, 5_000, due_at=T0 + timedelta(hours=h))) for h in (0, 9))
    assert one["nmea"] == other["nmea"]
    assert one["nmea"].startswith("!AIVDM,")
    assert (one["feed"], one["seq"], one["at"]) == (FEED, 5_000, "2026-11-20T06:30:00.000+00:00")


def test_feeds_tell_different_things_at_the_same_time() -> None:
    said = {json.loads(record(feed, 1, due_at=T0))["nmea"] for feed in RATES}
    assert len(said) == len(RATES)


def test_the_sample_is_whole() -> None:
    assert len(sample()) == 898
    assert all(line.startswith("!AIVDM,") for line in sample())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage\n",
        b"[]\n",
        b'{"feed": "nobody"}\n',
        b'{"feed": "coastguard/ais-01", "from": -1}\n',
        b'{"feed": "coastguard/ais-01", "from": "1"}\n',
    ],
)
def test_a_wrong_hello_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - orjson says it in its own words
        parse_hello(line)


@pytest.mark.parametrize("cursor", [None, 0, 17])
def test_the_declared_hello_is_what_the_source_understands(cursor: int | None) -> None:
    spec = demo_specs(16_000)[0]
    hello = fill_in(spec.source["hello"], feed=spec.name, cursor=cursor, secrets={})
    assert hello.endswith(b"\n")
    assert parse_hello(hello) == (spec.name, cursor or 0)


def test_the_demo_declares_a_valid_feed_for_each_of_the_source() -> None:
    specs = demo_specs(16_000)
    assert [s.name for s in specs] == list(RATES)
    for spec in specs:
        validate(spec)


async def read_records(port: int, cursor: int | None, *, count: int) -> list[int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(json.dumps({"feed": FEED, "from": cursor}).encode() + b"\n")
    seqs = [json.loads(await reader.readline())["seq"] for _ in range(count)]
    writer.close()
    return seqs


def test_a_source_goes_on_after_the_cursor_and_holds_what_fell_due_meanwhile() -> None:
    async def scenario() -> None:
        port = free_port()
        serving = asyncio.create_task(DemoSource().serve(port))
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

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_gap_and_a_double_do_not_make_up_for_each_other() -> None:
    exact = FeedTally(rows=100, distinct=100, last_seq=100)
    both = FeedTally(rows=100, distinct=99, last_seq=100)
    assert exact.is_exact
    assert not both.is_exact
    assert (both.lost, both.doubled) == (1, 1)


def test_a_rate_is_taken_over_the_last_seconds() -> None:
    meter = RateMeter(window_s=6.0)
    assert meter.rates() == {}
    for second in range(100):
        meter.add({"slow": 2 * second, "new": 10 * max(0, second - 95)}, now=float(second))
    assert meter.rates()["slow"] == pytest.approx(2.0)
    assert meter.rates()["new"] == pytest.approx(40 / 6)


def view(name: str, status: Status, worker: str | None) -> FeedView:
    spec = next(s for s in demo_specs(16_000) if s.name == name)
    lease = Lease(1, epoch=3, state=LeaseState.RUNNING, worker_id=UUID(int=1))
    return FeedView(Feed(1, spec, 1, T0, T0, IDENTITY), lease, worker, status)


def worker(name: str, pid: int, leases: int) -> WorkerView:
    made = Worker(
        UUID(int=pid),
        name,
        "q",
        500,
        "host",
        pid,
        "0",
        {},
        WorkerState.ACTIVE,
        1,
        T0,
        T0,
        T0,
        Load(rss=60 * 10**6),
    )
    return WorkerView(made, leases, 0.4)


SNAPSHOT = Snapshot(
    feeds=(view("coastguard/ais-01", Status.STREAMING, "worker1@h"), view(FEED, Status.WAITING, None)),
    workers=(worker("worker1@h", 100, 1), worker("worker2@h", 200, 7)),
    tallies={"coastguard/ais-01": FeedTally(1_234, 1_234, 1_234), FEED: FeedTally(10, 9, 12)},
    rates={"coastguard/ais-01": 2.0},
)


def shown(snapshot: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    console.print(render(snapshot, flower_url="http://127.0.0.1:5555", news=["worker3 ended\x1b[2J"]))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_view_tells_who_streams_what_and_whether_it_is_all_there() -> None:
    text = shown(SNAPSHOT)
    assert "1…1,234 each once" in text
    assert "3 lost, 1 doubled of 12" in text
    assert "kill -9 200" in text, "the worker with most feeds shows most"
    assert "http://127.0.0.1:5555" in text
    assert "worker3 ended" in text


def test_the_view_lets_nothing_steer_the_terminal() -> None:
    assert "\x1b" not in shown(SNAPSHOT)


def test_the_view_has_something_to_say_before_anything_is_known() -> None:
    assert "0 lost, 0 doubled" in shown(Snapshot())


def test_the_summary_is_one_line() -> None:
    line = summarize(SNAPSHOT)
    assert line == "1 of 2 feeds streaming (1 waiting) on 2 workers, 1,244 rows (2/s), 3 lost, 1 doubled"
