"""Records that are no part of a feed: pings, which are answered, and what is ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.tcp import PING_BYTES_MAX, Ping, Pinged
from feedq.connectors.websocket import Ignored, Rule
from feedq.records.framing import Framed, at_once

BEAT: Rule = {"/event": "heartbeat"}


@pytest.mark.parametrize(
    ("rule", "record", "is_ignored"),
    [
        (BEAT, b'{"event": "heartbeat", "x": 1}', True),
        (BEAT, b'{"event": "\\u0068eartbeat"}', True),
        (BEAT, b'{"event": "heartbeats"}', False),
        (BEAT, b'{"data": {"event": "heartbeat"}}', False),
        (BEAT, b"heartbeat", False),
        (BEAT, b"[]", False),
        ({"/1": "hb"}, b'[17, "hb"]', True),
        ({"/a": 1, "/b": 2}, b'{"a": 1, "b": 2}', True),
        ({"/a": 1, "/b": 2}, b'{"a": 1, "b": 3}', False),
        ({"/a": 1, "/b": 2}, b'{"a": 1}', False),
        ({"/a": None}, b'{"a": null}', True),
        ({"/a": None}, b"{}", False),
        ({"/a": True}, b'{"a": true}', True),
        ({"/a": True}, b'{"a": 1}', False),
        ({"/a": 1}, b'{"a": true}', False),
        ({"/a": 1}, b'{"a": 1.0}', True),
        ({"": "ping"}, b'"ping"', True),
    ],
)
def test_a_record_that_has_the_values_is_ignored(rule: Rule, record: bytes, is_ignored: bool) -> None:
    ignored = Ignored([{"/never": "there"}, rule])
    kept = b'{"seq": 1}'
    as_lines = at_once(ignored.take(Framed(lines=kept + b"\n" + record + b"\n" + kept + b"\n")))
    assert as_lines.lines.count(b"\n") == (2 if is_ignored else 3)
    as_records = at_once(ignored.take(Framed(records=(kept, record, kept), oversize=True)))
    assert as_records.records == ((kept, kept) if is_ignored else (kept, record, kept))
    assert as_records.oversize


# -- pings ---------------------------------------------------------------------------------------------


def take(prefix: str, answer: str, framed: Framed) -> tuple[Framed, bytes]:
    return at_once(Pinged(Ping(prefix=prefix, answer=answer)).take(framed))


def test_a_ping_is_answered_and_taken_out() -> None:
    framed = Framed(lines=b"PING 1\na\nPING 2\nPING\nb\nPING 4\n")
    assert take("PING", r"PONG{rest}\r\n", framed) == (
        Framed(lines=b"a\nb\n"),
        b"PONG 1\r\nPONG 2\r\nPONG\r\nPONG 4\r\n",
    )
    framed = Framed(records=(b"PING\r1", b"a", b"PING\r"), oversize=True)
    assert take(r"PING\r", "<{rest}>", framed) == (Framed(records=(b"a",), oversize=True), b"<1><>")


def test_a_record_that_merely_contains_a_ping_or_is_larger_than_one_is_data() -> None:
    framed = Framed(lines=b'{"note":"PING 1"}\nxPING 1\n PING 1\nPIN\nping 1\n')
    assert take("PING", "PONG", framed) == (framed, b"")
    largest = b"PING".ljust(PING_BYTES_MAX, b"a")
    assert take("PING", "x", Framed(lines=largest + b"\n" + largest + b"a\n")) == (
        Framed(lines=largest + b"a\n"),
        b"x",
    )


@given(
    st.sampled_from(["PING ", "P", "n", "{1}", "."]),
    st.lists(st.text(alphabet="PING pong{}1.", min_size=1, max_size=8), max_size=8),
)
def test_lines_are_sorted_as_one_by_one(prefix: str, texts: list[str]) -> None:
    lines = [text.encode() for text in texts]
    rest, answers = take(prefix, r"\x7b{rest}>", Framed(lines=b"".join(line + b"\n" for line in lines)))
    begin = prefix.encode()
    assert rest.lines == b"".join(line + b"\n" for line in lines if not line.startswith(begin))
    assert answers == b"".join(b"{%b>" % line.removeprefix(begin) for line in lines if line.startswith(begin))
