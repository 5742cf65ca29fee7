"""Event times: read from the newest records of a commit, and never a trouble."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from feedq.core.model import Batch
from feedq.records.csvtext import CsvFormat
from feedq.sinks.base import Target
from feedq.sinks.event_time import LOOKED_AT, EventTime, event_time_reader
from feedq.sinks.mapping import sources_of

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = AT.timestamp()
JSON = Target("t", "json")


def read(*records: object, at: str = "/ts", target: Target = JSON) -> EventTime:
    made = [one if isinstance(one, bytes) else msgspec.json.encode(one) for one in records]
    by_record = Batch.of_records(made, cursor=None, received_at=AT)
    by_line = Batch.of_lines(b"".join(one + b"\n" for one in made), cursor=None, received_at=AT)
    reader = event_time_reader(at, target)
    found = reader.read([by_record])
    assert reader.read([by_line]) == found
    assert reader.read([Batch.of_records([b"{}"], cursor=None, received_at=AT), by_line]) == found
    return found


@pytest.mark.parametrize(
    "value",
    [
        "2026-03-01T12:00:00Z",
        "2026-03-01 13:00:00.000+01:00",
        "2026-03-01T12:00:00",
        int(NOW),
        NOW,
        str(int(NOW)),
        int(NOW) * 1_000,
        f"{int(NOW)}000",
        int(NOW) * 10**6,
        int(NOW) * 10**9,
    ],
)
def test_a_time_is_of_iso_8601_or_a_number(value: object) -> None:
    assert read({"ts": value}) == EventTime(NOW)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({}, "nothing at /ts"),
        ({"ts": "soon"}, '"soon" at /ts, which is no time'),
        ({"ts": True}, "no time"),
        ({"ts": "2026-13-01T00:00:00Z"}, "no time"),
        ({"ts": "9" * 60}, "no time"),
        (b'{"ts": 1e999}', ""),
        ({"ts": NOW + 61}, "in the future"),
        (b"no JSON", ""),
    ],
)
def test_what_is_no_time_is_said_and_the_record_before_it_is_asked(record: object, said: str) -> None:
    at, fault = read({"ts": NOW - 5}, record)
    assert (at, fault is not None and said in fault) == (NOW - 5, True)
    assert read({"ts": NOW - 5}, *[record] * LOOKED_AT).at is None


def test_a_time_may_be_deep_in_a_record_in_a_column_or_in_csv() -> None:
    assert read({"a": [{"b": NOW}]}, at="/a/0/b").at == NOW
    mapped = Target("t", "json", sources_of({"made_at": "/a/ts", "got_at": "$received_at"}))
    assert read({"a": {"ts": NOW}}, at="made_at", target=mapped).at == NOW
    assert "no column" in (read({"a": {"ts": NOW}}, at="got_at", target=mapped).fault or "")
    assert read({"a": {"ts": NOW}}, at="a_ts", target=Target("t", "json", flatten="_")).at == NOW
    csv = Target("t", "csv", sources_of({"made_at": "/ts"}), csv=CsvFormat(fields=("id", "ts")))
    assert read(b"7,2026-03-01T12:00:00Z", at="/ts", target=csv).at == NOW
    assert read(b"7,1772366400250", at="made_at", target=csv).at == NOW + 0.25
    assert "2 fields" not in (read(b"7,", at="/ts", target=csv).fault or "2 fields")
    assert "no field" in (read(b"7,8", at="/when", target=csv).fault or "")


def test_times_do_not_go_back_and_the_last_fault_counts() -> None:
    first = EventTime(NOW)
    assert first.after(None) == first
    assert EventTime(NOW - 9).after(first) == first
    assert EventTime(None, "why").after(first) == EventTime(NOW, "why")
    assert EventTime(NOW + 1).after(EventTime(None, "why")) == EventTime(NOW + 1)
