"""Framing: however a stream is cut into pieces, its records are those of the whole."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.records.csvtext import CsvFormat
from feedq.records.framing import DelimiterFramer, Framed, Framer, HeaderlessFramer, LengthFramer, LineFramer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_LIMIT = 2**30

dense = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"|", b"||"]), max_size=40).map(
    b"".join
)
streams = st.one_of(dense, st.binary(max_size=200))
delimiters = st.sampled_from([b"|", b"||", b"\n", b"aa", b"\r\n", b"a|a", b"\x00"])


def make_framer(delimiter: bytes | None, *, max_record_bytes: int) -> Framer:
    return LineFramer(max_record_bytes) if delimiter is None else DelimiterFramer(delimiter, max_record_bytes)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and the same in pieces."""
    stream = draw(streams)
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return stream, [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def run(framer: Framer, pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """All records, and whether the stream ended over the limit."""
    records: list[bytes] = []
    for piece in pieces:
        framed = framer.push(piece)
        check_batch_invariants(framed)
        records += framed.batch(cursor=None, received_at=NOW).split()
        if framed.is_last:
            return records, True
    return records, False


def check_batch_invariants(framed: Framed) -> None:
    batch = framed.batch(cursor=None, received_at=NOW)
    assert batch.count == len(batch.split())
    assert bool(framed) == (batch.count > 0)
    assert all(batch.split())
    if batch.lines is not None:
        assert b"\r" not in batch.lines
        assert not batch.lines or batch.lines.endswith(b"\n")


def reference(records: list[bytes], *, limit: int) -> tuple[list[bytes], bool]:
    kept: list[bytes] = []
    for record in filter(None, records):
        if len(record) > limit:
            return kept, True
        kept.append(record)
    return kept, False


@given(cut_streams(), st.integers(1, 12) | st.just(NO_LIMIT))
def test_lines_do_not_depend_on_how_the_stream_was_cut(cut: tuple[bytes, list[bytes]], limit: int) -> None:
    stream, pieces = cut
    whole = run(LineFramer(limit), [stream])
    assert run(LineFramer(limit), pieces) == whole
    expected, oversize = reference(
        [line.removesuffix(b"\r") for line in stream.split(b"\n")[:-1]], limit=limit
    )
    assert whole[0] == expected
    assert whole[1] >= oversize


@given(cut_streams(), delimiters, st.integers(1, 12) | st.just(NO_LIMIT))
def test_delimited_records_do_not_depend_on_how_the_stream_was_cut(
    cut: tuple[bytes, list[bytes]], delimiter: bytes, limit: int
) -> None:
    stream, pieces = cut
    whole = run(DelimiterFramer(delimiter, limit), [stream])
    assert run(DelimiterFramer(delimiter, limit), pieces) == whole
    expected, oversize = reference(stream.split(delimiter)[:-1], limit=limit)
    assert whole[0] == expected
    assert whole[1] >= oversize


class Prefix:
    """One way to write a length."""

    def __init__(
        self, size: Literal[1, 2, 4], order: Literal["big", "little"], *, counts_itself: bool
    ) -> None:
        self.size, self.order, self.counted = size, order, size if counts_itself else 0

    def framer(self, limit: int = NO_LIMIT) -> LengthFramer:
        return LengthFramer(self.size, limit, byte_order=self.order, counts_itself=self.counted > 0)

    def before(self, record: bytes) -> bytes:
        return (len(record) + self.counted).to_bytes(self.size, self.order) + record

    def reference(self, stream: bytes, *, limit: int) -> tuple[list[bytes], bool]:
        """One record after the other."""
        records: list[bytes] = []
        while len(stream) >= self.size:
            size = int.from_bytes(stream[: self.size], self.order) - self.counted
            if not 0 <= size <= limit:
                return records, True
            if len(stream) < self.size + size:
                break
            records += filter(None, [stream[self.size : self.size + size]])
            stream = stream[self.size + size :]
        return records, False


prefixes = st.builds(
    Prefix, st.sampled_from([1, 2, 4]), st.sampled_from(["big", "little"]), counts_itself=st.booleans()
)


@given(
    prefixes,
    st.lists(st.binary(max_size=20), max_size=8),
    st.data(),
    st.integers(1, 20) | st.just(NO_LIMIT),
)
def test_records_after_their_length_do_not_depend_on_how_the_stream_was_cut(
    prefix: Prefix, records: list[bytes], data: st.DataObject, limit: int
) -> None:
    # What follows the records may be the beginning of another, or garbage.
    stream = b"".join(map(prefix.before, records)) + data.draw(st.binary(max_size=6))
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]
    expected = prefix.reference(stream, limit=limit)
    assert run(prefix.framer(limit), [stream]) == expected
    assert run(prefix.framer(limit), pieces) == expected


def test_a_length_over_the_limit_is_noticed_before_its_record_comes() -> None:
    framed = Prefix(4, "big", counts_itself=False).framer(10).push(b"\0\0\0\2ab\0\0\0\x0b")
    assert framed == Framed(records=(b"ab",), oversize=True)


FRAMERS: dict[str, Callable[[int], Framer]] = {
    "lines": lambda limit: LineFramer(limit),
    "delimiter": lambda limit: DelimiterFramer(b"||", limit),
    "length": lambda limit: LengthFramer(1, limit, byte_order="big", counts_itself=True),
}


@pytest.mark.parametrize("kind", FRAMERS)
@given(cut=cut_streams(), limit=st.integers(1, 12))
def test_what_was_given_back_and_what_is_pending_are_the_stream(
    kind: str, cut: tuple[bytes, list[bytes]], limit: int
) -> None:
    """Whoever goes on at the first pending byte, with a larger limit, misses nothing and gets nothing twice."""
    stream, pieces = cut
    framer = FRAMERS[kind](limit)
    records: list[bytes] = []
    pushed = 0
    for piece in pieces:
        framed = framer.push(piece)
        pushed += len(piece)
        records += framed.batch(cursor=None, received_at=NOW).split()
        if framed.is_last:
            break
    rest = stream[pushed - framer.pending :]
    expected, _ = run(FRAMERS[kind](NO_LIMIT), [stream])
    assert records + run(FRAMERS[kind](NO_LIMIT), [rest])[0] == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_record_of_exactly_the_limit_passes_and_one_byte_more_does_not(end: bytes) -> None:
    for cut in range(len(end) + 1):
        assert run(LineFramer(4), [b"1234" + end[:cut], end[cut:]]) == ([b"1234"], False)
    assert run(LineFramer(4), [b"12345" + end]) == ([], True)
    assert run(DelimiterFramer(b"||", 4), [b"1234|", b"|"]) == ([b"1234"], False)
    assert run(DelimiterFramer(b"||", 4), [b"12345||"]) == ([], True)


@pytest.mark.timeout(10)  # quadratic copying would move 137 gigabytes; this takes a tenth of a second
@pytest.mark.parametrize("delimiter", [None, b"||"])
def test_a_large_record_in_crumbs_takes_linear_time(delimiter: bytes | None) -> None:
    framer = make_framer(delimiter, max_record_bytes=2**22)
    for _ in range(2**16):
        assert not framer.push(b"x" * 64)
    assert framer.pending == 2**22
    framed = framer.push(delimiter or b"\n")
    assert framed.batch(cursor=None, received_at=NOW).split() == (b"x" * 2**22,)


@pytest.mark.timeout(10)
def test_a_large_record_after_its_length_in_crumbs_takes_linear_time() -> None:
    framer = Prefix(4, "big", counts_itself=False).framer(2**22)
    framer.push((2**22).to_bytes(4, "big"))
    for _ in range(2**16 - 1):
        assert not framer.push(b"x" * 64)
    assert framer.push(b"x" * 64).records == (b"x" * 2**22,)


# -- headers of CSV ------------------------------------------------------------------------------------

CSV = CsvFormat(fields=("id", "the price"), header=True)


def headerless(csv: CsvFormat, stream: bytes, *, delimiter: bytes | None = None) -> list[bytes]:
    framer = HeaderlessFramer(make_framer(delimiter, max_record_bytes=NO_LIMIT), csv)
    return run(framer, [stream])[0]


@pytest.mark.parametrize(
    "header", [b"id,the price", b'"id","the price"', b'id,"the price"', b"\xef\xbb\xbfid,the price"]
)
def test_header_lines_are_left_out_wherever_they_stand(header: bytes) -> None:
    stream = header + b"\n" + header + b"\r\n1,2\n" + header + b"\n3,the price\n" + header + b"\n"
    assert headerless(CSV, stream) == [b"1,2", b"3,the price"]


@pytest.mark.parametrize(
    "line", [b"id,the price,x", b" id,the price", b"the price,id", b"id;the price", b"id"]
)
def test_a_line_that_is_only_like_the_header_is_a_record(line: bytes) -> None:
    assert headerless(CSV, b"id,the price\n" + line + b"\n") == [line]


def test_headers_follow_the_delimiter_and_the_quote() -> None:
    csv = CsvFormat(fields=("a", "b'c"), delimiter=r"\t", quote="'", header=True)
    assert headerless(csv, b"a\tb'c\n'a'\t'b''c'\n\"a\"\tb'c\n") == [b'"a"\tb\'c']
    unquoted = CsvFormat(fields=("a", "b"), quote="", header=True)
    assert headerless(unquoted, b'a,b\n"a",b\n') == [b'"a",b']


def test_a_header_without_a_name_harms_no_record() -> None:
    assert headerless(CsvFormat(fields=("",), header=True), b'1\n""\n2\n') == [b"1", b"2"]


@given(cut_streams())
def test_what_is_left_without_headers_does_not_depend_on_how_the_stream_was_cut(
    cut: tuple[bytes, list[bytes]],
) -> None:
    csv = CsvFormat(fields=("a", "bc"), delimiter="|", header=True)
    stream, pieces = cut
    whole = run(LineFramer(NO_LIMIT), [stream])[0]
    framer = HeaderlessFramer(LineFramer(NO_LIMIT), csv)
    headers = {b"a|bc", b'"a"|bc', b'a|"bc"', b'"a"|"bc"'}
    assert run(framer, pieces)[0] == [record for record in whole if record not in headers]
