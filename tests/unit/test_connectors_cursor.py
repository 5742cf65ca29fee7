"""Cursors read from records: the last record that has one decides."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.base import show_cursor
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured
from feedq.records.csvtext import CsvFormat
from feedq.records.framing import CURSOR_BYTES_MAX, SMALL_BYTES, CursorReader, Framed
from feedq.records.template import fill_in
from feedq.sinks.checkpoints import ascii_text, cursor_text

SEQ = CursorReader("/seq")

with_cursor = st.integers() | st.text(st.characters(codec="ascii", exclude_characters="\0"))
without_cursor = st.sampled_from(
    [b"garbage", b"{", b"\xff\xfe", b'{"other": 1}', b'{"seq": null}', b"[]", b"1", b'{"seq": }']
)
records = st.lists(with_cursor | without_cursor, max_size=12)


def encode(record: int | str | bytes) -> bytes:
    return record if isinstance(record, bytes) else msgspec.json.encode({"seq": record})


def lines(*encoded: bytes) -> Framed:
    return Framed(lines=b"".join(record + b"\n" for record in encoded))


@given(records, st.booleans())
def test_the_last_record_that_has_a_cursor_decides(drawn: list[int | str | bytes], as_lines: bool) -> None:
    encoded = tuple(map(encode, drawn))
    framed = lines(*encoded) if as_lines else Framed(records=encoded)
    cursors = [record for record in drawn if not isinstance(record, bytes)]
    assert SEQ.after(framed, "previous") == (cursors[-1] if cursors else "previous")


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**30 + 1, int("9" * 4_300)])
@pytest.mark.parametrize("more", [0, SMALL_BYTES])
def test_an_integer_of_any_length_is_kept_and_asked_for_digit_for_digit(number: int, more: int) -> None:
    found = SEQ.after(lines(b'{"seq": %d, "more": "%s"}' % (number, b"x" * more)), None)
    assert found == number
    assert fill_in("{cursor}", feed="f", cursor=found, secrets={}) == b"%d" % number
    assert cursor_text(found) == ascii_text(found) == str(number)


@pytest.mark.parametrize("more", [0, SMALL_BYTES])
@pytest.mark.parametrize(
    "cursor", [b"9" * 4_301, b"1e400", b'"\xff"', b'"\\ud800"', b"[" * 2_000 + b"]" * 2_000]
)
def test_what_no_parser_takes_is_no_cursor(cursor: bytes, more: int) -> None:
    assert SEQ.after(lines(b'{"seq": %s, "more": "%s"}' % (cursor, b"x" * more)), 7) == 7


@pytest.mark.parametrize("cursor", [b'"a\\u0000"', b'["\\u0000"]', b'{"\\u0000": 1}', b'"\\\\\\u0000"'])
def test_a_nul_which_the_database_cannot_keep_stops_the_feed(cursor: bytes) -> None:
    with pytest.raises(FeedMisconfigured, match=r"source\.cursor /seq: a NUL"):
        SEQ.after(lines(b'{"seq": %s}' % cursor), None)


def test_a_cursor_beyond_its_size_limit_stops_the_feed() -> None:
    fits = "x" * (CURSOR_BYTES_MAX - 2)
    assert SEQ.after(lines(msgspec.json.encode({"seq": fits})), None) == fits
    with pytest.raises(FeedMisconfigured, match=r"source\.cursor /seq: 8193 bytes, at most 8192"):
        SEQ.after(lines(msgspec.json.encode({"seq": fits + "x"})), None)


@pytest.mark.parametrize(
    ("cursor", "shown"), [(None, "null"), (17, "17"), ("x" * 300, '"' + "x" * 198 + "…")]
)
def test_a_cursor_in_a_message_is_short(cursor: JSON, shown: str) -> None:
    assert show_cursor(cursor) == shown


def csv_reader(pointer: str) -> CursorReader:
    return CursorReader(pointer, csv=CsvFormat(fields=("seq", "a/b"), delimiter=";"))


@pytest.mark.parametrize(
    ("field", "cursor"),
    [
        (b"17", 17),
        (b"-5", -5),
        (b"0", 0),
        (b'"17"', 17),
        (b"007", "007"),
        (b"+7", "+7"),
        (b"-0", "-0"),
        (b"1.50", "1.50"),
        (b"99999999999999999999", "99999999999999999999"),
        (b"2026-11-20T06:30:00Z", "2026-11-20T06:30:00Z"),
        (b'"a;""b"""', 'a;"b"'),
        (b'""', ""),
    ],
)
def test_a_cursor_of_csv_is_a_field_and_repeats_what_was_sent(field: bytes, cursor: JSON) -> None:
    assert csv_reader("/seq").after(lines(b"1;x", field + b";x", b";y"), 7) == cursor
    assert csv_reader("/a~1b").after(lines(b"1;" + field), 7) == cursor


def test_a_record_that_is_no_csv_is_passed_over() -> None:
    assert csv_reader("/seq").after(lines(b"3;x", b"4", b'"5;x', b"\xff;x"), 7) == 3


@pytest.mark.parametrize("pointer", ["/other", "", "/seq/0"])
def test_a_cursor_that_is_no_field_is_refused(pointer: str) -> None:
    with pytest.raises(ValueError, match=r"is no field of the records; source\.csv\.fields has 'seq', 'a/b'"):
        csv_reader(pointer)
