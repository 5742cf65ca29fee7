"""The least that a failover can take on this machine: nothing but the kernel, an event loop and one statement.

One bare process holds as many connections to a source as a worker holds feeds, and one to a second process. It is
killed; the second sees that connection close, fences all feeds with one statement in PostgreSQL, and makes their
connections anew. There are no leases, placement, threads or Celery: what feedq takes longer is what those cost.

`failover_gaps` starts both; by hand they are nothing to run.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import psycopg2
import uvloop

from tests.cluster import ROOT, feed_names, wait_until
from tests.source_process import Source

LIMIT_S = 30.0
UNWATCHED_S = 1.0
"""So long after the kill nobody looks: the source has connections to accept."""
TABLE = "CREATE TABLE public.floor (feed text PRIMARY KEY, epoch bigint NOT NULL, seq bigint NOT NULL)"
FENCE = "UPDATE public.floor SET epoch = epoch + 1 WHERE feed = ANY(%s) RETURNING feed, seq"


def failover_gaps(directory: Path, database_url: str, count: int) -> list[float]:
    """Kill a process that holds ``count`` feeds; the gap of each, in seconds, until another has it."""
    names = feed_names(count, prefix="floor")
    path = str(directory / "floor.sock")
    with (
        closing(psycopg2.connect(database_url)) as session,
        Source(rate=1.0) as source,
        _process("take", path, str(source.port), str(count), database_url),
    ):
        with session, session.cursor() as cursor:
            cursor.execute(TABLE)
            cursor.execute("INSERT INTO public.floor SELECT unnest(%s), 1, 0", (names,))
        with _process("hold", path, str(source.port), str(count)) as holder:
            wait_until(lambda: source.streaming().feeds == count, "the floor streams")
            holder.send_signal(signal.SIGKILL)
            time.sleep(UNWATCHED_S)
            wait_until(lambda: source.streaming().feeds == count, "the floor is back")
            connections = source.connections()
        with session, session.cursor() as cursor:
            cursor.execute("DROP TABLE public.floor")
    closed = {one.feed: one.closed_at for one in connections if one.closed_at is not None}
    again = {one.feed: one.hello_at for one in connections if one.is_live()}
    return [(again[name] or 0.0) - closed[name] for name in names]


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", __name__, *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it is ready
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)
        process.stdout.close()


# -- the two processes -------------------------------------------------------------------------------


class _Feed(asyncio.Protocol):
    """Says what it wants, and reads it."""

    def __init__(self, name: str, seq: int) -> None:
        self._hello = b'{"feed": "%b", "from": %d}\n' % (name.encode(), seq)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._hello)


class _Watched(asyncio.Protocol):
    """The connection from the process that holds the feeds."""

    def __init__(self, lost: asyncio.Event) -> None:
        self._lost = lost

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()


async def _connect(port: int, feeds: list[tuple[str, int]]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(
        *(loop.create_connection(lambda f=f: _Feed(*f), "127.0.0.1", port) for f in feeds)  # type: ignore[misc]
    )


async def _hold(path: str, port: int, count: int) -> None:
    with socket.socket(socket.AF_UNIX) as watched:
        watched.connect(path)
        await _connect(port, [(name, 0) for name in feed_names(count, prefix="floor")])
        print("ready", flush=True)
        await asyncio.sleep(LIMIT_S)


async def _take(path: str, port: int, count: int, database_url: str) -> None:
    lost = asyncio.Event()
    listener = await asyncio.get_running_loop().create_unix_server(lambda: _Watched(lost), path)
    names = feed_names(count, prefix="floor")
    with closing(psycopg2.connect(database_url)) as session, session, session.cursor() as cursor:
        print("ready", flush=True)
        await lost.wait()
        cursor.execute(FENCE, (names,))
        feeds = cursor.fetchall()
        session.commit()
        await _connect(port, feeds)
        await asyncio.sleep(LIMIT_S)
    listener.close()


if __name__ == "__main__":
    kind, at, to, how_many, *rest = sys.argv[1:]
    uvloop.run(
        _hold(at, int(to), int(how_many)) if kind == "hold" else _take(at, int(to), int(how_many), *rest)
    )
