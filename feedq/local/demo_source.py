r"""The source of `feedq up --demo`: a dozen AIS receivers that replay what ships once sent, and can resume.

A client says ``{"feed": "coastguard/ais-01", "from": 17}`` on a line (``null`` at first) and gets the records
after that one, each on a line::

    {"feed": "coastguard/ais-01", "seq": 18, "at": "2026-11-20T06:31:00.250+00:00", "nmea": "!AIVDM,…"}

Record ``seq`` of a feed always carries the same message, so a record lost or landed twice shows in the table.
Records fall due at the feed's rate whether or not anybody is connected: who comes back gets at once what fell
due meanwhile. Time stands still for a feed until its first client since this process started; there is no
backlog of the night.

Runs as a process of its own: ``python -m feedq.local.demo_source --port 16000``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files

import orjson

RATES: Mapping[str, float] = {
    f"coastguard/ais-{number:02}": rate
    for number, rate in enumerate((2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 40), start=1)
}
"""Records a second of each feed."""
HELLO_BYTES_MAX = 64 * 1024
HELLO_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing for this long is given up."""
RECORDS_PER_WRITE_MAX = 1_000
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Timetable:
    """When the records of a feed fall due. ``began`` is the moment at which record ``base`` had been sent."""

    base: int
    began: datetime
    rate: float

    def last_due(self, now: datetime) -> int:
        return self.base + max(0, int((now - self.began).total_seconds() * self.rate))

    def due_at(self, seq: int) -> datetime:
        return self.began + timedelta(seconds=(seq - self.base) / self.rate)


@cache
def sample() -> tuple[str, ...]:
    return tuple((files("feedq.local") / "demo" / "ais.nmea").read_text("ascii").split("\n"))


def record(feed: str, seq: int, *, due_at: datetime) -> bytes:
    """Record ``seq`` of a feed as a line."""
    lines = sample()
    # Each feed begins elsewhere in the sample, so that no two tell the same at the same time.
    offset = 73 * sorted(RATES).index(feed)
    said = {"feed": feed, "seq": seq, "at": due_at.isoformat(timespec="milliseconds")}
    return orjson.dumps({**said, "nmea": lines[(seq + offset) % len(lines)]}) + b"\n"


def parse_hello(line: bytes) -> tuple[str, int]:
    """The feed and the last record it has. Raises `ValueError`."""
    hello = orjson.loads(line)
    if not isinstance(hello, dict) or hello.get("feed") not in RATES:
        raise ValueError("a hello names one of the feeds, in 'feed'")
    cursor = hello.get("from")
    if cursor is not None and (not isinstance(cursor, int) or cursor < 0):
        raise ValueError("'from' is null or the number of a record")
    return hello["feed"], cursor or 0


class DemoSource:
    """Serves every feed on one port of the loopback."""

    def __init__(self) -> None:
        self._timetables: dict[str, Timetable] = {}

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._greet, "127.0.0.1", port, limit=HELLO_BYTES_MAX)
        say(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server:
            await server.serve_forever()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await reader.readline()
            if not hello:
                return  # somebody looked whether we are there
            feed, cursor = parse_hello(hello)
            say(f"{feed} connected, wants what follows {cursor}")
            await self._send(feed, cursor, writer)
        except ValueError as error:
            say(f"a client was refused: {error}")
        except (TimeoutError, ConnectionError) as error:
            say(f"a client went away: {error!r}")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    async def _send(self, feed: str, cursor: int, writer: asyncio.StreamWriter) -> None:
        timetable = self._timetables.setdefault(feed, Timetable(cursor, _now(), RATES[feed]))
        sent = cursor
        while True:
            due = min(timetable.last_due(_now()), sent + RECORDS_PER_WRITE_MAX)
            if due > sent:
                lines = [record(feed, n, due_at=timetable.due_at(n)) for n in range(sent + 1, due + 1)]
                writer.writelines(lines)
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await writer.drain()
                sent = due
            if writer.is_closing():
                return
            await asyncio.sleep(TICK_S)


def say(text: str) -> None:
    """Writes a line into the log that our standard output is."""
    sys.stdout.write(f"{_now().isoformat(timespec='milliseconds')} {text}\n")
    sys.stdout.flush()


def _now() -> datetime:
    return datetime.now(UTC)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Replay AIS messages to feeds that can resume.")
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(DemoSource().serve(parser.parse_args(argv).port))


if __name__ == "__main__":
    main()
