"""COPY of a target with columns: what each column gets, quickly and plainly the same."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg2.extensions
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from feedq.core.model import JSON, Batch
from feedq.records.csvtext import CsvFormat
from feedq.sinks import copyplan, copytext
from feedq.sinks import statements as arrays
from feedq.sinks.base import DeadRecord, FeedWrite, Target
from feedq.sinks.checkpoints import cursor_text
from feedq.sinks.copyplan import DefaultRows
from feedq.sinks.copyplan import encoded as encoded_around
from feedq.sinks.copytext import BeyondUs, ColumnRows, UnreadableRecord, check
from feedq.sinks.mapping import ColumnRule, Otherwise, sources_of
from feedq.sinks.postgresql_session import driver_url
from feedq.sinks.session import application_name, worker_of
from feedq.sinks.target_table import Column
from tests.records import as_line, csv_records, json_records, spoiled

AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)

FEED = 'acme/"ö\t'


def column(type_name: str) -> Column:
    return Column(type_name, type_name, False, False, False, True, True)


def rows_of(target: Target, *more: str) -> ColumnRows:
    """A column whose name begins with j is jsonb, with y bytea, any other text."""
    names = [*more, *(source.column for source in target.columns)]
    types = {"j": "jsonb", "y": "bytea"}
    return ColumnRows(target, {name: column(types.get(name[0], "text")) for name in names})


def encoded(rows: ColumnRows | DefaultRows, writes: Sequence[FeedWrite]) -> list[bytes]:
    """Rows of writes of which none is set aside."""
    dead: list[DeadRecord] = []
    rows_of_writes = list(encoded_around(rows, writes, dead, strict=False))
    if dead:
        raise UnreadableRecord(dead[0][1])
    return rows_of_writes


def of_records(records: Sequence[bytes], cursor: JSON = None) -> Batch:
    return Batch.of_records(records, cursor=cursor, received_at=AT)


def of_lines(records: Sequence[bytes], cursor: JSON = None) -> Batch:
    return Batch.of_lines(b"".join(r + b"\n" for r in records), cursor=cursor, received_at=AT)


def write_of(batch: Batch) -> FeedWrite:
    return FeedWrite(12, FEED, 7, Target("t", "json"), (batch,))


def fields(rows: ColumnRows, record: bytes, cursor: JSON = None) -> list[str | None]:
    batch = of_records([record], cursor)
    return rows.fields(write_of(batch), batch, record)


def rule(**given: Any) -> ColumnRule:
    return ColumnRule.model_validate(given)


POINTING = {
    "a": "/a",
    "ja": "/a",
    "b": "/b",
    "deep": "/b/0/c",
    "bc": "/b/c",
    "jbc": "/b/c",
    "zero": "/0",
    "odd": "/x~1y",
}

BATCH_WIDE = {
    "f": "$feed",
    "jf": "$feed",
    "e": "$epoch",
    "c": "$cursor",
    "jc": "$cursor",
    "at": "$received_at",
}

CSV = CsvFormat(fields=("a", "b", "c"))

CSV_COLUMNS = sources_of(
    {
        "a": "/a",
        "c": "/c",
        "w": "",
        "d": rule(pointer="/b", null="default", default="ü\t"),
        "f": "$feed",
    }
)

DELIMITERS = {",": '"', r"\t": '"', "||": "'", ";": "", "é": '"', r"\x01": "“"}

DIALECTS = [CSV.model_copy(update={"delimiter": d, "quote": q}) for d, q in DELIMITERS.items()]

TARGETS = {
    "pointers": Target("t", "json", sources_of(POINTING)),
    "members": Target("t", "json", sources_of({"a": "/a", "c": "/c", "b": "/b"})),
    "json members": Target("t", "json", sources_of({"ja": "/a", "c": "/c"})),
    "deeper": Target("t", "json", sources_of({"x": "/a/c", "c": "/c"})),
    "all kinds": Target(
        "t",
        "json",
        sources_of(POINTING | BATCH_WIDE | {"w": "", "jw": "", "y": "/a", "k": rule(value=["x\ty"])}),
    ),
    "defaults": Target(
        "t",
        "json",
        sources_of(
            {
                "a": rule(pointer="/a", missing="default", null="default", default="d\\\t"),
                "j": rule(pointer="/b/c", missing="default", default={"a": "\n"}),
            }
        ),
    ),
    "refused": Target(
        "t",
        "json",
        sources_of({"a": rule(pointer="/a", missing="refuse"), "b": rule(pointer="/b", null="refuse")}),
    ),
    "flattened": Target("t", "json", sources_of({"b": "/a"}), flatten="_"),
    "quoted name": Target("t", "json", sources_of({"a": '/a"b', "c": "/c"})),
    "no pointer": Target("t", "json", sources_of({"w": "", "f": "$feed"})),
    **{f"csv {d.delimiter}": Target("t", "csv", CSV_COLUMNS, csv=d) for d in DIALECTS},
    "csv refused": Target("t", "csv", sources_of({"a": rule(pointer="/a", null="refuse")}), csv=CSV),
    "csv flattened": Target("t", "csv", flatten="_", csv=CSV),
    "text": Target("t", "text", sources_of({"w": "", "f": "$feed"})),
    "bytes": Target("t", "bytes", sources_of({"y": "", "f": "$feed"})),
}

FLATTENED = ["a", "a_b", "b_c", "ja_b_c", "b_0_c", "_"]


def landing_rows(name: str) -> ColumnRows:
    target = TARGETS[name]
    return rows_of(target, *(FLATTENED if target.flatten is not None else []))


def records_for(target: Target) -> st.SearchStrategy[bytes]:
    if target.csv is None:
        good = json_records
    else:
        between = target.csv.delimiter.replace(r"\t", "\t").replace(r"\x01", "\x01")
        good = csv_records(between, target.csv.quote, len(target.csv.fields))
    return st.one_of(good, good, good, spoiled(good), st.binary(max_size=20))


def outcome(encode: Callable[[], bytes]) -> bytes | str:
    try:
        return encode()
    except UnreadableRecord as error:
        return str(error)


# -- the fast path and the plain one -----------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_columns_land_the_same_quickly_and_plainly(name: str, data: st.DataObject) -> None:
    rows = landing_rows(name)
    records = data.draw(st.lists(records_for(TARGETS[name]), max_size=6))
    if data.draw(st.booleans()):
        # One bad record ends a batch: without any, more is seen of the good ones.
        records = [r for r in records if isinstance(outcome(partial(one, rows, r)), bytes)]
    cursors: list[JSON] = [None, 7, 's"\t', {"a": 1}]
    cursor = data.draw(st.sampled_from(cursors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copytext, "FEW", 1)
        patch.setattr(copytext, "TRY_AGAIN_AFTER", 0)
        patch.setattr(copyplan, "CHUNK_BYTES", data.draw(st.sampled_from([1, 80, 2**16])))
        for batch in (of_records(records, cursor), of_lines(list(filter(as_line, records)), cursor)):
            write = write_of(batch)
            plain = outcome(lambda: b"".join(rows.record(write, batch, r) for r in batch.split()))  # noqa: B023
            assert outcome(lambda: b"".join(encoded(rows, [write]))) == plain  # noqa: B023


def one(rows: ColumnRows, record: bytes) -> bytes:
    batch = of_records([record])
    return rows.record(write_of(batch), batch, record)


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"a": 1}{"a": 2}', b"{}"],
        [b'{"a": [{}', b"{}]}"],
        [b'{"a": "x}', b'{"}'],
        [b'{"a": 1}', b'"x"}', b"{}"],
        [b"{}", b" {}"],
        [b"{}", b"[{}]"],
    ],
)
def test_lines_that_are_not_a_record_each_are_taken_one_by_one(
    lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copytext, "FEW", 1)
    rows = landing_rows("pointers")
    batch = of_lines(lines)
    plain = outcome(lambda: b"".join(one(rows, line) for line in lines))
    assert outcome(lambda: b"".join(encoded(rows, [write_of(batch)]))) == plain


GOOD = [
    b'{"a": "x", "b": {"c": 1.10}}',
    b'{"a": "say \\"hi\\"", "b": [{"c": null}]}',
    b'{"a": 1, "b": {"c": "\xc3\xb6"}, "more": [1, {"x": 2}]}',
    b'{"b": null}',
    b'{"a": null, "x/y": [1,\t2]}',
    b"{}",
]


@pytest.mark.parametrize("name", ["pointers", "members", "all kinds", "defaults", "flattened", "no pointer"])
def test_good_lines_take_the_fast_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = landing_rows(name)
    monkeypatch.setattr(rows, "record", None)
    batch = of_lines(GOOD * 200)
    assert b"".join(encoded(rows, [write_of(batch)])).count(b"\n") == batch.count


@pytest.mark.parametrize("lines", [[b'a,,"c,d"', b"1,2,3"], [b"x\\y,1,2"], [b'"a","b","c"']])
def test_good_lines_of_csv_take_the_fast_path(lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = landing_rows("csv ,")
    monkeypatch.setattr(rows, "record", None)
    batch = of_lines(lines * 200)
    assert b"".join(encoded(rows, [write_of(batch)])).count(b"\n") == batch.count


def test_an_odd_record_does_not_slow_down_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = landing_rows("pointers")
    singly: list[bytes] = []
    plain = rows.record

    def record(write: FeedWrite, batch: Batch, record: bytes) -> bytes:
        singly.append(record)
        return plain(write, batch, record)

    monkeypatch.setattr(rows, "record", record)
    batch = of_lines([*GOOD * 50, b"[1]", *GOOD * 50])
    assert b"".join(encoded(rows, [write_of(batch)])).count(b"\n") == batch.count
    assert b"[1]" in singly
    assert len(singly) < 10


def test_no_chunk_is_empty_for_that_would_end_the_copy() -> None:
    rows = landing_rows("pointers")
    for batch in (of_lines([]), of_records([]), of_lines([b"{}"] * 30_000), of_records([b"{\n}"] * 2_000)):
        chunks = list(encoded(rows, [write_of(batch)]))
        assert all(chunks)
        assert b"".join(chunks).count(b"\n") == batch.count


# -- what a column gets ------------------------------------------------------------------------------

PLAIN = rows_of(Target("t", "json", sources_of({"a": "/a", "deep": "/b/0/c", "whole": "", "j": "/j"})))


@given(record=json_records)
@example(b'{"a": "tab\\tand\\nline", "j": "\\\\N"}')
def test_a_row_of_columns_reads_back_as_its_fields(record: bytes) -> None:
    try:
        row = one(PLAIN, record)
    except UnreadableRecord:
        return
    assert row.count(b"\n") == 1
    assert row.endswith(b"\n")
    cells = row[:-1].decode().split("\t")
    assert [None if cell == r"\N" else unescape(cell) for cell in cells] == fields(PLAIN, record)


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
        ({"a": "\\N"}, "\\N"),
        ({"a": "tab\tand\nline"}, "tab\tand\nline"),
        ({"a": 7}, "7"),
        ({"a": True}, "true"),
        ({"a": None}, None),
        ({}, None),
        ({"a": [1, {"b": None}]}, '[1, {"b": null}]'),
        ({"a": {"k": "v"}}, '{"k": "v"}'),
        ("a", None),
    ],
)
def test_a_column_gets_strings_as_they_are_and_the_rest_as_json(document: Any, expected: str | None) -> None:
    assert fields(PLAIN, json.dumps(document).encode())[0] == expected


@pytest.mark.parametrize(
    "number",
    [
        "1.10",
        "-0",
        "18446744073709551616",
        "-9223372036854775809",
        "0.123456789012345678",
        "123456789012345678901234567890.000000000000000000001",
        "1e400",
        "9" * 5_000,
    ],
)
def test_a_number_keeps_its_digits(number: str) -> None:
    record = b'{"a": %s, "b": [{"c": [%s]}], "j": {"n": %s}}' % ((number.encode(),) * 3)
    for neighbours in ([record], [b"{}", record, b'{"a": 1.5}'] * 3):
        batch = of_lines(neighbours)
        rows = b"".join(encoded(PLAIN, [write_of(batch)])).decode().splitlines()
        cells = rows[neighbours.index(record)].split("\t")
        assert cells == [number, f"[{number}]", record.decode(), f'{{"n": {number}}}']


def test_the_last_of_members_with_one_name_counts() -> None:
    assert fields(PLAIN, b'{"a": 1, "\\u0061": 2, "b": [{"c": 1}], "b": [{}]}')[:2] == ["2", None]


def test_a_column_gets_what_is_known_of_the_batch() -> None:
    rows = rows_of(Target("t", "json", sources_of(BATCH_WIDE)))
    assert fields(rows, b"{}", "x")[:6] == [FEED, '"acme/\\"ö\\t"', "7", "x", '"x"', AT.isoformat()]
    assert fields(rows, b"{}", {"n": 1})[3:5] == ['{"n": 1}', '{"n": 1}']
    assert fields(rows, b"{}")[3:5] == [None, None]


@pytest.mark.parametrize(
    ("given_rule", "missing", "null"),
    [
        ({}, None, None),
        ({"missing": "default", "default": 7}, "7", None),
        ({"null": "default", "default": "x"}, None, "x"),
        ({"missing": "default", "null": "default", "default": None}, None, None),
        ({"missing": "refuse"}, Otherwise.REFUSE, None),
        ({"null": "refuse"}, None, Otherwise.REFUSE),
    ],
)
def test_a_rule_says_what_stands_in_for_nothing_and_for_null(
    given_rule: dict[str, Any], missing: object, null: object
) -> None:
    rows = rows_of(Target("t", "json", sources_of({"price": rule(pointer="/p", **given_rule)})))
    for record, expected, word in ((b"{}", missing, "nothing"), (b'{"p": null}', null, "null")):
        if expected is Otherwise.REFUSE:
            with pytest.raises(UnreadableRecord, match=f"column 'price': the record has {word} at /p"):
                fields(rows, record)
        else:
            assert fields(rows, record) == [expected]
    assert fields(rows, b'{"p": 0}') == ["0"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b'{"a_b_c": 1, "a_b": {"c": 2}, "a": {"b_c": 3, "b": {"c": 4}}}', "1"),
        (b'{"a_b": {"c": 2}, "a": {"b_c": 3, "b": {"c": 4}}}', "2"),
        (b'{"a": {"b_c": 3, "b": {"c": 4}}}', "3"),
        (b'{"a": {"b": {"c": [4, {"d": 5}]}}}', '[4, {"d": 5}]'),
        (b'{"a_b": {"c": null}, "a": {"b": {"c": 4}}}', None),
        (b'{"a": {"b": 1}, "c": 2}', None),
    ],
)
def test_a_flattened_column_gets_the_shortest_path_of_its_name(record: bytes, expected: str | None) -> None:
    rows = rows_of(Target("t", "json", flatten="_"), "a_b_c")
    assert fields(rows, record) == [expected]
    assert one(rows, record) == b"".join(encoded(rows, [write_of(of_lines([record]))]))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"1,2,3", ["1", "3", "1,2,3", "2", FEED]),
        (b',,""', [None, "", ',,""', "ü\t", FEED]),
        (b'"a,""b""",x y,5" pipe', ['a,"b"', '5" pipe', '"a,""b""",x y,5" pipe', "x y", FEED]),
    ],
)
def test_csv_fields_go_to_their_columns_as_they_are(record: bytes, expected: list[str | None]) -> None:
    assert fields(landing_rows("csv ,"), record) == expected


