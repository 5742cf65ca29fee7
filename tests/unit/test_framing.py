"""Framing: however a stream is cut into pieces, its records are those of the whole."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.framing import DelimiterFramer, Framed, Framer, LineFramer, make_framer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_LIMIT = 2**30

dense = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"|", b"||"]), max_size=40).map(
    b"".join
)
streams = st.one_of(dense, st.binary(max_size=200))
delimiters = st.sampled_from([b"|", b"||", b"\n", b"aa", b"\r\n", b"a|a", b"\x00"])


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
        if framed.oversize:
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


@given(cut_streams(), delimiters | st.none())
def test_what_is_incomplete_stays_inside(cut: tuple[bytes, list[bytes]], delimiter: bytes | None) -> None:
    stream, pieces = cut
    framer = make_framer(delimiter, max_record_bytes=NO_LIMIT)
    run(framer, pieces)
    assert framer.pending == len(stream.split(delimiter or b"\n")[-1])


@pytest.mark.parametrize(
    ("stream", "records"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\r\nb\nc\r\n", [b"a", b"b", b"c"]),
        (b"\n\na\n\n\r\nb\n\n", [b"a", b"b"]),
        (b"\n\r\n\n", []),
        (b"a", []),
        (b"", []),
        (b"a\rb\nc\n", [b"a\rb", b"c"]),
        (b"a\r\r\n", [b"a\r"]),
        (b"\r\r\n", [b"\r"]),
        (b"\x00\xff\n", [b"\x00\xff"]),
    ],
)
def test_lines_end_with_lf_or_crlf_and_empty_ones_are_skipped(stream: bytes, records: list[bytes]) -> None:
    assert run(LineFramer(NO_LIMIT), [stream]) == (records, False)


def test_ordinary_lines_stay_one_piece_of_bytes() -> None:
    framed = LineFramer(NO_LIMIT).push(b"a\nb\r\nc")
    assert framed == Framed(lines=b"a\nb\n")


def test_a_carriage_return_inside_a_line_keeps_the_batch_off_the_fast_path() -> None:
    framed = LineFramer(NO_LIMIT).push(b"a\rb\nc\n")
    assert framed == Framed(records=(b"a\rb", b"c"))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_record_of_exactly_the_limit_passes_and_one_byte_more_does_not(end: bytes) -> None:
    for cut in range(len(end) + 1):
        assert run(LineFramer(4), [b"1234" + end[:cut], end[cut:]]) == ([b"1234"], False)
    assert run(LineFramer(4), [b"12345" + end]) == ([], True)
    assert run(DelimiterFramer(b"||", 4), [b"1234|", b"|"]) == ([b"1234"], False)
    assert run(DelimiterFramer(b"||", 4), [b"12345||"]) == ([], True)


def test_everything_before_an_oversize_record_is_given_back_with_it() -> None:
    assert run(LineFramer(4), [b"a\nbb\n12345\nc\n"]) == ([b"a", b"bb"], True)
    assert run(DelimiterFramer(b"|", 4), [b"a|bb|12345|c|"]) == ([b"a", b"bb"], True)


def test_an_oversize_record_is_noticed_before_it_is_complete() -> None:
    assert LineFramer(4).push(b"a\n12345").oversize
    assert DelimiterFramer(b"|", 4).push(b"a|12345").oversize
    assert DelimiterFramer(b"|", 4).push(b"12345").oversize


@pytest.mark.timeout(30)  # quadratic copying would move half a terabyte; this takes a third of a second
@pytest.mark.parametrize("delimiter", [None, b"||"])
def test_a_large_record_in_crumbs_takes_linear_time(delimiter: bytes | None) -> None:
    framer = make_framer(delimiter, max_record_bytes=2**22)
    for _ in range(2**18):
        assert not framer.push(b"x" * 16)
    assert framer.pending == 2**22
    framed = framer.push(delimiter or b"\n")
    assert framed.batch(cursor=None, received_at=NOW).split() == (b"x" * 2**22,)
