"""A sink database that stands still for half a minute, under full load: the worker's memory, and what comes after.

200 feeds send as fast as they are read. All processes of the sink's server are stopped (SIGSTOP): sockets stay
open and nothing answers, as with a storage that hangs. The control database is another server, so the worker
keeps its leases, and the feeds their connections.

``FEEDQ_INFLIGHT_BYTES_TOTAL`` bounds the received bytes that the worker holds, but for two small reads of each
feed, one on its way and one behind it, and an incomplete record; what it holds is its own count
(``feedq_inflight_bytes``). Resident memory is the kernel's, over that of the same worker when one feed had landed
in the same sink. At the end every record must be in the table once.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import psycopg2

from bench import trades
from bench.report import Figure, at_most
from bench.senders import Sender
from bench.servers import running, started
from feedq.connectors.wire.connection import READ_BYTES_MIN
from feedq.local.postgres import Postgres
from feedq.settings import Settings
from tests.cluster import Cluster, feed_names, wait_until
from tests.faults import send_signal

FEEDS = 200
RECORDS = 20_000
"""Of each feed: together some seconds of full load."""
STALL_S = 30.0
LIMIT_S = 120.0
MEBIBYTE = 2**20
RESIDENT_MUST = 1.5
"""For a byte held: the allocator's share, what the feeds are made of, and the group being encoded."""


def measure(directory: Path, *, feeds: int = FEEDS, records: int = RECORDS) -> Iterator[Figure]:
    with running(directory) as (control, valkey), started(Postgres(directory / "sink")) as sink:
        yield from _measure(directory, control, sink, valkey.url(), feeds=feeds, records=records)


def _measure(
    directory: Path, control: Postgres, sink: Postgres, broker_url: str, *, feeds: int, records: int
) -> Iterator[Figure]:
    trades.write_files(directory / "lines", directory / "columns", count=records)
    port = _free_port()
    env = {"FEEDQ_SINKS__STALLED": sink.url(), "FEEDQ_METRICS_PORT": str(port)}
    with (
        Sender("tcp", file=directory / "lines") as sender,
        Cluster(directory, database_url=control.url(), broker_url=broker_url, env=env) as cluster,
    ):
        cluster.add_beat("beat")
        worker = psutil.Process(cluster.add_worker("w1", capacity=feeds + 1).pid)
        cluster.apply([_feed("first", sender.url)])
        wait_until(lambda: _landed(sink) == records, "the first feed has landed", limit_s=LIMIT_S)
        before_bytes = worker.memory_info().rss
        cluster.apply([_feed(name, sender.url) for name in feed_names(feeds)])
        wait_until(lambda: _landed(sink) > feeds * records // 20, "under full load", limit_s=LIMIT_S)
        with _stopped(sink):
            held_bytes, rss_bytes = _peaks(worker, port, STALL_S)
        resumed = time.monotonic()
        wait_until(lambda: _landed(sink) == (feeds + 1) * records, "all have landed", limit_s=LIMIT_S)
        took_s = time.monotonic() - resumed
        wrong = _wrong(sink, records=records)

    case = f"PostgreSQL stalled for {STALL_S:g} s under full load"
    total = Settings.model_fields["inflight_bytes_total"].default
    limit = total + feeds * (2 * READ_BYTES_MIN + trades.LINE_BYTES)
    more = (rss_bytes - before_bytes) / total
    yield at_most(f"{case}: bytes held", round(limit / MEBIBYTE, 1), held_bytes / MEBIBYTE, "MiB")
    yield at_most(f"{case}: resident memory / FEEDQ_INFLIGHT_BYTES_TOTAL", RESIDENT_MUST, more, "")
    yield Figure(
        f"{case}: then catches up",
        "every record once",
        f"{feeds * records} records {took_s:.1f} s after it, {wrong} feeds with lost or doubled ones",
        wrong == 0,
    )


def _feed(name: str, url: str) -> dict[str, object]:
    return {
        "name": name,
        "connector": "tcp",
        # The sender says everything once: a second connection would get all of it again.
        "source": {"url": url, "hello": "from {cursor}\n", "cursor": "/id", "idle_timeout_s": 0},
        "sink": {"name": "stalled", "table": "landed"},
    }


@contextmanager
def _stopped(server: Postgres) -> Iterator[None]:
    """All processes of the server stand still."""
    postmaster = psutil.Process(server.pid)
    processes = [postmaster, *postmaster.children()]
    try:
        send_signal(processes, signal.SIGSTOP)
        yield
    finally:
        send_signal(processes, signal.SIGCONT)


def _peaks(worker: psutil.Process, metrics_port: int, seconds: float) -> tuple[float, int]:
    """The most bytes held, and the most resident memory, within so many seconds."""
    end = time.monotonic() + seconds
    held_bytes, rss_bytes = 0.0, 0
    while time.monotonic() < end:
        held_bytes = max(held_bytes, _held(metrics_port))
        rss_bytes = max(rss_bytes, worker.memory_info().rss)
        time.sleep(0.1)
    assert held_bytes, "the worker holds nothing: there was no load"
    return held_bytes, rss_bytes


def _held(metrics_port: int) -> float:
    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("feedq_inflight_bytes "))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _landed(sink: Postgres) -> int:
    return _ask(sink, "SELECT COALESCE(sum(records), 0) FROM feedq_checkpoint")


def _wrong(sink: Postgres, *, records: int) -> int:
    """Feeds of which some record is not in the table once."""
    return _ask(
        sink,
        "SELECT count(*) FROM (SELECT count(*) AS n, count(DISTINCT payload ->> 'id') AS different, "
        f"max((payload ->> 'id')::int) AS last FROM landed GROUP BY feed) AS f "
        f"WHERE (n, different, last) <> ({records}, {records}, {records})",
    )


def _ask(sink: Postgres, question: str) -> int:
    connection = psycopg2.connect(sink.url(), connect_timeout=5)
    try:
        with connection.cursor() as cursor:
            cursor.execute(question)
            ((answer,),) = cursor.fetchall()
            return int(answer)
    except psycopg2.errors.UndefinedTable:
        return 0
    finally:
        connection.close()
