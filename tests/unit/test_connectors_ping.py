"""Pings: answered, not landed; and nothing else is taken for one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.records.exclusions import PING_BYTES_MAX, Ping, Pinged, literal_start
from feedq.records.framing import Framed
from feedq.records.turns import at_once

texts = st.text(alphabet="PING pong{}1\\n", max_size=8)


def take(pattern: str, answer: str, framed: Framed) -> tuple[Framed, bytes]:
    return at_once(Pinged(Ping(pattern=pattern, answer=answer)).take(framed))


def test_a_ping_is_answered_and_taken_out_of_the_lines() -> None:
    framed = Framed(lines=b"PING 1\na\nPING 2\nPING 3\nb\nPING 4\n")
    rest, answers = take("^PING (.*)$", r"PONG {1}\r\n", framed)
    assert rest == Framed(lines=b"a\nb\n")
    assert answers == b"PONG 1\r\nPONG 2\r\nPONG 3\r\nPONG 4\r\n"


def test_a_ping_is_taken_out_of_records_too() -> None:
    framed = Framed(records=(b"PING\r1", b"a", b"PING"), oversize=True)
    rest, answers = take(r"PING(?:\r(\d))?", "[{0}|{1}]", framed)
    assert rest == Framed(records=(b"a",), oversize=True)
    assert answers == b"[PING\r1|1][PING|]"


def test_a_record_that_merely_contains_a_ping_is_data() -> None:
    framed = Framed(lines=b'{"note":"PING 1"}\nxPING 1\nPING 1 \n PING 1\n')
    assert take(r"PING \d", "PONG", framed) == (framed, b"")


def test_json_pings_are_told_from_records_that_begin_alike() -> None:
    framed = Framed(lines=b'{"op":"ping","ts":17}\n{"op":"ping","ts":"x"}\n{"op":"trade"}\n')
    rest, answers = take(r'{"op":"ping","ts":(\d+)\}', r'{"op":"pong","ts":{1}}\n', framed)
    assert rest == Framed(lines=b'{"op":"ping","ts":"x"}\n{"op":"trade"}\n')
    assert answers == b'{"op":"pong","ts":17}\n'


def test_lines_without_a_ping_are_passed_on_as_they_are() -> None:
    framed = Framed(lines=b"a\nb\n")
    rest, answers = take("PING", "PONG", framed)
    assert rest is framed
    assert answers == b""
    assert take("PING", "PONG", Framed()) == (Framed(), b"")


@pytest.mark.parametrize(
    ("pattern", "start"),
    [
        ("^PING (.*)$", "PING "),
        ("PING", "PING"),
        (r"\{\"op\":\"ping\"", '{"op":"ping"'),
        ('{"op":"ping"}', '{"op":"ping"}'),
        ("PINGS?", "PING"),
        ("PI*NG", "P"),
        ("PI{0,2}NG", "P"),
        ("PI+NG", "P"),
        ("PING|HEARTBEAT", ""),
        ("(?i)ping", ""),
        (".*ping", ""),
        (r"\d+", ""),
        (r"ping\d+", "ping"),
        ("p[io]ng", "p"),
        ("", ""),
    ],
)
def test_the_text_that_a_pattern_begins_with(pattern: str, start: str) -> None:
    assert literal_start(pattern) == start


@given(st.text(alphabet=r"ab{}1,2*+?.^$|()[]\dé", max_size=8), st.text(alphabet="ab{}1,2é", max_size=6))
def test_whatever_a_pattern_matches_begins_with_that_text(pattern: str, record: str) -> None:
    try:
        ping = Ping(pattern=pattern, answer="x")
    except ValueError:
        return
    framed, answers = at_once(Pinged(ping).take(Framed(records=(record.encode(),))))
    assert bool(answers) != bool(framed)
    if answers:
        assert record.startswith(literal_start(pattern))


@given(
    st.sampled_from(["PING (.*)", ".*o.*", "P.*|.*g", "^p+$", r"\{1\}", "n", "1"]),
    st.lists(texts.filter(bool), max_size=8),
)
def test_lines_are_sorted_as_one_by_one(pattern: str, records: list[str]) -> None:
    lines = [record.replace("\n", "N").encode() for record in records]
    rest, answers = take(pattern, r"<{0}>", Framed(lines=b"".join(line + b"\n" for line in lines)))
    assert rest.lines == b"".join(line + b"\n" for line in lines if not re.fullmatch(pattern.encode(), line))
    assert answers == b"".join(b"<%b>" % line for line in lines if re.fullmatch(pattern.encode(), line))


def test_no_pattern_takes_a_time_that_doubles_with_each_byte() -> None:
    # With a backtracking engine some 2**40 steps; it would not come to an end within a day.
    framed = Framed(lines=b"PING " + b"a" * 40 + b"\n" + b"PING " + b"a" * 4000 + b"c\n")
    assert take("PING (a+)+b", "x", framed) == (framed, b"")
    assert take("PING (a|a?)+b", "x", framed) == (framed, b"")


def test_a_record_that_is_larger_than_any_ping_is_data() -> None:
    pinged = b"PING " + b"a" * PING_BYTES_MAX
    assert take("PING a+", "x", Framed(lines=pinged + b"\n"))[1] == b""
    assert take("PING a+", "x", Framed(lines=pinged[:PING_BYTES_MAX] + b"\n"))[1] == b"x"


@pytest.mark.parametrize(
    ("ping", "complaint"),
    [
        (
            {"pattern": "(", "answer": "x"},
            "is no regular expression of RE2, whose patterns take linear time: missing )",
        ),
        ({"pattern": r"(a)\1", "answer": "x"}, "no back references"),
        ({"pattern": "(?=a)b", "answer": "x"}, "no look-around"),
        ({"pattern": "(?:(?:a{1000}){1000}){9}", "answer": "x"}, "RE2"),
        ({"pattern": "a" * 1001, "answer": "x"}, "at most 1000 characters"),
        ({"pattern": "PI{,2}NG", "answer": "x"}, "{,2} is taken for plain text; write {0,2}"),
        ({"pattern": "a", "answer": "{1}"}, "{1} is beyond the 0 groups of source.ping.pattern"),
        ({"pattern": "(a)", "answer": "{token}"}, "{token} is no placeholder"),
        ({"pattern": "a", "answer": r"\q"}, "unknown escape"),
        ({"pattern": "", "answer": "x"}, "at least 1 character"),
        ({"pattern": "a", "answer": ""}, "at least 1 character"),
        ({"pattern": "a"}, "Field required"),
    ],
)
def test_what_cannot_be_a_ping_is_refused(ping: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Ping.model_validate(ping)