@pytest.mark.parametrize(
    ("name", "record", "why"),
    [
        ("pointers", b"nope", "invalid JSON"),
        ("pointers", b'{"a": NaN}', "NaN is not JSON"),
        ("pointers", b'{"a": "\xff"}', "invalid UTF-8"),
        ("pointers", b'{"a": "\\ud800"}', "surrogates"),
        ("pointers", b"[" * 100_000, "nested too deeply"),
        ("no pointer", b'{"a": ', "invalid JSON"),
        ("text", b"\xff", "invalid UTF-8"),
        ("csv ,", b"1,2", "invalid CSV: 2 fields, and source.csv.fields names 3"),
        ("csv ,", b'1,"2,3', "invalid CSV: a quote is not closed"),
        ("csv ,", b'1,"2"x,3', "invalid CSV: text after the closing quote of field 2"),
        ("csv refused", b",1,2", "column 'a': the record has null at /a"),
    ],
)
def test_an_unreadable_record_says_why(name: str, record: bytes, why: str) -> None:
    rows = landing_rows(name)
    batch = of_records([record] * 8)
    with pytest.raises(UnreadableRecord, match=why):
        one(rows, record)
    with pytest.raises(UnreadableRecord, match=why):
        list(encoded(rows, [write_of(batch)]))


