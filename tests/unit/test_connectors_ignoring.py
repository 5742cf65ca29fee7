"""Records that are no part of a feed."""

from __future__ import annotations

import pytest

from feedq.records.exclusions import Ignored, Rule
from feedq.records.framing import Framed
from feedq.records.turns import at_once

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


def test_nothing_may_be_left() -> None:
    assert not at_once(Ignored([BEAT]).take(Framed(lines=b'{"event": "heartbeat"}\n')))
    assert not at_once(Ignored([BEAT]).take(Framed(records=(b'{"event": "heartbeat"}',))))
    assert not at_once(Ignored([BEAT]).take(Framed()))
