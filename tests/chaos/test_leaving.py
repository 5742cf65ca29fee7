"""SIGTERM while a server does not answer: the worker leaves in time, and with status 0, all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.cluster import Cluster, feed, feed_names
from tests.invariants import wait_streaming
from tests.source_process import Source

FEEDS = feed_names(20, prefix="leaving")
FORWARD = textwrap.dedent(
    """
    import asyncio, sys

    async def pipe(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader, writer):
        up_reader, up_writer = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]))
        await asyncio.gather(pipe(reader, up_writer), pipe(up_reader, writer))

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())
    """
)


class Forwarder:
    """A process between a worker and a server. Frozen, it is a server that hangs; ended, one that is gone."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORWARD, parts.hostname or "", str(parts.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        host = f"127.0.0.1:{int(self._process.stdout.readline())}"
        login, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{login}{at}{host}"))

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def forwarders(database_url: str, broker_url: str) -> Iterator[dict[str, Forwarder]]:
    with ExitStack() as open_ones:
        made = {name: Forwarder(url) for name, url in (("database", database_url), ("broker", broker_url))}
        for one in made.values():
            open_ones.callback(one.close)
        yield made


@pytest.mark.parametrize(
    ("hang", "end"),
    [
        pytest.param(["database", "broker"], [], id="both-hang"),
        pytest.param([], ["database", "broker"], id="both-gone"),
    ],
)
def test_a_worker_leaves_in_time_whatever_does_not_answer(
    tmp_path: Path,
    database_url: str,
    broker_url: str,
    forwarders: dict[str, Forwarder],
    hang: list[str],
    end: list[str],
) -> None:
    through = {
        "FEEDQ_DATABASE_URL": forwarders["database"].url,
        "FEEDQ_BROKER_URL": forwarders["broker"].url,
    }
    with (
        Source(rate=20) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("b1")
        worker = cluster.add_worker("w1", env=through)
        cluster.apply([feed(name, source.url) for name in FEEDS])
        wait_streaming(source, FEEDS)
        for name in hang:
            forwarders[name].freeze()
        for name in end:
            forwarders[name].close()
        time.sleep(0.5)  # long enough for the worker to run into it
        began = worker.signal(signal.SIGTERM)
        status = worker.wait(20)
        took = time.monotonic() - began
        assert status == 0, worker.text()[-4000:]
        # Two seconds is the promise; the rest is for a busy machine.
        assert took < 5, worker.text()[-4000:]
