"""What records tell of themselves: hints while a feed runs, and columns to propose."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.core.model import FeedSpec
from feedq.errors import InvalidInput
from feedq.records.batch import Records
from feedq.sinks.base import parse_sink, target_of
from feedq.verbs.manifests import option_problems
from feedq.verbs.proposing import as_lines_of_text, proposed
from feedq.worker.first_records import SOUGHT_IN, FirstRecords, hints

HTTP = {"url": "http://127.0.0.1/x", "mode": "poll"}

CSV = {"path": "/data/x.csv", "format": "csv"}


def said(
    connector: str, source: dict[str, Any], columns: dict[str, Any], *records: bytes
) -> list[tuple[str, str]]:
    options = parse_options(connector, source)
    return list(hints(options, target_of(parse_sink({"table": "t", "columns": columns}), options), records))


def test_a_pointer_that_no_record_has_is_told_with_what_they_have() -> None:
    records = (b'{"seq": 1, "price": {"amount": 2}}', b'{"seq": 2, "note": null}')
    columns = {"seq": "/seq", "amount": "/price/amont", "note": "/note", "feed": "$feed", "all": ""}
    assert said("http", HTTP | {"records": ""}, columns, *records) == [
        (
            "columns",
            "column amount: no record has /price/amont; they have /seq, /price/amount, /note; "
            "did you mean /price/amount?",
        )
    ]


def test_a_list_that_would_land_as_one_row_is_told() -> None:
    (found,) = said("tcp", {"url": "tcp://a:1"}, {"seq": "/seq"}, b'[{"seq": 1}, {"seq": 2}]')
    said_of_it = (
        "a record is a list of 2, which lands as one row; let the source send its elements one by one"
    )
    assert found == ("records", said_of_it)


def test_elements_of_lists_can_be_pointed_at() -> None:
    assert said("http", HTTP, {"first": "/a/0", "none": "/a/7"}, b'{"a": [1]}') == [
        ("columns", "column none: no record has /a/7; they have /a; did you mean /a?")
    ]


@pytest.mark.parametrize(
    ("header", "first", "expected"),
    [
        (True, b"id,cost", "the first line, id, cost, lands as a record"),
        (True, b"1,2.5", None),
        (False, b"id,price", "csv.header: true leaves it out"),
        (False, b"price,id", "name the fields as it does"),
        (False, b"anna,otto", None),
        (True, b'"unclosed', None),
        (True, b"nr,cost\n1,2.5", "the first line, nr, cost, lands as a record"),
        (True, b"anna,otto\nbob,eve", None),
        (True, b"anna,otto", "it looks like a header"),
    ],
)
def test_a_header_that_would_land_is_told(header: bool, first: bytes, expected: str | None) -> None:
    source = CSV | {"csv": {"fields": ["id", "price"], "header": header}}
    found = said("file", source, {"id": "/id"}, *first.split(b"\n"))
    assert len(found) == (expected is not None)
    assert all(about == "header" and expected is not None and expected in what for about, what in found)


class Watched:
    """The first records of a running feed, and what was told of them."""

    def __init__(self, connector: str, source: dict[str, Any], columns: dict[str, Any]) -> None:
        options = parse_options(connector, source)
        target = target_of(parse_sink({"table": "t", "columns": columns}), options)
        self.first = FirstRecords(options, target, from_beginning=True)
        self.told: list[tuple[str, str | None]] = []

    def see(self, *records: bytes) -> None:
        batch = Records(records=tuple(records)).batch(
            cursor=None, received_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        self.first.look(batch, lambda *odd: self.told.append(odd))


def test_a_running_feed_judges_a_header_by_the_record_after_it_and_once() -> None:
    feed = Watched("file", CSV | {"csv": {"fields": ["id", "price"], "header": True}}, {"id": "/id"})
    feed.see(b"nr,cost")
    assert (feed.told, feed.first.is_over) == ([], False)
    feed.see(b"1,2")
    assert ([about for about, _ in feed.told], feed.first.is_over) == (["header"], True)


TCP = {"url": "tcp://127.0.0.1:1", "cursor": "/sequence"}


def test_a_pointer_that_finds_nothing_is_told_of_a_running_feed_until_it_does() -> None:
    feed = Watched(
        "tcp", TCP, {"amount": "/amount", "note": {"pointer": "/note", "missing": "default", "default": ""}}
    )
    feed.see(*[b'{"seq": 1}'] * (SOUGHT_IN - 1), b"no JSON")
    assert feed.told == [], "too few to say"
    feed.see(b'{"seq": 2}', b'{"amount": 1, "sequence": 3}')
    about_cursor = "source.cursor: no record has /sequence; they have /seq"
    assert [(about, str(said)[: len(about_cursor)]) for about, said in feed.told] == [
        ("source.cursor", about_cursor),
        ("column amount", "column amount: no record has /amount; they have /seq"[: len(about_cursor)]),
    ]
    assert "read from its beginning after each restart" in str(feed.told[0][1])
    feed.told.clear()
    feed.see(b'{"seq": 3}', b'{"amount": 1}')
    feed.see(b'{"amount": null}')
    assert (feed.told, feed.first.is_over) == ([("column amount", None)], False)
    feed.see(b'{"sequence": 1}')
    assert (feed.told[1:], feed.first.is_over) == ([("source.cursor", None)], True)


def test_where_all_pointers_find_something_nothing_is_looked_at_again() -> None:
    feed = Watched("tcp", TCP, {"amount": "/price"})
    feed.see(b'{"sequence": 1, "price": 2}')
    assert (feed.told, feed.first.is_over) == ([], True)


def test_a_trial_tells_of_a_cursor_that_no_record_has() -> None:
    (found,) = said("tcp", TCP, {"seq": "/seq"}, b'{"seq": 1}')
    assert found[1].startswith("source.cursor: no record has /sequence; they have /seq")


def test_what_is_no_json_is_left_to_its_own_error() -> None:
    assert said("http", HTTP, {"seq": "/seq"}, b"<html>") == []


FILE = {"path": "/data/x", "format": "text"}


def of(connector: str, source: dict[str, Any], *records: bytes) -> FeedSpec:
    found = proposed(
        FeedSpec(name="acme/x", connector=connector, source=source, sink={"table": "t"}), records
    )
    assert option_problems(FeedSpec.valid(found.plain())) == [], "what is proposed can be applied"
    return found


def test_values_become_columns_with_the_type_that_all_of_them_have() -> None:
    found = of(
        "tcp",
        {"url": "tcp://127.0.0.1:7001"},
        b'{"seq": 1, "price": {"amount": 2, "Currency Code": "EUR"}, "at": "2026-11-20T06:30:00Z", "ok": true}',
        b'{"seq": 2, "price": {"amount": 2.5, "Currency Code": null}, "day": "2026-11-20", "tags": ["a"]}',
    )
    assert found.sink == {
        "table": "t",
        "create": True,
        "columns": {
            "seq": "/seq",
            "price_amount": "/price/amount",
            "price_currency_code": "/price/Currency Code",
            "at": "/at",
            "ok": "/ok",
            "day": "/day",
            "tags": "/tags",
        },
        "types": {
            "seq": "bigint",
            "price_amount": "numeric",
            "at": "timestamp",
            "ok": "boolean",
            "day": "date",
            "tags": "json",
        },
        "key": ["seq"],
    }


@pytest.mark.parametrize(
    ("record", "pointer"),
    [
        (b'[{"id": 1}, {"id": 2}]', ""),
        (b'{"items": [{"id": 1}, {"id": 2}], "total": 2}', "/items"),
    ],
)
def test_a_list_in_an_answer_becomes_records(record: bytes, pointer: str) -> None:
    found = of("http", HTTP, record)
    assert found.source == HTTP | {"records": pointer}
    assert found.sink["columns"] == {"id": "/id"}
    assert found.sink["key"] == ["id"]


def test_lines_with_a_header_become_csv_with_its_names() -> None:
    found = of("file", FILE, b"sensor;at;celsius", b"a;2026-11-20T06:30:00Z;21.5", b"b;2026-11-20T06:31:00Z;")
    assert found.source["csv"] == {"fields": ["sensor", "at", "celsius"], "delimiter": ";", "header": True}
    assert found.source["format"] == "csv"
    assert found.sink["types"] == {"at": "timestamp", "celsius": "numeric"}


def test_lines_without_a_header_get_numbered_names() -> None:
    found = of("file", FILE, b"1,2.5", b"2,3.5")
    assert found.source["csv"] == {"fields": ["field_1", "field_2"]}
    assert found.sink["types"] == {"field_1": "bigint", "field_2": "numeric"}
    assert "key" not in found.sink


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (("01234", "007"), None),
        (("1", "-20"), "bigint"),
        (("1.50", "2"), "numeric"),
        (("-0", "1"), None),
        (("1e3", "2"), None),
        (("2026-11-20", "2026-11-21"), "date"),
        (("2026-W01-1",), None),
        (("2026-02-30",), None),
        (("2026-11-20T06:30:00.123456789Z",), None),
        (("2026-11-20 06:30", "2026-11-20T06:30:00.5+01:00"), "timestamp"),
        (("true", "false"), "boolean"),
        (("TRUE",), None),
    ],
)
def test_a_type_is_proposed_only_if_each_value_comes_back_as_it_was(
    values: tuple[str, ...], type_: str | None
) -> None:
    lines = [f"{value};x{n}" for n, value in enumerate(values)]
    found = of("file", FILE, *map(str.encode, ["what;name", *lines]))
    assert found.sink.get("types", {}).get("what") == type_


@pytest.mark.parametrize(
    ("header", "row", "columns"),
    [
        ("Größe,Preis (€),% neu", "1,2,3", ["größe", "preis", "neu"]),
        ("name,city", "anna,berlin", ["name", "city"]),
        ("name,city", "name,berlin", ["field_1", "field_2"]),
        ("naïve,a b", "1,2", ["naïve", "a_b"]),
    ],
)
def test_a_header_in_any_language_and_above_texts_names_the_columns(
    header: str, row: str, columns: list[str]
) -> None:
    found = of("file", FILE, header.encode(), row.encode())
    assert list(found.sink["columns"]) == columns


def test_one_column_is_csv_where_that_is_said() -> None:
    spec = FeedSpec(name="acme/x", connector="file", source=CSV, sink={"table": "t"})
    assert as_lines_of_text(spec).source == FILE | {"path": "/data/x.csv"}
    found = proposed(spec, [b"id", b"1", b"2"])
    assert found.source == CSV | {"csv": {"fields": ["id"], "header": True}}
    assert found.sink["types"] == {"id": "bigint"}
    with pytest.raises(InvalidInput, match="neither JSON nor lines of CSV"):
        of("file", FILE, b"id", b"x y")


def test_lines_are_cut_as_the_feed_will_read_them() -> None:
    csv = {"delimiter": "||", "quote": "'"}
    found = of("file", CSV | {"csv": csv}, b"name||city", b"'o''hara||x'||cork")
    assert found.source["csv"] == csv | {"fields": ["name", "city"], "header": True}


def test_names_that_would_be_the_same_are_told_apart() -> None:
    found = of("tcp", {"url": "tcp://127.0.0.1:7001"}, b'{"A b": 1, "a_b": 2, "a": {"b": 3}}')
    assert found.sink["columns"] == {"a_b": "/A b", "a_b_2": "/a_b", "a_b_3": "/a/b"}


def test_a_number_that_comes_twice_is_no_key() -> None:
    found = of("tcp", {"url": "tcp://127.0.0.1:7001"}, b'{"id": 1}', b'{"id": 1}')
    assert "key" not in found.sink


@pytest.mark.parametrize("record", [b"plain text", b"{}", b""])
def test_what_has_no_columns_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidInput, match="feed 'acme/x': its first records"):
        of("tcp", {"url": "tcp://127.0.0.1:7001"}, record)
