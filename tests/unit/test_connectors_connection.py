"""A connection's timing and bounds, on an event loop whose clock is moved by hand."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.base import Sockets
from feedq.connectors.tcp import TcpOptions
from feedq.connectors.websocket_connection import Pulse
from feedq.connectors.wire.connection import READ_BYTES_MIN, SourceConnection
from feedq.connectors.wire.dialing import Dialed, explain, reason
from feedq.errors import SourceSilent, SourceUnavailable
from feedq.records.turns import PIECE_BYTES

OPTIONS = TcpOptions(url="tcp://feeds.example:7001")
ENDPOINT = OPTIONS.location

DAY_S = 86_400.0


class ManualLoop(asyncio.SelectorEventLoop):
    """Timers fire when `advance` has brought the clock past them."""

    def __init__(self) -> None:
        self._now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        return self._now_s

    async def advance(self, seconds: float) -> None:
        self._now_s += seconds
        for _ in range(3):  # a timer may set another one that is due as well
            await asyncio.sleep(0)


class Wire(asyncio.Transport):
    """The event loop's side of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reading_paused = False
        self.is_aborted = False

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def abort(self) -> None:
        self.is_aborted = True


class Guard(Sockets):
    """Counts the sockets it was told of."""

    def __init__(self) -> None:
        self.watched: list[int] = []

    def watch(self, fileno: int) -> None:
        self.watched.append(fileno)

    def forget(self, fileno: int) -> None:
        self.watched.remove(fileno)


class Room:
    """What the worker has left for received bytes."""

    def __init__(self) -> None:
        self.left = 1_000_000

    def take(self, size: int) -> None:
        self.left -= size

    def give_back(self, size: int) -> None:
        self.left += size


class Bench:
    """A connection with both of its sides at hand."""

    def __init__(self, loop: ManualLoop, *, idle_timeout_s: float, buffer_bytes: int = 100) -> None:
        self.loop = loop
        self.wire = Wire()
        self.guard = Guard()
        self.room = Room()
        ours, self._theirs = socket.socketpair()
        with ours:
            self.connection = SourceConnection(
                OPTIONS,
                Dialed(ours, self.guard),
                self.room,
                endpoint=ENDPOINT,
                idle_timeout_s=idle_timeout_s,
                buffer_bytes=buffer_bytes,
            )
        self.connection.connection_made(self.wire)

    def arrive(self, data: bytes) -> None:
        """As the event loop hands over what it has read: as much at a time as there is a buffer for."""
        while data:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]

    def end(self) -> None:
        self.connection.close()
        self._theirs.close()
        assert not self.guard.watched
        assert self.room.left == 1_000_000, "the worker lost room for good"

    async def advance(self, seconds: float) -> None:
        await self.loop.advance(seconds)


def on_manual_loop(
    *, buffer_bytes: int = 100
) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """A test of a connection whose source may be silent for a minute."""

    def decorate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ManualLoop)
            bench = Bench(loop, idle_timeout_s=60.0, buffer_bytes=buffer_bytes)
            try:
                await test(bench)
            finally:
                bench.end()

        def run() -> None:
            with asyncio.Runner(loop_factory=ManualLoop) as runner:
                runner.run(main())

        return run

    return decorate


@on_manual_loop()
async def test_each_byte_postpones_the_idle_timeout(bench: Bench) -> None:
    for _ in range(10):
        await bench.advance(59.0)
        bench.arrive(b"\n")
        assert await bench.connection.receive() == b"\n"
    await bench.advance(59.9)
    assert not bench.wire.is_aborted
    await bench.advance(0.1)
    assert bench.wire.is_aborted


@on_manual_loop()
async def test_connections_that_have_ended_are_forgotten_long_before_they_would_be_silent(
    bench: Bench,
) -> None:
    ended = []
    for _ in range(10):
        other = Bench(bench.loop, idle_timeout_s=DAY_S)
        ended.append(ref(other.connection))
        other.end()
    del other
    gc.collect()
    assert sum(connection() is not None for connection in ended) <= 1
    await bench.advance(60.0)
    assert bench.wire.is_aborted, "the others took its timer along"


@on_manual_loop()
async def test_what_came_before_the_silence_is_delivered_first(bench: Bench) -> None:
    bench.arrive(b"a")
    await bench.advance(60.0)
    assert await bench.connection.receive() == b"a"
    with pytest.raises(SourceSilent):
        await bench.connection.receive()


@on_manual_loop()
async def test_a_source_that_we_hold_back_is_not_silent(bench: Bench) -> None:
    bench.arrive(b"x" * 100)
    assert bench.wire.is_reading_paused
    await bench.advance(DAY_S)
    assert not bench.wire.is_aborted
    await bench.advance(30.0)
    assert len(await bench.connection.receive()) == 100
    assert not bench.wire.is_reading_paused
    # Silence counts from when we listened again.
    await bench.advance(59.9)
    assert not bench.wire.is_aborted
    await bench.advance(0.1)
    assert bench.wire.is_aborted


