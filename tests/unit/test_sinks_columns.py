"""COPY of a target with columns: what each column gets, whatever the neighbours of a record are."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg2.extensions
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from feedq.core.model import JSON
from feedq.records.batch import Batch, Records
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from feedq.records.cursor import cursor_text
from feedq.records.pointer import MISSING, TextPointers, is_json
from feedq.sinks import copytext
from feedq.sinks import statements as arrays
from feedq.sinks.base import DeadRecord, FeedWrite, SuspectRecord, Target
from feedq.sinks.copyplan import DefaultRows
from feedq.sinks.copytext import BeyondUs, ColumnRows, UnreadableRecord, check, chunks, row_of, texts_of_row
from feedq.sinks.copytext import encoded as encoded_around
from feedq.sinks.mapping import DEFAULT_COLUMNS, ColumnRule, ColumnSource, Origin, Otherwise, sources_of
from feedq.sinks.postgresql import driver_url
from feedq.sinks.session import application_name
from feedq.sinks.target_table import Column, column_sources
from tests.records import as_line, csv_records, json_records, spoiled

AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)

FEED = 'acme/"ö\t'


def column(type_name: str) -> Column:
    return Column(type_name, type_name, False, False, False, True, True)


TYPES = {"j": "jsonb", "y": "bytea"}


def rows_of(target: Target, *more: str) -> ColumnRows:
    return ColumnRows(target, columns_of(target, *more))


def columns_of(target: Target, *more: str) -> dict[str, Column]:
    """A column whose name begins with j is jsonb, with y bytea, any other text."""
    names = [*more, *(source.column for source in target.columns)]
    return {name: column(TYPES.get(name[0], "text")) for name in names}


def default_rows(payload_type: str) -> DefaultRows:
    columns = {name: column("text") for name in DEFAULT_COLUMNS} | {"payload": column(payload_type)}
    return DefaultRows(Target("raw", "json"), columns)


def encoded(rows: ColumnRows, writes: Sequence[FeedWrite]) -> list[bytes]:
    """Rows of writes of which none is set aside."""
    landed, dead = sorted_out(rows, writes)
    if dead:
        raise UnreadableRecord(dead[0][1])
    return landed


def sorted_out(rows: ColumnRows, writes: Sequence[FeedWrite]) -> tuple[list[bytes], list[DeadRecord]]:
    dead: list[DeadRecord] = []

    def set_aside(suspect: SuspectRecord, why: str) -> None:
        dead.append((suspect, why))

    # What default rows hold is looked at by `encode`.
    encode = rows.encode_quickly if isinstance(rows, DefaultRows) else rows.encode
    landed = [text for chunk in chunks(writes) for _, text in encoded_around(chunk, encode, set_aside)]
    return landed, dead


class PlainRows:
    """What each column gets, one record and one column at a time: what the encoder must equal."""

    def __init__(self, target: Target, *more: str) -> None:
        self.target = target
        self.sources = column_sources(target, columns_of(target, *more))

    def row(self, write: FeedWrite, batch: Batch, record: bytes) -> bytes:
        """Raises `UnreadableRecord`."""
        read = self._read_csv(record) if self.target.csv is not None else None
        if self.target.format == "json":
            check(record)
        return row_of([self._text(source, write, batch, record, read) for source in self.sources])

    def _read_csv(self, record: bytes) -> dict[str, bytes | None]:
        assert self.target.csv is not None
        try:
            return dict(zip(self.target.csv.fields, CsvReader(self.target.csv).read(record), strict=True))
        except MalformedLine as error:
            raise UnreadableRecord(str(error)) from None

    def _text(
        self,
        source: ColumnSource,
        write: FeedWrite,
        batch: Batch,
        record: bytes,
        read: dict[str, bytes | None] | None,
    ) -> str | None:
        is_json = source.column.startswith("j")

        def said(value: str) -> str:
            return json.dumps(value, ensure_ascii=False) if is_json else value

        match source.origin:
            case Origin.POINTER:
                return self._found(source, record, read, is_json=is_json)
            case Origin.RECORD if source.column.startswith("y"):
                return "\\x" + record.hex()
            case Origin.RECORD:
                return decoded_text(record)
            case Origin.FEED:
                return said(write.feed)
            case Origin.EPOCH:
                return str(write.epoch)
            case Origin.RECEIVED_AT:
                return said(batch.received_at.isoformat())
            case Origin.CURSOR:
                cursor = batch.cursor
                return cursor if isinstance(cursor, str) and not is_json else cursor_text(cursor)
            case _:
                return text_of_json(source.constant.encode(), is_json=is_json)

    def _found(
        self, source: ColumnSource, record: bytes, read: dict[str, bytes | None] | None, *, is_json: bool
    ) -> str | None:
        rule = None
        if read is not None:
            field = read[source.pointer[1:]]
            if field is not None:
                return decoded_text(field)
            rule = source.null
        else:
            found = TextPointers([source.pointer, *source.alternatives]).find(record)
            value = next((one for one in found if one is not MISSING), MISSING)
            if value is MISSING:
                rule = source.missing
            elif value == b"null":
                rule = source.null
            else:
                return text_of_json(value, is_json=is_json)
        if rule is Otherwise.REFUSE:
            raise UnreadableRecord("refused")
        return text_of_json(source.default.encode(), is_json=is_json) if rule is Otherwise.DEFAULT else None


def text_of_json(value: bytes, *, is_json: bool) -> str | None:
    if value == b"null":
        return None
    said: str = json.loads(value) if value.startswith(b'"') and not is_json else value.decode()
    return said


def decoded_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise UnreadableRecord("invalid UTF-8") from None


def of_records(records: Sequence[bytes], cursor: JSON = None) -> Batch:
    return Records(records=tuple(records)).batch(cursor=cursor, received_at=AT)


def of_lines(records: Sequence[bytes], cursor: JSON = None) -> Batch:
    return Records(b"".join(r + b"\n" for r in records)).batch(cursor=cursor, received_at=AT)


def write_of(*batches: Batch) -> FeedWrite:
    return FeedWrite(12, FEED, 7, Target("t", "json"), batches)


def fields(rows: ColumnRows, record: bytes, cursor: JSON = None) -> list[str | None]:
    batch = of_records([record], cursor)
    return rows.texts(write_of(batch), batch, record)


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


def plain_rows(name: str) -> PlainRows:
    target = TARGETS[name]
    return PlainRows(target, *(FLATTENED if target.flatten is not None else []))


def records_for(target: Target) -> st.SearchStrategy[bytes]:
    if target.csv is None:
        good = json_records
    else:
        between = target.csv.delimiter.replace(r"\t", "\t").replace(r"\x01", "\x01")
        good = csv_records(between, target.csv.quote, len(target.csv.fields))
    return st.one_of(good, good, good, spoiled(good), st.binary(max_size=20))


# -- many records and one at a time ------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_record_lands_the_same_whatever_its_neighbours_are(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    rows, plain = landing_rows(name), plain_rows(name)
    records = data.draw(st.lists(records_for(target), max_size=6))
    if data.draw(st.booleans()):
        # One bad record halves a chunk: without any, more is seen of the good ones.
        records = [r for r in records if plainly(plain, [write_of(of_records([r]))])[0]]
    cursors: list[JSON] = [None, 7, 's"\t', {"a": 1}]
    cursor = data.draw(st.sampled_from(cursors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copytext, "TRY_AGAIN_AFTER", data.draw(st.sampled_from([0, 15])))
        patch.setattr(copytext, "CHUNK_BYTES", data.draw(st.sampled_from([1, 80, 2**16])))
        lines = of_lines(list(filter(as_line, records)), cursor)
        together = [write_of(of_records(records, cursor)), write_of(lines, of_records([*records, b"{}"]))]
        for writes in ([write_of(lines)], together):
            landed, dead = sorted_out(rows, writes)
            expected, refused = plainly(plain, writes)
            assert b"".join(landed) == b"".join(expected)
            assert [suspect.record for suspect, _ in dead] == refused


def plainly(plain: PlainRows, writes: Sequence[FeedWrite]) -> tuple[list[bytes], list[bytes]]:
    """Rows, and records that there are none of."""
    rows, refused = [], []
    for write in writes:
        for batch in write.batches:
            for record in batch.split():
                try:
                    rows.append(plain.row(write, batch, record))
                except UnreadableRecord:
                    refused.append(record)
    return rows, refused


def one(rows: ColumnRows, record: bytes) -> bytes:
    """The row of a single record. Raises `UnreadableRecord`."""
    return b"".join(encoded(rows, [write_of(of_records([record]))]))


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"a": 1}{"a": 2}', b"{}"],
        [b'{"a": [{}', b"{}]}"],
        [b'{"a": "x}', b'"}'],
        [b'{"a": 1}', b'"x"}', b"{}"],
        [b"{}", b" {}"],
        [b"{}", b"[{}]"],
    ],
)
def test_a_line_is_a_record_whatever_two_of_them_say_together(lines: list[bytes]) -> None:
    landed, dead = sorted_out(landing_rows("pointers"), [write_of(of_lines(lines))])
    expected, refused = plainly(plain_rows("pointers"), [write_of(of_lines(lines))])
    assert b"".join(landed) == b"".join(expected)
    assert [suspect.record for suspect, _ in dead] == refused


GOOD = [
    b'{"a": "x", "b": {"c": 1.10}}',
    b'{"a": "say \\"hi\\"", "b": [{"c": null}]}',
    b'{"a": 1, "b": {"c": "\xc3\xb6"}, "more": [1, {"x": 2}]}',
    b'{"b": null}',
    b'{"a": null, "x/y": [1,\t2]}',
    b"{}",
]


def test_a_bad_record_is_set_aside_without_a_look_at_each_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = landing_rows("pointers")
    asked: list[int] = []
    plain = rows.rows

    def counting(chunk: copytext.Chunk) -> bytes:
        asked.append(sum(len(span.records) for span in chunk))
        return plain(chunk)

    monkeypatch.setattr(rows, "rows", counting)
    batch = of_lines([*GOOD * 50, b"[1", *GOOD * 50])
    landed, dead = sorted_out(rows, [write_of(batch)])
    assert b"".join(landed).count(b"\n") == batch.count - 1
    assert [suspect.record for suspect, _ in dead] == [b"[1"]
    assert len(asked) < 30


def test_slow_feeds_of_one_target_share_a_chunk() -> None:
    rows = rows_of(Target("t", "json", sources_of({"f": "$feed", "c": "$cursor", "a": "/a"})))
    writes = [
        FeedWrite(n, f"acme/{n}", 7, Target("t", "json"), (of_lines([b'{"a": %d}' % n], n),))
        for n in range(99)
    ]
    (text,) = encoded(rows, writes)
    assert text == b"".join(b"acme/%d\t%d\t%d\n" % (n, n, n) for n in range(99))


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
    assert texts_of_row(row[:-1].decode()) == fields(PLAIN, record)


@given(
    st.lists(
        st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1
    )
)
@example(["\\N", None, "", "\\t", "\t\n\r\\"])
def test_a_row_is_read_back_as_the_texts_it_was_made_of(texts: list[str | None]) -> None:
    row = row_of(texts)
    assert row.count(b"\n") == 1
    assert texts_of_row(row[:-1].decode()) == texts


@pytest.mark.parametrize(
    "neighbours", [[], [b'{"n": 2, "x": "y.0"}'] * 3, [b'{"n": null}'], [b'{"n": "3\\u0030"}']]
)
@pytest.mark.parametrize("others", [{"x": "/x"}, {"w": ""}])
def test_an_integer_may_be_written_with_a_zero_behind_its_point(
    neighbours: list[bytes], others: dict[str, str]
) -> None:
    target = Target("t", "json", sources_of({"n": "/n", **others}))
    rows = ColumnRows(target, {"n": column("bigint"), **{name: column("text") for name in others}})
    numbers = {b"1.0": b"1", b"-0.0": b"-0", b'"7.0"': b"7", b"1.50": b"1.50", b"1.00": b"1.00", b"8": b"8"}
    records = [b'{"n": %b, "x": 5.0}' % number for number in numbers]
    landed = b"".join(encoded(rows, [write_of(of_lines([*records, *neighbours]))]))
    cells = [line.split(b"\t") for line in landed.splitlines()[: len(records)]]
    assert [cell for cell, _ in cells] == list(numbers.values())
    assert "x" not in others or {other for _, other in cells} == {b"5.0"}


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
        (b'"a,""b""",x y,5 pipe', ['a,"b"', "5 pipe", '"a,""b""",x y,5 pipe', "x y", FEED]),
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
    copied = b"".join(encoded(default_rows(payload_type), [write_of(batch)]))
    micros = round((AT - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() * 10**6)
    assert decoded(copied) == [
        ['acme/"ö\t'.encode(), struct.pack(">q", 7), struct.pack(">q", micros), version + record]
        for record in records
    ]


@given(records=st.lists(line, max_size=30), chunk_bytes=st.sampled_from([1, 7, 64, 65536]))
def test_lines_land_as_the_same_rows_as_their_records(records: list[bytes], chunk_bytes: int) -> None:
    rows = default_rows("jsonb")
    lines = of_lines(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copytext, "CHUNK_BYTES", chunk_bytes)
        landed = b"".join(encoded(rows, [write_of(lines)]))
    assert lines.split() == tuple(records)
    assert landed == b"".join(b"".join(encoded(rows, [write_of(of_records([record]))])) for record in records)


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
@example(b'"\x1f"')
@example(b"-")
@example(b"[1e400, -01]")
@example(b'{"a":NaN}')
@example(b'"\xed\xa0\x80"')
def test_json_is_what_the_standard_library_takes(record: bytes) -> None:
    try:
        parsed(record)
    except ValueError:
        with pytest.raises(UnreadableRecord):
            check(record)
        assert not is_json(record)
        return
    if not SURROGATE.search(record):
        check(record)
        assert is_json(record)


def test_a_whole_surrogate_pair_is_fine_and_half_of_one_is_no_json() -> None:
    check(b'["\\ud83d\\ude00", "\\uD83D\\uDE00"]')
    for half in (b'"\\ud800"', b'"\\udc00\\ud800"', b'["\\ud800x"]'):
        assert not is_json(half)


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


def test_a_driver_in_the_url_is_left_out_for_libpq() -> None:
    assert driver_url("postgresql+psycopg2://u:p+w@h/d?x=1") == "postgresql://u:p+w@h/d?x=1"
    assert driver_url("postgres://h/d") == "postgres://h/d"
    assert driver_url("host=h dbname=a+b") == "host=h dbname=a+b"
