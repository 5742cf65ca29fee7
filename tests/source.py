"""A resumable source of numbered records, in a process of its own, that knows who was connected when.

A client says ``{"feed": name, "from": cursor}`` on a line; the source answers with the records of that feed
after the cursor, one JSON object a line: ``{"feed": name, "seq": n, "at": epoch seconds, "pad": "x…"}``.
Record ``n`` of a feed is due at ``start + (n - 1) / rate``, where ``start`` is the feed's first hello: who
reconnects gets at once what fell due meanwhile, and the same record always has the same bytes. So a record
lost or landed twice shows in the table, and two readers of one feed show in the source's log.

Invariants: times are ``time.monotonic()``, which all processes of a machine share; a connection counts as
live from its hello to its close; one timer serves every feed, so thousands cost little. The process ends when
its standard input closes, that is, with whoever started it.

It does not check what its clients do with the records; `tests.cluster` does. Run by `Source`, or by hand::

    python -m tests.source --rate 20
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import uvloop

HELLO_BYTES_MAX = 64 * 1024
RECORDS_PER_PUMP_MAX = 5_000
"""Bounds how long one backlog may keep the other feeds waiting."""
PAUSED_S = 0.01
"""How soon to look again whether a client that is held back takes more."""
BAD_LINES = (
    b"this is no JSON",
    b'{"feed": "unfinished", "seq":',
    b'{"invalid": "utf-8 \xff\xfe"}',
    b'{"nul": "a\\u0000b"}',
)


@dataclass(slots=True)
class Connection:
    """One connection as the source saw it; times are monotonic seconds."""

    id: int
    feed: str = ""
    cursor: int | None = None
    hello_at: float | None = None
    first_record_at: float | None = None
    last_seq: int = 0
    closed_at: float | None = None
    trouble: str = ""

    def is_live(self) -> bool:
        return self.hello_at is not None and self.closed_at is None


@dataclass(slots=True)
class FeedState:
    """What the source knows of a feed: when its time began, and what it sent."""

    started_at: float
    started_epoch: float
    sent: int = 0


def record(feed: str, seq: int, *, at: float, pad: int) -> bytes:
    """The one and only form of record ``seq``."""
    return b'{"feed": "%b", "seq": %d, "at": %.6f, "pad": "%b"}\n' % (feed.encode(), seq, at, b"x" * pad)


class SourceServer:
    """All feeds of the source, on one loop."""

    def __init__(self, *, rate: float, pad: int, age_s: float) -> None:
        """``age_s``: how long ago the time of each feed began."""
        self.rate, self.age_s = rate, age_s
        self.pad = pad
        self.feeds: dict[str, FeedState] = {}
        self.log: list[Connection] = []
        self.live: dict[int, Reader] = {}
        self.default_mode = "stream"
        self.modes: dict[str, str] = {}
        self.spoiled_every = 0
        """In mode `spoiled` a bad line follows every so many good records."""
        self._due: list[tuple[float, int, Reader]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Reader(self), "127.0.0.1", self.port, backlog=4_096, reuse_address=True
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def mode(self, feed: str) -> str:
        return self.modes.get(feed, self.default_mode)

    def state(self, feed: str) -> FeedState:
        if feed not in self.feeds:
            self.feeds[feed] = FeedState(time.monotonic() - self.age_s, time.time() - self.age_s)
        return self.feeds[feed]

    def schedule(self, at: float, reader: Reader) -> None:
        """Have ``reader`` pumped at ``at``; an earlier wish of the same reader is void."""
        reader.due_at = at
        heapq.heappush(self._due, (at, reader.log.id, reader))
        if self._timer is None or at < self._timer_at - 0.001:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def _arm(self) -> None:
        self._timer_at = self._due[0][0]
        delay_s = max(0.002, self._timer_at - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        try:
            while self._due and self._due[0][0] <= now:
                at, _, reader = heapq.heappop(self._due)
                if at == reader.due_at:
                    reader.pump(now)
        finally:
            # Whatever goes wrong with one reader, the others are served.
            if self._due and self._timer is None:
                self._arm()

    # -- control -------------------------------------------------------------------------------------

    async def serve_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            answer = await self.command(json.loads(line))
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def command(self, ask: Mapping[str, Any]) -> Any:
        match ask["op"]:
            case "connections":
                return [asdict(c) for c in self.log[ask["since"] :]]
            case "streaming":
                began = [
                    r.log.first_record_at for r in self.live.values() if r.log.first_record_at is not None
                ]
                return {"feeds": len(began), "last_began_at": max(began, default=0.0)}
            case "sent":
                return {name: feed.sent for name, feed in self.feeds.items()}
            case "mode":
                self.set_mode(ask["mode"], ask["feeds"], count=ask["count"])
            case "cut":
                for reader in tuple(self.live.values()):
                    if ask["feeds"] is None or reader.log.feed in ask["feeds"]:
                        reader.reset()
            case "usage":
                used = resource.getrusage(resource.RUSAGE_SELF)
                return {"cpu_s": used.ru_utime + used.ru_stime}
            case unknown:
                raise ValueError(f"unknown control operation {unknown!r}")
        return None

    def set_mode(self, mode: str, feeds: list[str] | None, *, count: int) -> None:
        if feeds is None:
            self.default_mode = mode
            self.modes.clear()
        if mode == "spoiled":
            self.spoiled_every = count
        for feed in feeds or ():
            self.modes[feed] = mode
        for reader in tuple(self.live.values()):
            if feeds is None or reader.log.feed in feeds:
                reader.begin()


class Reader(asyncio.Protocol):
    """One connected client."""

    def __init__(self, server: SourceServer) -> None:
        self.server = server
        self.log: Connection
        self.due_at = 0.0
        self._transport: asyncio.Transport
        self._heard = b""
        self._feed: FeedState
        self._next_seq = 0
        self._bad = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports in all but their base class.
        self._transport = cast(asyncio.Transport, transport)
        self.log = Connection(len(self.server.log))
        self.server.log.append(self.log)
        self.server.live[self.log.id] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.closed_at = time.monotonic()
        self.server.live.pop(self.log.id, None)

    def data_received(self, data: bytes) -> None:
        if self.log.hello_at is not None:
            return
        self._heard += data
        hello, newline, _ = self._heard.partition(b"\n")
        if newline:
            self._greet(hello)
        elif len(self._heard) > HELLO_BYTES_MAX:
            self._refuse("hello without end")

    def _greet(self, hello: bytes) -> None:
        try:
            said = json.loads(hello)
            feed, cursor = str(said["feed"]), said.get("from")
        except (ValueError, KeyError, TypeError) as error:
            self._refuse(f"hello {hello[:200]!r}: {error!r}")
            return
        self.log.feed, self.log.cursor, self.log.hello_at = feed, cursor, time.monotonic()
        self._feed = self.server.state(feed)
        self._next_seq = int(cursor or 0) + 1
        if self._next_seq > self._feed.sent + 1:
            self.log.trouble = f"resumes after {cursor}, but only {self._feed.sent} were ever sent"
        self.begin()

    def _refuse(self, why: str) -> None:
        self.log.trouble = why
        self._transport.abort()

    def begin(self) -> None:
        """Do what the feed's mode asks, now that hello or mode are new."""
        if not self.log.is_live():
            return
        match self.server.mode(self.log.feed):
            case "stream" | "spoiled":
                self.pump(time.monotonic())
            case "silent":
                pass

    def pump(self, now: float) -> None:
        """Send what is due and come back when the next record is."""
        mode = self.server.mode(self.log.feed)
        if self.log.closed_at is not None or mode not in ("stream", "spoiled"):
            return
        if self._paused:
            self.server.schedule(now + PAUSED_S, self)
            return
        feed, rate, begin = self._feed, self.server.rate, self._next_seq
        due = int((now - feed.started_at) * rate) + 1
        end = min(due, begin + RECORDS_PER_PUMP_MAX - 1)
        lines = [
            record(self.log.feed, n, at=feed.started_epoch + (n - 1) / rate, pad=self.server.pad)
            for n in range(begin, end + 1)
        ]
        if mode == "spoiled":
            lines = self._spoil(begin, lines)
        if lines:
            self._transport.write(b"".join(lines))
            self._next_seq = end + 1
            self._sent(end)
        self.server.schedule(max(feed.started_at + (self._next_seq - 1) / rate, now + 0.001), self)

    def _spoil(self, begin: int, lines: list[bytes]) -> list[bytes]:
        spoiled, every = [], self.server.spoiled_every
        for n, line in enumerate(lines, start=begin):
            spoiled.append(line)
            if n % every == 0:
                spoiled.append(BAD_LINES[(n // every) % len(BAD_LINES)] + b"\n")
        return spoiled

    def _sent(self, seq: int) -> None:
        if self.log.first_record_at is None:
            self.log.first_record_at = time.monotonic()
        self.log.last_seq = seq
        self._feed.sent = max(self._feed.sent, seq)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def reset(self) -> None:
        """End the connection with RST, as a crashed peer's kernel would."""
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def overlaps(
    connections: Iterable[Connection], *, ignored: Iterable[int] = ()
) -> list[tuple[Connection, Connection]]:
    """Pairs of connections of one feed that were live at the same moment, but for the ``ignored`` ids."""
    skip = set(ignored)
    by_feed: dict[str, list[Connection]] = {}
    for connection in connections:
        if connection.hello_at is not None and connection.id not in skip:
            by_feed.setdefault(connection.feed, []).append(connection)
    found = []
    for of_feed in by_feed.values():
        of_feed.sort(key=lambda c: c.hello_at or 0.0)
        reigning = of_feed[0]
        for following in of_feed[1:]:
            assert following.hello_at is not None
            if reigning.closed_at is None or following.hello_at < reigning.closed_at:
                found.append((reigning, following))
            if (following.closed_at or float("inf")) >= (reigning.closed_at or float("inf")):
                reigning = following
    return found


async def main(rate: float, pad: int, age_s: float) -> None:
    """Serve until standard input closes; the first line on standard output says where."""
    server = SourceServer(rate=rate, pad=pad, age_s=age_s)
    await server.listen()
    control = await asyncio.start_server(server.serve_control, "127.0.0.1", 0)
    ports = {"port": server.port, "control": control.sockets[0].getsockname()[1], "pid": os.getpid()}
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), gone.set)
    await gone.wait()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    parser = argparse.ArgumentParser(description="Resumable source of numbered records, for tests.")
    parser.add_argument("--rate", type=float, default=20.0, help="records per second and feed")
    parser.add_argument("--pad", type=int, default=40, help="extra bytes in each record")
    parser.add_argument("--age", type=float, default=0.0, help="seconds since the first record was due")
    options = parser.parse_args()
    uvloop.run(main(options.rate, options.pad, options.age))