any_record = st.binary(max_size=40)

line = st.binary(min_size=1, max_size=40).filter(lambda r: not {10, 13} & set(r))


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
    copied = b"".join(encoded(DefaultRows(payload_type), [write_of(batch)]))
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
        patch.setattr(copyplan, "CHUNK_BYTES", chunk_bytes)
        quick = b"".join(encoded(rows, [write_of(lines)]))
    assert lines.split() == tuple(records)
    assert quick == b"".join(rows.record(write_of(lines), lines, record) for record in records)


SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def parsed(text: bytes) -> Any:
    """By the standard library, numbers as they are written."""
    return json.loads(text.decode(), parse_int=Number, parse_float=Number, parse_constant=refuse)


class Number(str):
    """Told apart from a string of the same digits."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Number and str.__eq__(self, other)

    __hash__ = str.__hash__


@given(record=json_records | spoiled(json_records) | spoiled(spoiled(json_records)) | st.binary(max_size=12))
@example(b"\xef\xbb\xbf{}")
@example(b'"\x7f\xc2\x80"')
@example(b"-")
def test_json_is_what_the_standard_library_takes(record: bytes) -> None:
    try:
        parsed(record)
    except ValueError:
        with pytest.raises(UnreadableRecord):
            check(record)
        return
    if not SURROGATE.search(record):
        check(record)


def test_a_whole_surrogate_pair_is_fine() -> None:
    check(b'["\\ud83d\\ude00", "\\uD83D\\uDE00"]')


def test_what_is_no_json_is_told_from_what_only_we_cannot_read() -> None:
    for record in (b'{"a": "\\ud800"}', b"[" * 5_000 + b"]" * 5_000):
        with pytest.raises(BeyondUs):
            check(record)
    with pytest.raises(UnreadableRecord) as caught:
        check(b'{"a": 01}')
    assert not isinstance(caught.value, BeyondUs)


TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


def _elements(literal: str) -> list[str | None]:
    """What is in an array of one dimension, by psycopg2's own reader of the server's notation."""
    read = psycopg2.extensions.new_array_type((1,), "TEXT[]", psycopg2.extensions.UNICODE)
    found: list[str | None] = read(literal, None)
    return found


@given(TEXTS)
def test_texts_are_read_back_as_they_were(values: list[str | None]) -> None:
    assert _elements(arrays.texts(values)) == values


@given(st.lists(st.integers()))
def test_integers_are_read_back_as_they_were(values: list[int]) -> None:
    assert [int(text or "") for text in _elements(arrays.integers(values))] == values


def test_a_nul_is_refused_and_never_taken_for_the_end_of_a_text() -> None:
    with pytest.raises(ValueError, match="NUL"):
        arrays.texts(["a\0b"])


cursors = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(cursor=cursors)
def test_a_cursor_comes_back_as_it_is_unless_it_is_no_text(cursor: Any) -> None:
    plain = json.dumps(cursor)
    if "\\u0000" not in plain and "\\ud" not in plain:
        text = cursor_text(cursor)
        assert (text is None) == (cursor is None)
        assert json.loads(text or "null") == cursor


@pytest.mark.parametrize("cursor", ["a\0b", {"k\0": 1}, ["\\\0"], "\ud800", float("nan"), float("inf")])
def test_a_cursor_that_postgresql_could_not_give_back_is_refused(cursor: Any) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        cursor_text(cursor)


def test_a_session_names_its_worker_within_what_postgresql_keeps() -> None:
    worker = uuid4()
    for role in ("writer", "fencer"):
        name = application_name(role, worker)
        assert name == f"feedq-{role}/{worker}"
        assert len(name.encode()) <= 63
        assert worker_of(name) == worker


def test_a_driver_in_the_url_is_left_out_for_libpq() -> None:
    assert driver_url("postgresql+psycopg2://u:p+w@h/d?x=1") == "postgresql://u:p+w@h/d?x=1"
    assert driver_url("postgres://h/d") == "postgres://h/d"
    assert driver_url("host=h dbname=a+b") == "host=h dbname=a+b"
