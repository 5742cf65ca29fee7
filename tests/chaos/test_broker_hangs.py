"""A broker that hangs, which accepts and never answers, or to which every packet is lost.

Feeds are placed and fail over all the same, again and again; workers start and stop; the command line says what is
wrong, in bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.chaos.conftest import Stages
from tests.cluster import Cluster
from tests.faults import (
    PLACED_LIMIT_S,
    broker_in_trouble,
    few_feeds,
    kill_worker,
    place_feed,
    wait_answering,
)
from tests.proxy import PlainProxy
from tests.stage import Stage

pytestmark = pytest.mark.timeout(240)

Measured = Callable[[str, object], None]

DOCTOR_LIMIT_S = 30.0
"""For all its checks on a busy machine; what it waits for the broker is a third of it at most."""


@pytest.fixture(scope="module")
def proxy(valkey: Valkey) -> Iterator[PlainProxy]:
    client = valkey.client(database=3)
    client.flushdb()
    client.close()
    with PlainProxy(valkey.url(database=3)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def small(
    stages: Stages,
    tmp_path_factory: pytest.TempPathFactory,
    proxy: PlainProxy,
    postgres: Postgres,
) -> Iterator[Stage]:
    """A few feeds, with their broker behind the proxy."""
    stages.discard()  # it would take part of the machine
    cluster = Cluster(
        tmp_path_factory.mktemp("small"),
        database_url=postgres.create_database("broker_hangs"),
        broker_url=proxy.url,
        # Longer than anybody waits here: what waits for the broker fails.
        env={"FEEDQ_BROKER_TIMEOUT_S": "120"},
    )
    with few_feeds(cluster, postgres=postgres) as stage:
        yield stage
    postgres.drop_database("broker_hangs")


@pytest.mark.parametrize("kind", ["frozen", "dropping"])
def test_feeds_are_placed_and_fail_over_while_the_broker_hangs(
    small: Stage, valkey: Valkey, proxy: PlainProxy, measured: Measured, kind: str
) -> None:
    small.heal()
    with broker_in_trouble(kind, valkey.pid, proxy):
        placed_s = place_feed(small, f"new/{kind}")
        took, untouched = kill_worker(small)
        small.check(untouched=untouched)
        measured(f"broker {kind}: feed placed after", placed_s)
        measured(f"broker {kind}: kill -9", took)
        assert placed_s < PLACED_LIMIT_S
        assert took.last_s < PLACED_LIMIT_S
        if kind == "frozen":
            # A worker that starts meanwhile gets its part, and what it held is placed when it dies.
            small.heal()
            took, untouched = kill_worker(small)
            small.check(untouched=untouched)
            assert took.last_s < PLACED_LIMIT_S
    wait_answering(small.cluster)


def test_doctor_says_in_bounded_time_that_the_broker_hangs(small: Stage, proxy: PlainProxy) -> None:
    proxy.hang()
    began = time.monotonic()
    ran = small.cluster.run("doctor")
    assert time.monotonic() - began < DOCTOR_LIMIT_S
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert [line for line in ran.stdout.splitlines() if line.startswith("FAIL") and " broker " in line]
    proxy.resume()
