"""The tests' own source: it must be right before it may judge feedq."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.source import Connection, fast_lines, overlaps
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

    def line(self) -> bytes:
        return self._lines.readline()

    def seqs(self, count: int) -> list[int]:
        return [json.loads(self.line())["seq"] for _ in range(count)]

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.01)


def test_records_are_numbered_from_one_without_gap(source: Source) -> None:
    client = Client(source, "gapless")
    assert client.seqs(50) == list(range(1, 51))
    client.close()


def test_a_reader_resumes_after_its_cursor_and_gets_what_fell_due_meanwhile(source: Source) -> None:
    first = Client(source, "resumed")
    first.seqs(5)
    first.close()
    until(lambda: "resumed" not in source.live())
    again = Client(source, "resumed", cursor=3)
    assert again.seqs(10) == list(range(4, 14))
    again.close()


def test_the_same_record_has_the_same_bytes_for_every_reader(source: Source) -> None:
    one, two = Client(source, "equal"), Client(source, "equal")
    assert [one.line() for _ in range(5)] == [two.line() for _ in range(5)]
    one.close()
    two.close()


def test_the_log_says_who_was_connected_when(source: Source) -> None:
    before = time.monotonic()
    client = Client(source, "logged", cursor=None)
    client.seqs(3)
    port = client.socket.getsockname()[1]
    client.close()
    until(lambda: "logged" not in source.live())
    (seen,) = [c for c in source.connections() if c.feed == "logged"]
    assert (seen.peer_port, seen.cursor, seen.trouble) == (port, None, "")
    assert seen.hello_at is not None
    assert seen.first_record_at is not None
    assert seen.closed_at is not None
    assert before <= seen.connected_at <= seen.hello_at <= seen.first_record_at <= seen.closed_at
    assert source.sent()["logged"] >= 3


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


def test_fast_mode_sends_exactly_the_lines_it_announces(source: Source) -> None:
    source.behave("fast", ["fast"], count=20_000, pad=30)
    client = Client(source, "fast", cursor=7)
    expected = fast_lines("fast", 20_000, pad=30).splitlines(keepends=True)[7:]
    assert [client.line() for _ in expected] == expected
    client.close()


def test_a_silent_feed_sends_nothing_until_it_may_stream_again(source: Source) -> None:
    source.behave("silent", ["quiet"])
    client = Client(source, "quiet")
    until(lambda: "quiet" in source.live())
    assert source.sent()["quiet"] == 0
    source.behave("stream", ["quiet"])
    assert client.seqs(3) == [1, 2, 3]
    client.close()


def test_spoiled_feeds_mix_bad_lines_between_gapless_good_ones(source: Source) -> None:
    source.behave("spoiled", ["spoiled"])
    client = Client(source, "spoiled")
    good: list[int] = []
    bad = 0
    while len(good) < 40:
        try:
            good.append(json.loads(client.line())["seq"])
        except (ValueError, KeyError):
            bad += 1
    assert good == list(range(1, 41))
    assert bad in (7, 8)
    client.close()


def test_reset_and_refused_sources_look_so_to_their_client(source: Source) -> None:
    source.behave("reset", ["cross"])
    client = Client(source, "cross")
    with pytest.raises(ConnectionResetError):
        client.line()
    client.close()
    source.refuse()
    with pytest.raises(ConnectionRefusedError):
        Client(source, "cross")
    source.accept()
    source.behave("stream", ["cross"])
    client = Client(source, "cross")
    assert client.seqs(1) == [1]
    client.close()


def _connection(number: int, begin: float, end: float | None) -> Connection:
    return Connection(number, 1, begin, feed="f", hello_at=begin, closed_at=end)


def test_streams_that_follow_each_other_do_not_overlap() -> None:
    assert overlaps([_connection(1, 0, 1), _connection(2, 1, 2), _connection(3, 5, None)]) == []


def test_an_overlap_is_found_even_behind_a_short_stream() -> None:
    long, short, late = _connection(1, 0, 10), _connection(2, 1, 2), _connection(3, 9, None)
    assert overlaps([long, short, late]) == [(long, short), (long, late)]
    assert overlaps([long, short, late], ignored=[1]) == []
