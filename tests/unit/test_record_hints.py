"""What the first records say about a declaration that is not what was meant."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.core.model import Batch
from feedq.records.csvtext import CsvFormat
from feedq.sinks.base import parse_sink
from feedq.worker.first_records import hints, watch_header

HTTP = {"url": "http://127.0.0.1/x", "mode": "poll"}
CSV = {"path": "/data/x.csv", "format": "csv"}


def said(
    connector: str, source: dict[str, Any], columns: dict[str, Any], *records: bytes
) -> list[tuple[str, str]]:
    sink = parse_sink({"table": "t", "columns": columns})
    return list(hints(parse_options(connector, source), sink, records))


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


async def test_a_running_feed_judges_a_header_by_the_record_after_it_and_once() -> None:
    lines = (b"nr,cost\n", b"1,2\n", b"nr,cost\n")

    async def connection() -> AsyncGenerator[Batch, None]:
        for line in lines:
            yield Batch.of_lines(line, cursor=None, received_at=datetime(2026, 1, 1, tzinfo=UTC))

    told: list[tuple[str, str]] = []
    csv = CsvFormat(fields=("id", "price"), header=True)
    watched = watch_header(connection(), csv, lambda *odd: told.append(odd))
    assert [(batch.lines, len(told)) async for batch in watched] == list(zip(lines, (0, 1, 1), strict=True))


def test_what_is_no_json_is_left_to_its_own_error() -> None:
    assert said("http", HTTP, {"seq": "/seq"}, b"<html>") == []
