"""What the tests' own source must notice before it may judge feedq."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.source import Connection, overlaps
from tests.source_process import Source


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with Source(rate=200.0, pad=5) as running:
        yield running


class Client:
    """A reader as feedq's connector is one."""

    def __init__(self, source: Source, feed: str, cursor: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", source.port), timeout=10)
        self.socket.sendall(json.dumps({"feed": feed, "from": cursor}).encode() + b"\n")
        self._lines = self.socket.makefile("rb")

    def seqs(self, count: int) -> list[int]:
        return [json.loads(self._lines.readline())["seq"] for _ in range(count)]

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.01)


def test_two_live_readers_of_one_feed_are_noticed(source: Source) -> None:
    one = Client(source, "shared")
    one.seqs(1)
    two = Client(source, "shared")
    two.seqs(1)
    assert [pair for pair in source.overlaps() if pair[0].feed == "shared"]
    one.close()
    two.close()


def test_a_cursor_beyond_what_was_sent_is_noticed(source: Source) -> None:
    client = Client(source, "ahead", cursor=10_000)
    until(lambda: any(c.feed == "ahead" and c.trouble for c in source.connections()))
    client.close()


def _connection(number: int, begin: float, end: float | None) -> Connection:
    return Connection(number, 1, begin, feed="f", hello_at=begin, closed_at=end)


def test_streams_that_follow_each_other_do_not_overlap() -> None:
    assert overlaps([_connection(1, 0, 1), _connection(2, 1, 2), _connection(3, 5, None)]) == []


def test_an_overlap_is_found_even_behind_a_short_stream() -> None:
    long, short, late = _connection(1, 0, 10), _connection(2, 1, 2), _connection(3, 9, None)
    assert overlaps([long, short, late]) == [(long, short), (long, late)]
    assert overlaps([long, short, late], ignored=[1]) == []
