"""What is proposed of the first records: how to cut them up, which columns, which types, which key."""

from __future__ import annotations

from typing import Any

import pytest

from feedq.core.model import FeedSpec
from feedq.errors import InvalidInput
from feedq.verbs.manifest.options import option_problems
from feedq.worker.first_records import proposed

HTTP = {"url": "http://127.0.0.1/x", "mode": "poll"}
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
