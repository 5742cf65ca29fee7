"""The acceptance tests run under the roles of `feedq db grants`, each process with its own, as in production.

Their processes are forked, but for those of `test_start` and `test_up`, which begin as in production, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from feedq.control.store.grants import Role
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.control.store.postgresql import PostgresStore
from feedq.local.valkey import Valkey
from tests.cluster import ROOT, Cluster
from tests.flower import Flower, StartFlower
from tests.nursery import Nursery


@pytest.fixture(scope="package", autouse=True)
def _forked(forking: Nursery) -> None:
    """A worker starts in a tenth of the time."""


@pytest.fixture(scope="package", autouse=True)
def _under_roles() -> Iterator[None]:
    Cluster.roles_by_default = True
    yield
    Cluster.roles_by_default = False


@pytest.fixture(scope="package")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where Flowers are forked from: no worker is to have loaded what they load."""
    with Nursery(tmp_path_factory.mktemp("flowers"), imports=("flower.command", "feedq.web.site")) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def start_flower(
    valkey: Valkey, control_url: str, flowers: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartFlower]:
    """Starts Flowers over the module's database, with options and an environment of their own."""
    started: list[Flower] = []

    def start(*options: str, **env: str) -> Flower:
        directory = tmp_path_factory.mktemp("flower")
        cluster = Cluster(directory, database_url=control_url, broker_url=valkey.url(), migrate=False)
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "flower", "--address=127.0.0.1", "--port=0"]
        env = {**cluster.env, **cluster.as_role(Role.FLOWER, env)}
        log = directory / "flower.log"
        flower = Flower(flowers.node("flower", [*argv, *options], env=env, cwd=ROOT, log=log))
        started.append(flower)
        return flower

    yield start
    for flower in started:
        flower.node.end()


@pytest.fixture(scope="module")
def flower(start_flower: StartFlower) -> Flower:
    """Nobody has to log in, and the API is open."""
    return start_flower(FLOWER_UNAUTHENTICATED_API="true")


@pytest.fixture
def schedules(cluster: Cluster) -> Iterator[ScheduleStore]:
    """The schedules of the cluster of a test."""
    store = PostgresStore(cluster.database_url)
    yield store.jobs.schedules
    store.close()
