"""COPY encodings: the quick path gives the same bytes as the plain one, and both give the right ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.model import Batch
from feedq.sinks import copybinary
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.copybinary import DefaultRows
from feedq.sinks.copytext import ColumnRows
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.landing import Column

AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)
COLUMNS = (("a", "/a"), ("deep", "/b/0/c"), ("whole", ""), ("j", "/j"))
LANDING = Landing("t", "json", COLUMNS)


def column(type_name: str) -> Column:
    return Column(type_name, type_name, False, False, False, True, True)


ROWS = ColumnRows(LANDING, {name: column("jsonb" if name == "j" else "text") for name, _ in COLUMNS})


def write_of(batch: Batch, landing: Landing = LANDING) -> FeedWrite:
    return FeedWrite(12, 'acme/"ö\t', 7, landing, (batch,))


def of_records(records: Sequence[bytes]) -> Batch:
    return Batch.of_records(records, cursor=None, received_at=AT)


def of_lines(records: Sequence[bytes]) -> Batch:
    return Batch.of_lines(b"".join(r + b"\n" for r in records), cursor=None, received_at=AT)


any_record = st.binary(max_size=40)
line = st.binary(min_size=1, max_size=40).filter(lambda r: not {10, 13} & set(r))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["\\N", "\\.", "\\", "\t", "\n", "\r", "\x00", "\x7f", "😀", "", "'", '"'])
    | text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
documents = values | st.fixed_dictionaries(
    {}, optional={"a": values, "b": st.just([{"c": 1}]) | values, "j": values}
)


@st.composite
def json_records(draw: st.DrawFn) -> bytes:
    return json.dumps(
        draw(documents),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ":\t")])),
    ).encode()


# -- the default landing -----------------------------------------------------------------------------


def decoded(copied: bytes) -> list[list[bytes | None]]:
    """Rows of a binary COPY, read back by its specification."""
    rows = []
    at = 0
    while at < len(copied):
        (count,) = struct.unpack_from(">h", copied, at)
        at += 2
        fields: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", copied, at)
            at += 4
            fields.append(None if length < 0 else copied[at : at + length])
            at += max(length, 0)
        rows.append(fields)
    return rows


@given(
    records=st.lists(any_record, max_size=20),
    payload_type=st.sampled_from(["jsonb", "json", "text", "bytea"]),
)
def test_a_default_row_holds_feed_epoch_time_and_the_records_own_bytes(
    records: list[bytes], payload_type: str
) -> None:
    batch = of_records(records)
    version = b"\x01" if payload_type == "jsonb" else b""
    copied = b"".join(DefaultRows(payload_type).chunks(write_of(batch), batch))
    micros = round((AT - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() * 10**6)
    assert decoded(copied) == [
        ['acme/"ö\t'.encode(), struct.pack(">q", 7), struct.pack(">q", micros), version + record]
        for record in records
    ]


@given(records=st.lists(line, max_size=30), chunk_bytes=st.sampled_from([1, 7, 64, 65536]))
def test_lines_land_as_the_same_rows_as_their_records(records: list[bytes], chunk_bytes: int) -> None:
    rows = DefaultRows("jsonb")
    lines = of_lines(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copybinary, "CHUNK_BYTES", chunk_bytes)
        quick = b"".join(rows.chunks(write_of(lines), lines))
    assert lines.split() == tuple(records)
    assert quick == b"".join(rows.record(write_of(lines), lines, record) for record in records)


def test_no_chunk_is_empty_for_that_would_end_the_copy() -> None:
    for batch in (of_lines([]), of_records([]), of_lines([b"1"] * 30_000), of_records([b""] * 2_000)):
        chunks = list(DefaultRows("text").chunks(write_of(batch), batch))
        assert all(chunks)
        assert len(decoded(b"".join(chunks))) == batch.count


# -- columns -----------------------------------------------------------------------------------------


@given(records=st.lists(json_records(), max_size=6))
def test_columns_land_the_same_quickly_and_plainly(records: list[bytes]) -> None:
    for batch in (of_records(records), of_lines([r.replace(b"\n", b" ") for r in records])):
        plain = [ROWS.record(write_of(batch), batch, record) for record in batch.split()]
        assert b"".join(ROWS.chunks(write_of(batch), batch)) == b"".join(plain)


@given(record=json_records())
def test_a_row_of_columns_reads_back_as_its_fields(record: bytes) -> None:
    row = ROWS.record(write_of(of_records([record])), of_records([record]), record)
    assert row.count(b"\n") == 1
    assert row.endswith(b"\n")
    cells = row[:-1].decode().split("\t")
    unescaped = [None if cell == r"\N" else unescape(cell) for cell in cells]
    assert unescaped == ROWS.fields(record)


def unescape(cell: str) -> str:
    letters = iter(cell)
    return "".join(
        {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}[next(letters)] if letter == "\\" else letter
        for letter in letters
    )


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"a": "plain"}, "plain"),
        ({"a": ""}, ""),
        ({"a": "\\N"}, "\\N"),
        ({"a": "tab\tand\nline"}, "tab\tand\nline"),
        ({"a": "😀"}, "😀"),
        ({"a": 7}, "7"),
        ({"a": -0.5}, "-0.5"),
        ({"a": True}, "true"),
        ({"a": False}, "false"),
        ({"a": None}, None),
        ({}, None),
        ({"a": [1, {"b": None}]}, '[1,{"b":null}]'),
        ({"a": {"k": "v"}}, '{"k":"v"}'),
        ([1], None),
        ("a", None),
    ],
)
def test_a_column_gets_strings_as_they_are_and_the_rest_as_json(document: Any, expected: str | None) -> None:
    assert ROWS.fields(json.dumps(document).encode())[0] == expected


@pytest.mark.parametrize(
    "number",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "0.123456789012345678",
        "123456789012345678901234567890.000000000000000000001",
        "1e400",
        "9" * 5_000,
    ],
)
def test_a_number_beyond_64_bits_keeps_its_digits(number: str) -> None:
    record = b'{"a": %s, "b": [{"c": [%s]}], "j": {"n": %s}}' % ((number.encode(),) * 3)
    for neighbours in ([record], [b"{}", record, b'{"a": 1.5}']):
        batch = of_records(neighbours)
        rows = b"".join(ROWS.chunks(write_of(batch), batch)).decode().splitlines()
        cells = rows[neighbours.index(record)].split("\t")
        assert cells == [number, f"[{number}]", record.decode(), f'{{"n":{number}}}']


def test_a_string_is_json_in_a_json_column() -> None:
    assert ROWS.fields(b'{"j": "say \\"hi\\""}')[3] == r'"say \"hi\""'


def test_the_whole_record_is_kept_to_the_byte() -> None:
    record = b'{ "b" : 1.50,\t"a":\n"\\u0041" }'
    assert ROWS.fields(record)[2] == record.decode()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"", "invalid JSON"),
        (b"nope", "invalid JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1} x', "invalid JSON"),
        (b'{"a": "\xff"}', "invalid UTF-8"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"j": "\\ud800"}', "surrogates"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_an_unreadable_record_says_why(record: bytes, why: str) -> None:
    batch = of_records([record])
    with pytest.raises(UnreadableRecord, match=why):
        ROWS.record(write_of(batch), batch, record)
    with pytest.raises(UnreadableRecord, match=why):
        list(ROWS.chunks(write_of(batch), batch))
