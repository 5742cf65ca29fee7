"""RabbitMQ as the broker: it may hang as Valkey may, and no message of it ends a worker either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from feedq.embedded.postgres import Postgres
from tests.cluster import Cluster
from tests.faults import (
    BROKER_TROUBLES,
    PLACED_LIMIT_S,
    broker_in_trouble,
    few_feeds,
    kill_worker,
    place_feed,
)
from tests.peers.rabbitmq import RabbitMq
from tests.proxy import PlainProxy
from tests.stage import Stage

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def proxy(rabbitmq: RabbitMq) -> Iterator[PlainProxy]:
    with PlainProxy(rabbitmq.url) as proxy:
        yield proxy


@pytest.fixture
def small(tmp_path: Path, database_url: str, proxy: PlainProxy, postgres: Postgres) -> Iterator[Stage]:
    cluster = Cluster(tmp_path, database_url=database_url, broker_url=proxy.url)
    with few_feeds(cluster, postgres=postgres) as stage:
        yield stage


@pytest.mark.parametrize("kind", BROKER_TROUBLES)
def test_feeds_are_placed_and_fail_over_while_rabbitmq_hangs(
    small: Stage, rabbitmq: RabbitMq, proxy: PlainProxy, kind: str
) -> None:
    with broker_in_trouble(kind, rabbitmq.pid, proxy):
        assert place_feed(small, "new") < PLACED_LIMIT_S
        took, untouched = kill_worker(small)
        small.check(untouched=untouched)
        assert took.last_s < PLACED_LIMIT_S
