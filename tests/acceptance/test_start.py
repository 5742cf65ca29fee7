"""A worker whose servers are not there yet waits, says so, and begins without a hand once they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from feedq.local.postgres import Postgres
from feedq.local.process import free_port
from feedq.local.valkey import Valkey
from tests.cluster import Cluster, feed, wait_until
from tests.invariants import wait_streaming
from tests.node import Node
from tests.source_process import Source


@pytest.fixture
def absent_postgres(servers_dir: Path, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A PostgreSQL with data and a port, that is not running."""
    directory = servers_dir / "absent-postgres"
    directory.mkdir(mode=0o711)
    server = Postgres(directory, port=free_port(), settings={"fsync": "off"})
    server.start()
    server.stop()
    yield server
    server.stop()


@pytest.fixture
def absent_valkey(servers_dir: Path) -> Iterator[Valkey]:
    """A Valkey with a port and a password, that is not running."""
    directory = servers_dir / "absent-valkey"
    directory.mkdir(mode=0o711)
    server = Valkey(directory, port=free_port())
    server.start()
    server.stop()
    yield server
    server.stop()


def wait_said(node: Node, *words: str) -> None:
    """Wait until one line of the node's log holds all these words; it must not end meanwhile."""

    def said() -> bool:
        assert node.is_running(), f"{node.name} ended by itself:\n{node.text()[-4000:]}"
        return any(all(word in line for word in words) for line in node.text().splitlines())

    wait_until(said, lambda: f"{node.name} says {words}:\n{node.text()[-4000:]}", interval_s=0.1)


def test_a_worker_waits_for_its_database_and_then_for_its_migrations(
    tmp_path: Path, absent_postgres: Postgres, broker_url: str
) -> None:
    url = absent_postgres.url()
    with (
        Source() as source,
        # Where there is no server yet, there are no roles.
        Cluster(
            tmp_path, database_url=url, broker_url=broker_url, migrate=False, with_roles=False, forks=False
        ) as cluster,
    ):
        worker = cluster.add_worker("w1", ready=False)
        beat = cluster.add_beat("b1")
        wait_said(worker, "database", "127.0.0.1", "nothing listens there")
        absent_postgres.start()
        wait_said(worker, "feedq db upgrade")
        assert beat.is_running()
        cluster.feedq("db", "upgrade")
        cluster.wait_worker("w1")
        cluster.apply([feed("late/one", source.url)])
        wait_streaming(source, ["late/one"])
        password = url.partition("//")[2].partition("@")[0].partition(":")[2]
        assert password not in worker.text() + beat.text()


def test_a_worker_waits_for_its_broker(tmp_path: Path, absent_valkey: Valkey, database_url: str) -> None:
    with (
        Source() as source,
        Cluster(tmp_path, database_url=database_url, broker_url=absent_valkey.url(), forks=False) as cluster,
    ):
        worker = cluster.add_worker("w1", ready=False)
        beat = cluster.add_beat("b1")
        wait_said(worker, "consumer", "annot connect", "FEEDQ_BROKER_URL: nothing listens there")
        absent_valkey.start()
        cluster.wait_worker("w1")
        cluster.apply([feed("late/two", source.url)])
        wait_streaming(source, ["late/two"], limit_s=60)
        assert beat.is_running()
