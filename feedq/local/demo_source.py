r"""The source of `feedq up --demo`: a dozen AIS receivers that replay recorded messages of ships, and can resume.

A client says ``{"feed": "coastguard/ais-01", "from": 17}`` on a line (``null`` at first) and gets the records
after that one, each on a line::

    {"feed": "coastguard/ais-01", "seq": 18, "at": "2026-11-20T06:31:00.250+00:00", "nmea": "!AIVDM,…"}

Record ``seq`` of a feed always carries the same message, so a record lost or landed twice shows in the table.
Records fall due at the feed's rate whether or not anybody is connected: who comes back gets at once what fell
due meanwhile. Time stands still for a feed until its first client since this process started; there is no
backlog of the night.

Runs as a process of its own: ``python -m feedq.local.demo_source 16000``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import msgspec

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


class Timetable(NamedTuple):
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
    return tuple((files("feedq.local") / "recording" / "ais.nmea").read_text("ascii").split("\n"))


def record(feed: str, seq: int, *, due_at: datetime) -> bytes:
    """Record ``seq`` of a feed as a line."""
    # Each feed begins elsewhere in the sample, so that no two tell the same at the same time.
    nmea = sample()[(seq + 73 * sorted(RATES).index(feed)) % len(sample())]
    at = due_at.isoformat(timespec="milliseconds")
    return msgspec.json.encode({"feed": feed, "seq": seq, "at": at, "nmea": nmea}) + b"\n"


def parse_hello(line: bytes) -> tuple[str, int]:
    """The feed and the last record it has. Raises `ValueError`."""
    hello = msgspec.json.decode(line)
    if not isinstance(hello, dict) or hello.get("feed") not in RATES:
        raise ValueError("a hello must name one of the feeds in 'feed'")
    cursor = hello.get("from")
    if cursor is not None and (not isinstance(cursor, int) or cursor < 0):
        raise ValueError("'from' must be null or the number of a record")
    return hello["feed"], cursor or 0


async def serve(port: int) -> None:
    """Serve every feed on one port of the loopback."""
    timetables: dict[str, Timetable] = {}

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await reader.readline()
            if not hello:
                return  # somebody looked whether we are there
            feed, cursor = parse_hello(hello)
            _say(f"{feed} connected, wants what follows {cursor}")
            timetable = timetables.setdefault(feed, Timetable(cursor, datetime.now(UTC), RATES[feed]))
            await _send(feed, cursor, timetable, writer)
        except ValueError as error:
            _say(f"a client was refused: {error}")
        except (TimeoutError, ConnectionError) as error:
            _say(f"a client went away: {error!r}")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    server = await asyncio.start_server(greet, "127.0.0.1", port, limit=HELLO_BYTES_MAX)
    _say(f"listening on 127.0.0.1:{port}")
    async with server:
        await server.serve_forever()


async def _send(feed: str, sent: int, timetable: Timetable, writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        due = min(timetable.last_due(datetime.now(UTC)), sent + RECORDS_PER_WRITE_MAX)
        if due > sent:
            writer.writelines(record(feed, n, due_at=timetable.due_at(n)) for n in range(sent + 1, due + 1))
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()
            sent = due
        await asyncio.sleep(TICK_S)


def _say(text: str) -> None:
    """Writes a line into the log that our standard output is."""
    print(datetime.now(UTC).isoformat(timespec="milliseconds"), text, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