@on_manual_loop()
async def test_an_error_of_the_network_comes_after_the_data_and_names_the_endpoint(bench: Bench) -> None:
    bench.arrive(b"ab")
    bench.connection.connection_lost(ConnectionResetError())
    assert await bench.connection.receive() == b"ab"
    for _ in range(2):
        with pytest.raises(
            SourceUnavailable, match=r"^tcp://feeds\.example:7001: connection reset by the peer$"
        ):
            await bench.connection.receive()


@on_manual_loop()
async def test_a_connection_that_is_made_after_it_was_given_up_is_cut(bench: Bench) -> None:
    bench.connection.close()
    late = Wire()
    bench.connection.connection_made(late)
    assert late.is_aborted


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "connection refused; does the source run"),
        (ConnectionResetError(), "connection reset by the peer"),
        (BrokenPipeError(), "connection reset by the peer"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "(Name or service not known); check",
        ),
        (TimeoutError(), "no answer (timed out)"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "TLS failed: "),
        (OSError("no number"), "OSError: no number"),
    ],
)
def test_every_error_of_the_network_is_told_in_words(error: OSError, words: str) -> None:
    assert words in reason(error)
    assert str(explain(error, ENDPOINT)) == f"tcp://feeds.example:7001: {reason(error)}"


@on_manual_loop()
async def test_what_waits_to_be_taken_burdens_the_worker(bench: Bench) -> None:
    bench.arrive(b"x" * 60)
    assert bench.room.left == 1_000_000 - 60
    data = await bench.connection.receive()
    assert bench.room.left == 1_000_000
    bench.connection.put_back(data[:10])
    assert bench.room.left == 1_000_000 - 10


@on_manual_loop()
async def test_much_that_arrived_at_once_comes_in_pieces_with_a_turn_for_others_between_them(
    bench: Bench,
) -> None:
    sent = bytes(range(256)) * (5 * PIECE_BYTES // 512)
    bench.arrive(sent)
    assert bench.wire.is_reading_paused
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    first = bytes(await bench.connection.receive())
    assert not turns, "it was there"
    assert bench.room.left == 1_000_000 - len(sent) + PIECE_BYTES
    second = bytes(await bench.connection.receive())
    assert turns, "nobody else had a turn"
    assert bench.wire.is_reading_paused, "there is more to be taken"
    third = bytes(await bench.connection.receive())
    assert [len(first), len(second), len(third)] == [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES // 2]
    assert first + second + third == sent
    assert not bench.wire.is_reading_paused


@on_manual_loop(buffer_bytes=10_000)
async def test_a_worker_without_room_reads_little_and_not_before_it_was_taken(bench: Bench) -> None:
    bench.room.left = READ_BYTES_MIN + 100
    assert len(bench.connection.get_buffer(-1)) == READ_BYTES_MIN + 100
    bench.room.left = -5
    assert len(bench.connection.get_buffer(-1)) == READ_BYTES_MIN
    bench.arrive(b"x" * 10)
    assert bench.connection.is_paused
    assert bytes(await bench.connection.receive()) == b"x" * 10
    assert not bench.connection.is_paused, "with nothing on its way it would starve"
    bench.room.left = 1_000_000


def pulse(*, ping: float = 20, answer: float = 10, idle: float = 60) -> Pulse:
    return Pulse(ping_interval_s=ping, ping_timeout_s=answer, idle_timeout_s=idle, now=100)


def test_a_ping_that_nothing_follows_gives_the_source_up_and_another_ping_does_not_put_that_off() -> None:
    beat = pulse(ping=4)
    beat.pinged(104)
    beat.pinged(108)
    assert (beat.ping_at, beat.unanswered_at) == (112, 114)


def test_only_messages_keep_a_source_from_being_silent() -> None:
    beat = pulse()
    beat.heard(150, message=True)
    beat.heard(205, message=False)
    assert beat.silent_at == 210


@given(
    st.lists(st.tuples(st.floats(0, 30), st.sampled_from(("heard", "message", "look"))), max_size=40),
    st.sampled_from((0.0, 5.0, 20.0)),
    st.sampled_from((0.0, 10.0)),
)
def test_what_is_heard_never_makes_anything_due_earlier(
    steps: list[tuple[float, str]], ping: float, idle: float
) -> None:
    beat, now = pulse(ping=ping, idle=idle), 100.0
    for wait, step in steps:
        announced = beat.next_at
        now += wait
        if step != "look":
            beat.heard(now, message=step == "message")
            assert beat.next_at >= announced
        elif beat.ping_at <= now:
            beat.pinged(now)
            assert beat.ping_at > now
