"""What is expected of a feed: read, refused with words, and written as it was."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from feedq.core.expectations import expected_of, read_expectations, write_expectations
from feedq.core.model import FeedSpec
from feedq.core.values import Wrong
from feedq.errors import InvalidInput
from feedq.records.batch import Records
from feedq.records.csvtext import CsvFormat
from feedq.sinks.base import Target
from feedq.sinks.event_time import LOOKED_AT, EventTime, event_time_reader
from feedq.sinks.mapping import sources_of
from feedq.verbs.manifests import option_problems

GIVEN = {
    "max_silence": "5m",
    "min_rows": {"per": "1h", "rows": 1000},
    "max_event_lag": {"at": "/ts", "seconds": 60},
    "max_refused": "1%",
}


def test_what_is_written_reads_the_same() -> None:
    read = read_expectations(GIVEN)
    assert read == {
        "max_silence": 300.0,
        "min_rows": {"per": 3600.0, "rows": 1000},
        "max_event_lag": {"at": "/ts", "seconds": 60.0},
        "max_refused": 0.01,
    }
    assert write_expectations(read) == GIVEN
    nothing = {"max_silence": "none", "max_refused": "none"}
    assert write_expectations(read_expectations(nothing)) == nothing
    assert read_expectations({"max_silence": None, "max_refused": 0.005}) == {
        "max_silence": None,
        "max_refused": 0.005,
    }


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("max_silence", "soon", "'soon' is not a duration"),
        ("max_silence", 0.5, "from 1s to 30d"),
        ("min_rows", 1000, "{per: 1h, rows: 1000}"),
        ("min_rows", {"per": "1h", "rows": 0}, "whole number from 1"),
        ("max_event_lag", 60, "{at: /ts, seconds: 60}"),
        ("max_refused", "100%", "a share of the records"),
        ("max_refused", -0.1, "a share of the records"),
        ("max_silense", "1m", "known are max_silence, min_rows, max_event_lag"),
    ],
)
def test_what_cannot_be_expected_is_refused_with_words(key: str, given: Any, said: str) -> None:
    with pytest.raises(Wrong) as wrong:
        read_expectations({key: given})
    ((where, what),) = wrong.value.found
    assert (where, said in what) == (key, True)


def entry(**keys: Any) -> FeedSpec:
    source = {"url": "tcp://127.0.0.1:1"}
    return FeedSpec.valid({"name": "a", "connector": "tcp", "source": source, "sink": {"table": "t"}, **keys})


def test_a_feed_says_what_is_expected_and_where_it_begins() -> None:
    spec = entry(expect=GIVEN, initial_cursor={"at": 7})
    assert (spec.initial_cursor, spec.plain()["expect"]) == ({"at": 7}, GIVEN)
    assert option_problems(spec) == []
    assert not {"expect", "initial_cursor"} & entry().plain().keys()


def test_a_cursor_that_cannot_be_is_refused_where_it_is_declared() -> None:
    assert option_problems(entry(initial_cursor="x" * 9_000)) == [
        "the cursor has 9002 bytes, and at most 8192 are kept"
    ]
    with pytest.raises(InvalidInput, match=r"expect\.max_silence: 'soon' is not a duration"):
        entry(expect={"max_silence": "soon"})


@pytest.mark.parametrize(
    ("at", "source", "said"),
    [
        ("/ts~", {}, "is not a JSON pointer"),
        ("at", {}, "nor a column that points into the records"),
        ("/ts", {"format": "text"}, "json or csv, not text"),
    ],
)
def test_an_event_time_that_no_record_can_have_is_refused_where_it_is_declared(
    at: str, source: dict[str, Any], said: str
) -> None:
    source = {"url": "tcp://127.0.0.1:1"} | source
    (found,) = option_problems(entry(expect={"max_event_lag": {"at": at, "seconds": 60}}, source=source))
    assert (found.startswith("expect."), said in found) == (True, True)


def test_the_nearest_that_says_a_key_counts() -> None:
    everything, tenants = {"max_silence": 60.0, "max_refused": 0.1}, {"acme": {"max_silence": 30.0}}
    found = expected_of("acme", {"max_refused": None}, everything=everything, tenants=tenants)
    assert found == {"max_silence": 30.0, "max_refused": None}
    assert expected_of("", {}, everything=everything, tenants=tenants) == everything


AT = datetime(2026, 3, 1, 12, tzinfo=UTC)

NOW = AT.timestamp()

JSON = Target("t", "json")


def read(*records: object, at: str = "/ts", target: Target = JSON) -> EventTime:
    made = [one if isinstance(one, bytes) else msgspec.json.encode(one) for one in records]
    by_record = Records(records=tuple(made)).batch(cursor=None, received_at=AT)
    by_line = Records(b"".join(one + b"\n" for one in made)).batch(cursor=None, received_at=AT)
    reader = event_time_reader(at, target)
    found = reader.read([by_record])
    assert reader.read([by_line]) == found
    assert reader.read([Records(records=(b"{}",)).batch(cursor=None, received_at=AT), by_line]) == found
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
        ({"ts": "soon"}, '"soon" at /ts, which is not a time'),
        ({"ts": True}, "not a time"),
        ({"ts": "2026-13-01T00:00:00Z"}, "not a time"),
        ({"ts": "9" * 60}, "not a time"),
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
    assert "nor a column" in (read({"a": {"ts": NOW}}, at="got_at", target=mapped).fault or "")
    assert read({"a": {"ts": NOW}}, at="a_ts", target=Target("t", "json", flatten="_")).at == NOW
    csv = Target("t", "csv", sources_of({"made_at": "/ts"}), csv=CsvFormat(fields=("id", "ts")))
    assert read(b"7,2026-03-01T12:00:00Z", at="/ts", target=csv).at == NOW
    assert read(b"7,1772366400250", at="made_at", target=csv).at == NOW + 0.25
    assert "2 fields" not in (read(b"7,", at="/ts", target=csv).fault or "2 fields")
    assert "not a field" in (read(b"7,8", at="/when", target=csv).fault or "")


def test_times_do_not_go_back_and_the_last_fault_counts() -> None:
    first = EventTime(NOW)
    assert first.after(None) == first
    assert EventTime(NOW - 9).after(first) == first
    assert EventTime(None, "why").after(first) == EventTime(NOW, "why")
    assert EventTime(NOW + 1).after(EventTime(None, "why")) == EventTime(NOW + 1)
