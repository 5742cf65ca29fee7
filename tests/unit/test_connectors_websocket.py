"""Options of the websocket connector, and its reading of frames against the library's own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from feedq.connectors.base import parse_options
from feedq.connectors.websocket import MessageFramer, WebsocketOptions
from feedq.connectors.websocket_connection import MessageReader
from feedq.records.batch import Records
from feedq.records.turns import at_once
from tests.contract.websocket_server import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, close_frame, frame

URL = "ws://feeds.example/stream"
MAX = 70_000
"""A limit beyond which a frame's length takes eight bytes."""


def options(**source: Any) -> WebsocketOptions:
    parsed = parse_options("websocket", {"url": URL, **source})
    assert isinstance(parsed, WebsocketOptions)
    return parsed


# -- options -------------------------------------------------------------------------------------------


def test_one_subscription_or_subprotocol_needs_no_list() -> None:
    assert options(subscribe="a", subprotocols="v1").subscribe == ("a",)
    assert options(subscribe="a", subprotocols="v1").subprotocols == ("v1",)
    assert options(subscribe=["a", "b"]).subscribe == ("a", "b")
    assert options().subscribe == ()


def test_the_port_is_that_of_the_scheme_unless_it_is_given() -> None:
    assert str(options().location) == "ws://feeds.example:80"
    assert str(options(url="wss://feeds.example").location) == "wss://feeds.example:443"
    assert str(options(url="wss://[::1]:8443/a?b").location) == "wss://[::1]:8443"


# -- frames --------------------------------------------------------------------------------------------


class Alone:
    """What the library alone makes of a stream."""

    def __init__(self, *pieces: bytes) -> None:
        self.protocol = ClientProtocol(parse_uri(URL), state=State.OPEN, max_size=MAX)
        self.messages: list[bytes] = []
        fragments = b""
        for piece in pieces:
            self.protocol.receive_data(piece)
        for event in self.protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                fragments += event.data
                if event.fin:
                    self.messages.append(fragments)
                    fragments = b""


class Cut:
    """What our reader makes of it."""

    def __init__(self, *pieces: bytes) -> None:
        self.protocol = ClientProtocol(parse_uri(URL), state=State.OPEN, max_size=MAX)
        self.reader = MessageReader(self.protocol, max_message_bytes=MAX)
        self.messages: list[bytes] = []
        for piece in pieces:
            if self.reader.is_open:
                self.messages += at_once(self.reader.push(piece))


SIZES = st.one_of(st.integers(0, 300), st.sampled_from((125, 126, 65_535, 65_536, MAX, MAX + 1)))
PAYLOADS = SIZES.map(lambda size: (b"0123456789abcdef" * (size // 16 + 1))[:size])
WHOLE = st.builds(frame, PAYLOADS, st.sampled_from((TEXT, BINARY)))
CONTROL = st.builds(frame, st.binary(max_size=125), st.sampled_from((PING, PONG)))
FRAGMENTS = st.lists(st.one_of(st.binary(max_size=200), PAYLOADS), min_size=1, max_size=4).map(
    lambda parts: b"".join(
        frame(part, CONTINUATION if n else TEXT, fin=n == len(parts) - 1) for n, part in enumerate(parts)
    )
)
WRONG = st.one_of(
    st.builds(frame, st.binary(max_size=130), st.integers(0, 15), fin=st.booleans(), rsv1=st.booleans()),
    st.sampled_from(
        (frame(b"", CLOSE), close_frame(1000), close_frame(4000, "enough"), b"\x81\x80", b"\xff")
    ),
)
STREAMS = st.lists(st.one_of(WHOLE, WHOLE, FRAGMENTS, CONTROL, WRONG), max_size=12).map(b"".join)


@given(stream=STREAMS, cuts=st.lists(st.floats(0, 1), max_size=8))
def test_however_it_is_cut_a_stream_reads_as_by_the_library_alone(stream: bytes, cuts: list[float]) -> None:
    places = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    alone, cut = Alone(stream), Cut(*(stream[begin:end] for begin, end in pairwise(places)))
    assert cut.messages == alone.messages
    assert cut.protocol.state is alone.protocol.state
    assert cut.protocol.close_sent == alone.protocol.close_sent
    assert cut.protocol.close_rcvd == alone.protocol.close_rcvd
    assert len(cut.protocol.data_to_send()) == len(alone.protocol.data_to_send())


def test_pings_and_pongs_bring_no_data_and_a_part_of_a_message_does() -> None:
    reader = Cut().reader
    for piece, brings in (
        (frame(b"!", PING) + frame(b"!", PONG), False),
        (frame(b"12")[:3], True),
        (frame(b"12")[3:], True),
        (frame(b"!", PING), False),
        (frame(b"3", fin=False), True),
        (frame(b"!", PONG), False),
        (frame(b"", CONTINUATION), True),
        (frame(b"4"), True),
    ):
        at_once(reader.push(piece))
        assert reader.brought_data is brings


# -- records -------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.text("ab{}\r\n", max_size=5), st.text(max_size=5)).map(str.encode)))
def test_a_message_is_a_record_whatever_is_in_it(messages: list[bytes]) -> None:
    framed = MessageFramer(options(format="text")).push(messages)
    assert split(framed) == [message for message in messages if message]


@given(st.lists(st.text("a\r\n", max_size=6).map(str.encode)))
def test_lines_of_messages_are_records(messages: list[bytes]) -> None:
    framed = MessageFramer(options(format="text", split="lines")).push(messages)
    lines = [line.removesuffix(b"\r") for message in messages for line in message.split(b"\n")]
    # A carriage return at the very end of a message ends its last line too, once a newline is put behind it.
    assert split(framed) == [line for line in lines if line]


def split(records: Records) -> list[bytes]:
    return list(records.records or ()) or (records.lines or b"").splitlines()
