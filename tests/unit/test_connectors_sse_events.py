"""Event streams: what the framer makes of them is what the standard says, line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedq.connectors.sse import LINE_BYTES_MIN, RETRY_SAID_S_MAX, EventFramer
from feedq.records.framing import BYTE_ORDER_MARK

MAX = 1000


@dataclass
class Stream:
    """A whole stream as the HTML standard has it read, line by line: what the framer must equal."""

    events: list[tuple[bytes, bytes, bytes]]
    """Id, type and data of each."""
    last_id: bytes = b""
    retry_s: float | None = None
    is_oversize: bool = False


def read(stream: bytes, data_bytes_max: int = MAX) -> Stream:
    found, event_id, kind, data = Stream([]), b"", b"", list[bytes]()
    line_bytes_max = max(data_bytes_max, LINE_BYTES_MIN) + len(b"data: ")
    *lines, tail = re.split(rb"\r\n|\r|\n", stream.removeprefix(BYTE_ORDER_MARK))
    for line in lines:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            found.last_id = event_id
            found.events += [(event_id, kind or b"message", b"\n".join(data))] if data else []
            kind, data = b"", []
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            kind = value
        elif field == b"id" and b"\0" not in value:
            event_id = value
        elif field == b"retry" and value.isdigit():
            found.retry_s = min(int(value[:12]) / 1000, RETRY_SAID_S_MAX)
        if len(line) > line_bytes_max or len(b"\n".join(data)) > data_bytes_max:
            found.is_oversize = True
            return found
    found.is_oversize = len(tail) > line_bytes_max
    return found


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
        if framer.refusal is not None:
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


# -- the standard ------------------------------------------------------------------------------------------

EVENTS: list[tuple[str, list[tuple[str | None, str, str]]]] = [
    ("data: hello||", [(None, "message", "hello")]),
    ("data:hello||", [(None, "message", "hello")]),
    ("data:  hello ||", [(None, "message", " hello ")]),
    ("data: a|data: b|data: c||", [(None, "message", "a\nb\nc")]),
    ("data: a||data: b||", [(None, "message", "a"), (None, "message", "b")]),
    ("data: a|||||data: b||", [(None, "message", "a"), (None, "message", "b")]),
    ("event: greeting|data: a||data: b||", [(None, "greeting", "a"), (None, "message", "b")]),
    ("data: a|event: greeting||", [(None, "greeting", "a")]),
    ("event: x|event: y|data: a||", [(None, "y", "a")]),
    ("event: x||data: a||", [(None, "message", "a")]),
    ("event:|data: a||", [(None, "message", "a")]),
    ("id: 1|data: a||data: b||", [("1", "message", "a"), ("1", "message", "b")]),
    ("id: 1|data: a||id|data: b||", [("1", "message", "a"), (None, "message", "b")]),
    ("id: 1||data: a||", [("1", "message", "a")]),
    ("id: 1|data: a||id: 2\0|data: b||", [("1", "message", "a"), ("1", "message", "b")]),
    ("id: ä€😀|data: ä€😀||", [("ä€😀", "message", "ä€😀")]),
    (": comment|data: a|:|:x|data: b||", [(None, "message", "a\nb")]),
    (":||:||data: a||", [(None, "message", "a")]),
    ("retry: 5|data: a||retry: x|data: b||", [(None, "message", "a"), (None, "message", "b")]),
    ("unknown: x|data: a|Data: b|data : c|dat: d||", [(None, "message", "a")]),
    (" data: a||data: b||", [(None, "message", "b")]),
    ("data: a:b: c||", [(None, "message", "a:b: c")]),
    ("data: a||data: unfinished|", [(None, "message", "a")]),
    ("data: a||data: unfinished", [(None, "message", "a")]),
    ("\ufeffdata: a||", [(None, "message", "a")]),
    ("data: a||\ufeffdata: b||", [(None, "message", "a")]),
    ("data: \0||", [(None, "message", "\0")]),
    (f"data: {'x' * 9_000}||", [(None, "message", "x" * 9_000)]),
    ("data: YHOO|data: +2|data: 10||", [(None, "message", "YHOO\n+2\n10")]),
    (
        ": test||data: first event|id: 1||data:second event|id||data:  third event||",
        [
            ("1", "message", "first event"),
            (None, "message", "second event"),
            (None, "message", " third event"),
        ],
    ),
    ("data||data|data||data:", [(None, "message", ""), (None, "message", "\n")]),
    ("\ufeff\ufeffdata: 1||", []),
    ("id: 1|data: 1||id: 2|data: 2|", [("1", "message", "1")]),
    ("id: 5|event: update||data: x||", [("5", "message", "x")]),
    ("Data: x| data: y|datum: z|nonsense||", []),
]
"""Streams, with ``|`` for the end of a line, and the id, type and data of each event."""


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("stream", "events"), EVENTS)
def test_an_event_stream_is_read_as_html_says_in_any_pieces(
    stream: str, events: list[tuple[str | None, str, str]], line_end: str
) -> None:
    sent = stream.replace("|", line_end).encode()
    found = [tuple(part.decode() for part in event) for event in read(sent, 2**20).events]
    assert [(event_id or None, kind, data) for event_id, kind, data in found] == events
    for size in {1, 2, 3, 7, max(len(sent), 1)}:
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        records, _ = records_of(EventFramer(max_record_bytes=2**20, envelope=True), pieces)
        envelopes = map(msgspec.json.decode, records)
        assert [(one["id"], one["event"], _text(one["data"])) for one in envelopes] == events


def _text(data: object) -> str:
    return data if isinstance(data, str) else msgspec.json.encode(data).decode()


@pytest.mark.parametrize(
    ("line", "retry_s"),
    [
        (b"retry: 3000", 3.0),
        (b"retry:0", 0.0),
        (b"retry: 3s", None),
        (b"retry: -1", None),
        (b"retry: " + b"9" * 500, 86_400),
    ],
)
def test_retry_is_a_whole_number_of_milliseconds_and_a_day_at_most(
    line: bytes, retry_s: float | None
) -> None:
    framer = EventFramer(max_record_bytes=MAX)
    records_of(framer, [line + b"\n"])
    assert framer.retry_s == retry_s


def test_a_line_that_never_ends_is_not_kept_for_ever() -> None:
    framer = EventFramer(max_record_bytes=MAX)
    pushed = 0
    while framer.refusal is None and pushed < 10 * LINE_BYTES_MIN:
        framer.push(b"x" * 1000)
        pushed += 1000
    assert pushed < 3 * LINE_BYTES_MIN


# -- any stream, cut anywhere --------------------------------------------------------------------------------

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
def test_a_stream_is_read_as_the_standard_says_whatever_the_bytes_and_the_cuts(
    stream: bytes, places: Sequence[int], types: set[str] | None, envelope: bool
) -> None:
    reference = read(stream)
    wanted = [
        (kind.decode("utf-8", "replace"), data)
        for _, kind, data in reference.events
        if types is None or kind.decode("utf-8", "replace") in types
    ]
    framer = EventFramer(max_record_bytes=MAX, types=types, envelope=envelope)
    records, oversize = records_of(framer, cut(stream, places))
    if envelope:
        assert [msgspec.json.decode(record)["event"] for record in records] == [kind for kind, _ in wanted]
    else:
        assert records == [data for _, data in wanted if data]
    assert oversize == reference.is_oversize
    if not oversize:
        assert framer.last_id == reference.last_id.decode("utf-8", "replace")
        assert framer.retry_s == reference.retry_s


# -- shapes and envelopes ----------------------------------------------------------------------------------


def test_an_envelope_holds_json_as_it_is_and_anything_else_as_a_string() -> None:
    framer = EventFramer(max_record_bytes=MAX, envelope=True)
    stream = b'data: {"a":\ndata:  1.10}\n\nid: 7\nevent: update\ndata: gr\xc3\xbc\xc3\x9fe "x"\n\ndata\n\n'
    assert records_of(framer, [stream])[0] == [
        b'{"id":null,"event":"message","data":{"a":  1.10}}',
        '{"id":"7","event":"update","data":"grüße \\"x\\""}'.encode(),
        b'{"id":"7","event":"message","data":""}',
    ]
