"""A sink that loses its last commits while feeds run: all that is missing lands again, and nothing twice."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from feedq.local.postgres import Postgres
from tests.chaos.conftest import Stages
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

FEEDS = 6
LANDED = """
    SELECT feed, count(*)::int AS landed, count(DISTINCT payload ->> 'seq')::int AS different,
        max((payload ->> 'seq')::int) AS last, min((payload ->> 'seq')::int) AS first
    FROM landed GROUP BY feed
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Postgres]:
    """A server of its own, whose files can be put back."""
    home = tmp_path / "server"
    home.mkdir(mode=0o711)
    made = Postgres(home, settings={"fsync": "off"})
    made.start()
    yield made
    made.stop()


class Backup:
    """A copy of a server's files, as an operator makes one, or an asynchronous replica is one."""

    def __init__(self, server: Postgres) -> None:
        self._server, self._copy = server, server.cluster.with_name("backup")
        server.stop()
        # Also their owners: the server runs under an account of its own.
        subprocess.run(["cp", "-a", str(server.cluster), str(self._copy)], check=True)
        server.start()

    def restore(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.cluster)
        self._copy.rename(self._server.cluster)
        self._server.start()


def landed(url: str) -> dict[str, tuple[int, int, int, int]]:
    """By feed: rows, different numbers among them, the last and the first number. Nothing while it is away."""
    try:
        with closing(psycopg2.connect(url, connect_timeout=5)) as connection, connection.cursor() as cursor:
            cursor.execute(LANDED)
            return {row[0]: tuple(row[1:]) for row in cursor.fetchall()}
    except psycopg2.Error:
        return {}


def wait_landed(url: str, names: Collection[str], least: int) -> None:
    """Wait until each of these feeds has landed this number."""

    def there() -> bool:
        rows = landed(url)
        return all(name in rows and rows[name][2] >= least for name in names)

    wait_until(there, f"number {least} of {', '.join(names)}")


def test_a_sink_that_was_restored_from_a_backup_gets_what_it_lost_once(
    stages: Stages,
    server: Postgres,
    tmp_path: Path,
    database_url: str,
    broker_url: str,
) -> None:
    stages.discard()  # it would take part of the machine
    sink_url = server.create_database("landing")
    names = feed_names(FEEDS)

    with (
        Source(rate=50) as source,
        Cluster(
            tmp_path,
            database_url=database_url,
            broker_url=broker_url,
            env={"FEEDQ_SINKS__OWN": sink_url},
        ) as cluster,
    ):
        cluster.add_beat("b1")
        for worker in ("w1", "w2"):
            cluster.add_worker(worker)
        cluster.apply([feed(name, source.url, sink="own") for name in names])
        wait_landed(sink_url, names, 30)
        backup = Backup(server)
        kept = max(last for _, _, last, _ in landed(sink_url).values())
        wait_landed(sink_url, names, kept + 100)
        backup.restore()
        back = max(last for _, _, last, _ in landed(sink_url).values())
        wait_landed(sink_url, names, max(back, kept + 100) + 200)
        for name, (rows, different, last, first) in landed(sink_url).items():
            assert (name, rows - different, last - first + 1 - different) == (name, 0, 0)

        def told() -> bool:
            rows = cluster.sql(
                "SELECT count(DISTINCT feed_id)::int AS n FROM feedq.event WHERE kind = 'sink_rewound'"
            )
            return bool(rows[0]["n"] == FEEDS)

        wait_until(told, "an event of each feed")
