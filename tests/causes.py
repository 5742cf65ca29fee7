"""`Causes`: everything that must be told of a feed, at once, beside ten feeds of which nothing must be.

Two workers have the feeds, and a third one that of the frozen worker, which can go nowhere else. Then one source
only answers pings, two say nothing (of one of them, nothing but the event times is looked at), 5 % of one's
records are refused, one connector keeps the event loop to itself, and one worker is stopped. What was found is
read from the outbox in the database, what was told from the one who hears it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Self

from tests import poison
from tests.alert_receiver import AlertReceiver
from tests.cluster import ROOT, Cluster, feed, wait_until
from tests.contract.websocket_server import PING, accept, frame
from tests.source_process import Source

PINGS, SILENT, LAGGING = "source only pings", "source sends nothing", "event time stands still"
REFUSED, STUCK, FROZEN = "5 % refused", "stuck loop", "frozen worker"
KINDS = {
    **dict.fromkeys((PINGS, SILENT, STUCK, FROZEN), "max_silence"),
    LAGGING: "max_event_lag",
    REFUSED: "max_refused",
}
"""What is unmet of each."""
NEIGHBOURS = [f"well {number}" for number in range(10)]
GOOD_OF_EACH_BAD = 19
RATE = 20


def name_of(cause: str) -> str:
    return cause.replace(" ", "-").replace("%", "percent")


@dataclass(frozen=True, slots=True)
class Told:
    """When it was found of one feed, and when somebody was told, in seconds since the cause."""

    found_s: float
    told_s: float


class PingingServer:
    """A WebSocket server that sends a ping and, as long as it ``talks``, a record ten times a second."""

    def __init__(self) -> None:
        self.talks = True
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        self._thread = Thread(target=self._loop.run_forever, name="pinging-server", daemon=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await accept(reader, writer)
            while True:
                writer.write(frame(b"", PING) + (frame(b'{"n": 1}') if self.talks else b""))
                await writer.drain()
                await asyncio.sleep(0.1)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()


class Causes:
    """The cluster with its feeds, and whoever hears of them."""

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        server: PingingServer,
        receiver: AlertReceiver,
        *,
        bound_s: float,
    ) -> None:
        self.cluster, self.source, self.receiver = cluster, source, receiver
        self._server = server
        lag = {"at": "/at", "seconds": bound_s}
        self._lag = {"max_silence": "none", "max_event_lag": lag}
        self._flag = cluster.directory / "stuck"

    def start(self) -> None:
        """Until all feeds land and have been looked at."""
        cluster = self.cluster
        cluster.add_beat("b1")
        for name, place in (("w1", "here"), ("w2", "here"), ("w3", "frozen")):
            cluster.add_worker(name, env={"FEEDQ_WORKER_LABELS": json.dumps({"place": place})}, ready=False)
        for name in cluster.workers:
            cluster.wait_worker(name)
        sources: dict[str, dict[str, Any]] = {
            PINGS: {"connector": "websocket", "source": {"url": self._server.url}},
            STUCK: {"connector": "numbers", "source": {"then": "sleep", "while_exists": str(self._flag)}},
            LAGGING: {"expect": self._lag},
        }
        declared = [feed(name_of(cause), self.source.url) | sources.get(cause, {}) for cause in KINDS]
        for one in declared:
            place = "frozen" if one["name"] == name_of(FROZEN) else "here"
            one["selector"] = {"required": {"place": place}}
        self.cluster.apply(declared + [feed(name_of(one), self.source.url) for one in NEIGHBOURS])
        wait_until(
            lambda: all(row.records_total for row in cluster.leases().values()) and self._is_looked_at(),
            lambda: f"all land: {cluster.leases()}",
        )

    def _is_looked_at(self) -> bool:
        return bool(self.cluster.sql("SELECT 1 FROM feedq.landed_sample"))

    def begin(self) -> None:
        """Have it all begin."""
        self.mark()
        self.source.behave("spoiled", [name_of(REFUSED)], count=GOOD_OF_EACH_BAD)
        self.source.behave("silent", [name_of(SILENT), name_of(LAGGING)])
        self._server.talks = False
        self._flag.touch()
        self.cluster.workers["w3"].signal(signal.SIGSTOP)

    def end(self) -> None:
        """Mend it all, while the stuck feed is silent."""
        silent = "SELECT 1 FROM feedq.unmet u JOIN feedq.feed f ON f.id = u.feed_id WHERE f.name = %s"
        wait_until(lambda: self.cluster.sql(silent, (name_of(STUCK),)), "the stuck feed is silent")
        self.mark()
        self.cluster.workers["w3"].signal(signal.SIGCONT)
        self._flag.unlink()
        self._server.talks = True
        self.source.behave("stream")

    def observe(self, *, begins: bool, limit_s: float) -> dict[str, Told]:
        """Wait until that is told of all of them."""
        told: dict[str, float] = {}

        def is_told() -> bool:
            lines = [line for _, body in self.receiver.taken for line in body.splitlines()]
            for cause in KINDS:
                start = f"{name_of(cause)}: " + ("" if begins else "as expected again")
                if any(line.startswith(start) for line in lines):
                    told.setdefault(cause, time.monotonic() - self._began)
            return told.keys() == KINDS.keys()

        wait_until(is_told, lambda: f"told of all: {told}, {self.receiver.taken}", limit_s=limit_s)
        found = {row["feed"]: row["after_s"] for row in reversed(self._found())}
        return {cause: Told(found[name_of(cause)], told[cause]) for cause in KINDS}

    def alerts(self) -> list[tuple[str, str, bool]]:
        """What was found since it all began, or was mended; of the stuck feed the first alone.

        It lands a little on each worker that takes it over, which ends its silence for a while.
        """
        found = [(row["feed"], row["kind"], row["begins"]) for row in self._found()]
        stuck = [one for one in found if one[0] == name_of(STUCK)]
        return sorted([one for one in found if one not in stuck] + stuck[:1])

    def mark(self) -> None:
        """Count from now on."""
        self.receiver.take()
        self._began = time.monotonic()
        asked = "SELECT clock_timestamp() AS at, (SELECT coalesce(max(id), 0) FROM feedq.alert) AS id"
        self._since = self.cluster.sql(asked)[0]

    def _found(self) -> list[dict[str, Any]]:
        return self.cluster.sql(
            "SELECT feed, kind, begins, extract(epoch FROM at - %s)::float8 AS after_s FROM feedq.alert "
            "WHERE id > %s ORDER BY id",
            (self._since["at"], self._since["id"]),
        )


def wanted(*, begins: bool) -> list[tuple[str, str, bool]]:
    """What has to be found: each cause once, and nothing else."""
    return sorted((name_of(cause), kind, begins) for cause, kind in KINDS.items())


@contextmanager
def causes(
    directory: Path, *, database_url: str, broker_url: str, bound_s: float, env: Mapping[str, str]
) -> Iterator[Causes]:
    """A cluster that streams, and may be silent for so long."""
    poison.install(directory)
    with AlertReceiver() as receiver, Source(rate=RATE) as source, PingingServer() as server:
        given = {
            "PYTHONPATH": f"{directory}:{ROOT}",
            "FEEDQ_EXPECT": json.dumps({"max_silence": f"{bound_s:g}s", "max_refused": "1%"}),
            "FEEDQ_ALERT_URLS": f"{receiver.dead_url} {receiver.url}",
            **env,
        }
        with Cluster(directory, database_url=database_url, broker_url=broker_url, env=given) as cluster:
            made = Causes(cluster, source, server, receiver, bound_s=bound_s)
            made.start()
            yield made
