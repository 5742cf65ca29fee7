"""Event streams: the plain parser against the standard, and the fast one against the plain one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedq.connectors.protocol.eventstream import (
    LINE_BYTES_MIN,
    EventFramer,
    shape_of,
)
from tests.fakes.event_parser import EventParser, ServerSentEvent

MAX = 1000


def events_of(stream: bytes) -> list[ServerSentEvent]:
    return EventParser(MAX).push(stream)


def records_of(framer: EventFramer, pieces: Sequence[bytes]) -> tuple[list[bytes], bool]:
    """What a framer makes of a stream, and whether it cannot go on."""
    records: list[bytes] = []
    for push in [*(lambda piece=piece: framer.push(piece) for piece in pieces), framer.finish]:
        framed = push()
        if framed.records:
            assert not framed.lines
            records += framed.records
        elif framed.lines:
            assert framed.lines.endswith(b"\n")
            assert b"\r" not in framed.lines
            records += framed.lines[:-1].split(b"\n")
        if framed.oversize:
            return records, True
    return records, False


CUTS: st.SearchStrategy[Sequence[int]] = st.one_of(
    st.just([]),
    st.lists(st.integers(0, 2000), max_size=8),
    st.just(range(2000)),
    st.integers(1, 60).map(lambda step: range(0, 2000, step)),
)


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]


# -- the plain parser --------------------------------------------------------------------------------------


def test_an_event_ends_with_a_blank_line() -> None:
    assert events_of(b"data: one\n\ndata: two\n\n") == [
        ServerSentEvent(b"", b"message", b"one"),
        ServerSentEvent(b"", b"message", b"two"),
    ]


def test_lines_end_with_any_of_three_marks() -> None:
    for end in (b"\n", b"\r", b"\r\n"):
        stream = end.join([b"id: 7", b"event: update", b"data: a", b"data: b", b"", b"data: c", b"", b""])
        assert events_of(stream) == [
            ServerSentEvent(b"7", b"update", b"a\nb"),
            ServerSentEvent(b"7", b"message", b"c"),
        ]


def test_examples_of_the_standard() -> None:
    assert [e.data for e in events_of(b"data: YHOO\ndata: +2\ndata: 10\n\n")] == [b"YHOO\n+2\n10"]
    stream = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert events_of(stream) == [
        ServerSentEvent(b"1", b"message", b"first event"),
        ServerSentEvent(b"", b"message", b"second event"),
        ServerSentEvent(b"", b"message", b" third event"),
    ]
    assert [e.data for e in events_of(b"data\n\ndata\ndata\n\ndata:")] == [b"", b"\n"]
    assert [e.data for e in events_of(b"data:test\n\ndata: test\n\n")] == [b"test", b"test"]


def test_one_byte_order_mark_at_the_beginning_is_no_part_of_the_stream() -> None:
    mark = b"\xef\xbb\xbf"
    assert [e.data for e in events_of(mark + b"data: 1\n\n")] == [b"1"]
    assert events_of(mark + mark + b"data: 1\n\n") == []
    assert [e.data for e in events_of(b"data: 1\n\n" + mark + b"data: 2\n\ndata: 3\n\n")] == [b"1", b"3"]


def test_an_incomplete_event_does_not_count() -> None:
    parser = EventParser(MAX)
    assert parser.push(b"id: 1\ndata: 1\n\nid: 2\ndata: 2\n") == [ServerSentEvent(b"1", b"message", b"1")]
    assert parser.last_id == b"1"


def test_an_event_without_data_moves_the_id_only() -> None:
    parser = EventParser(MAX)
    assert parser.push(b"id: 5\nevent: update\n\ndata: x\n\n") == [ServerSentEvent(b"5", b"message", b"x")]
    assert parser.last_id == b"5"


def test_an_id_with_nul_is_ignored_and_an_empty_one_forgets() -> None:
    parser = EventParser(MAX)
    parser.push(b"id: 5\ndata: x\n\nid: 6\0\ndata: y\n\n")
    assert parser.last_id == b"5"
    parser.push(b"id:\n\n")
    assert parser.last_id == b""


@pytest.mark.parametrize(
    ("line", "retry_s"),
    [(b"retry: 3000", 3.0), (b"retry:0", 0.0), (b"retry: 3s", None), (b"retry: -1", None), (b"retry", None)],
)
def test_retry_is_a_whole_number_of_milliseconds(line: bytes, retry_s: float | None) -> None:
    parser = EventParser(MAX)
    parser.push(line + b"\n")
    assert parser.retry_s == retry_s


def test_a_retry_without_end_is_a_day() -> None:
    parser = EventParser(MAX)
    parser.push(b"retry: " + b"9" * 500 + b"\n")
    assert parser.retry_s == 86_400


def test_fields_are_told_by_their_exact_names() -> None:
    assert events_of(b"Data: x\n data: y\ndatum: z\nnonsense\n\n") == []


def test_data_over_the_limit_ends_the_stream_after_what_came_before() -> None:
    for data in (b"data: " + b"x" * (MAX + 1) + b"\n", b"data: " + b"x" * MAX + b"\ndata:\n"):
        parser = EventParser(MAX)
        assert [e.data for e in parser.push(b"data: 1\n\n" + data + b"\ndata: 2\n\n")] == [b"1"]
        assert parser.is_oversize
    assert [len(e.data) for e in events_of(b"data: " + b"x" * MAX + b"\n\n")] == [MAX]


def test_a_line_that_never_ends_is_not_kept_for_ever() -> None:
    for parser in (EventParser(MAX), EventFramer(max_record_bytes=MAX)):
        pushed = 0
        while pushed < 10 * LINE_BYTES_MIN:
            framed = parser.push(b"x" * 1000)
            pushed += 1000
            if isinstance(parser, EventParser) and parser.is_oversize:
                break
            if isinstance(parser, EventFramer) and not isinstance(framed, list) and framed.oversize:
                break
        assert pushed < 3 * LINE_BYTES_MIN


# -- the fast one equals it --------------------------------------------------------------------------------

ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])
VALUES = st.one_of(
    st.sampled_from([b"", b" ", b"  x", b" 1", b'{"a": 1}', b" data: x", b" \0", b"\xef\xbb\xbf", b" \xff"]),
    st.binary(max_size=8).map(lambda value: re.sub(rb"[\r\n]", b"", value)),
    st.just(b"y" * (MAX - 3)),
)
FIELDS = st.sampled_from(
    [b"id:", b"data:", b"data: ", b"event:", b"event: a", b"retry: 1", b": c", b"data", b"x"]
)
LINES = st.tuples(FIELDS, VALUES).map(b"".join)
CHAOS = st.lists(st.one_of(LINES, st.just(b""), st.binary(max_size=6)), max_size=30)


@st.composite
def plain_streams(draw: st.DrawFn) -> bytes:
    """Events that are alike, and now and then one that is not."""
    end = draw(st.sampled_from([b"\n", b"\n", b"\r\n"]))
    fields = draw(st.permutations([b"id:", b"data:", b"event:"]))[: draw(st.integers(2, 3))]
    space = draw(st.sampled_from([b"", b" "]))
    is_odd = draw(st.sampled_from([0, 0, 0, 3]))
    blocks = []
    for number in range(draw(st.integers(1, 12))):
        if is_odd and draw(st.integers(0, is_odd)) == 0:
            odd = [b": hello", b"retry: 5", b"data: a\ndata: b", b"id:9", b"data", b"\xef\xbb\xbfdata: x"]
            blocks.append(draw(st.sampled_from(odd)))
            continue
        sizes = [b'{"n":%d}' % number, b"", b" x", b"id: 7"] * 20 + [b"y" * (MAX + 1)]
        values = {
            b"id:": draw(st.sampled_from([b"%d" % number, b"%d" % number, b"\0", b""])),
            b"data:": draw(st.sampled_from(sizes)),
            b"event:": draw(st.sampled_from([b"a"] * 20 + [b"b", b""])),
        }
        blocks.append(b"\n".join(field + space + values[field] for field in fields))
    return b"".join(block + b"\n\n" for block in blocks).replace(b"\n", end)


STREAMS = st.one_of(
    plain_streams(),
    CHAOS.map(b"\n".join),
    st.tuples(CHAOS, ENDS).map(lambda both: both[1].join(both[0]) + both[1] * 2),
    st.binary(max_size=60),
    st.lists(st.sampled_from([b"data: x", b"\n", b"\r", b"id: 1", b"\xef\xbb\xbf", b"\xef"])).map(b"".join),
)


@settings(max_examples=8 * settings().max_examples)
@given(
    stream=STREAMS,
    places=CUTS,
    types=st.sampled_from([None, {"a"}, {"message", "b"}]),
    envelope=st.booleans(),
)
@example(stream=b"data\r\r\n", places=[], types=None, envelope=True)
@example(stream=b"data:a\n\ndata: b\n\n", places=[], types=None, envelope=False)
@example(stream=b"data: a\r\ndata: b\r\n\r\n", places=[8], types=None, envelope=False)
@example(stream=b"data: x\r\r", places=[8], types=None, envelope=False)
@example(stream=b"id: 1\ndata: a\n\nid: 2\ndata: b\n", places=[], types=None, envelope=False)
@example(stream=b"id: 1\n\nid: 2\ndata: a\ndata: b\n\n", places=[], types=None, envelope=False)
@example(
    stream=b"id: 0\ndata: a\n\njunkid: 1\ndata: b\n\nid: 2\ndata: c\n\n",
    places=[16],
    types=None,
    envelope=False,
)
def test_both_parsers_give_the_same_whatever_the_bytes_and_the_cuts(
    stream: bytes, places: Sequence[int], types: set[str] | None, envelope: bool
) -> None:
    reference = EventParser(MAX)
    events = [
        e for e in reference.push(stream) if types is None or e.type.decode("utf-8", "replace") in types
    ]
    framer = EventFramer(max_record_bytes=MAX, types=types, envelope=envelope)
    records, oversize = records_of(framer, cut(stream, places))
    if envelope:
        assert [orjson.loads(r)["event"].encode() for r in records] == [
            e.type.decode("utf-8", "replace").encode() for e in events
        ]
    else:
        assert records == [e.data for e in events if e.data]
    assert oversize == reference.is_oversize
    if not oversize:
        assert framer.last_id == reference.last_id.decode("utf-8", "replace")
        assert framer.retry_s == reference.retry_s


@given(stream=STREAMS, places=CUTS)
def test_the_plain_parser_does_not_mind_cuts(stream: bytes, places: Sequence[int]) -> None:
    whole, pieces = EventParser(MAX), EventParser(MAX)
    events = whole.push(stream)
    assert [e for piece in cut(stream, places) for e in pieces.push(piece)] == events
    assert (pieces.last_id, pieces.retry_s) == (whole.last_id, whole.retry_s)
    assert pieces.is_oversize == whole.is_oversize


# -- shapes and envelopes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event", [b"id: 1\ndata: {}\n\n", b"data:x\n\n", b"event: a\nid: 1\ndata: {}\n\n", b"data: x\nid:\n\n"]
)
def test_plain_events_have_a_shape(event: bytes) -> None:
    shape = shape_of(event)
    assert shape is not None
    assert shape.pattern.findall(event * 3) == [re.findall(rb"data: ?(.*)", event)[0]] * 3


@pytest.mark.parametrize(
    "event",
    [
        b"id: 1\n\n",
        b"data: a\ndata: b\n\n",
        b"id: 1\nid: 2\ndata: b\n\n",
        b": hello\n\n",
        b"retry: 1\ndata: x\n\n",
        b"data\n\n",
        b"event: " + b"x" * 300 + b"\ndata: x\n\n",
    ],
)
def test_other_events_have_none(event: bytes) -> None:
    assert shape_of(event) is None


def test_an_envelope_holds_json_as_it_is_and_anything_else_as_a_string() -> None:
    framer = EventFramer(max_record_bytes=MAX, envelope=True)
    stream = b'data: {"a":\ndata:  1.10}\n\nid: 7\nevent: update\ndata: gr\xc3\xbc\xc3\x9fe "x"\n\ndata\n\n'
    assert records_of(framer, [stream])[0] == [
        b'{"id":null,"event":"message","data":{"a":  1.10}}',
        '{"id":"7","event":"update","data":"grüße \\"x\\""}'.encode(),
        b'{"id":"7","event":"message","data":""}',
    ]


def test_data_of_several_lines_is_one_record() -> None:
    framer = EventFramer(max_record_bytes=MAX)
    assert records_of(framer, [b"data: a\ndata: b\n\ndata: c\n\n"])[0] == [b"a\nb", b"c"]
