"""RabbitMQ as the broker: it may hang as Valkey may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqp
import pytest

from feedq.local.postgres import Postgres
from feedq.verbs.diagnosis.broker_checks import check_broker
from tests.cluster import Cluster, wait_until
from tests.faults import (
    BROKER_TROUBLES,
    PLACED_LIMIT_S,
    broker_in_trouble,
    few_feeds,
    kill_worker,
    place_feed,
    wait_answering,
)
from tests.peers.rabbitmq import RabbitMq
from tests.proxy import PlainProxy
from tests.stage import Stage

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def proxy(rabbitmq: RabbitMq) -> Iterator[PlainProxy]:
    with PlainProxy(rabbitmq.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, proxy: PlainProxy, postgres: Postgres) -> Iterator[Stage]:
    """A few feeds, with their broker behind the proxy."""
    cluster = Cluster(
        tmp_path_factory.mktemp("small"),
        database_url=postgres.create_database("rabbitmq_hangs"),
        broker_url=proxy.url,
        # Longer than anybody waits here: what waits for the broker fails.
        env={"FEEDQ_BROKER_TIMEOUT_S": "120"},
    )
    with few_feeds(cluster, postgres=postgres) as stage:
        yield stage
    postgres.drop_database("rabbitmq_hangs")


@pytest.mark.parametrize("kind", BROKER_TROUBLES)
def test_feeds_are_placed_and_fail_over_while_rabbitmq_hangs(
    small: Stage, rabbitmq: RabbitMq, proxy: PlainProxy, kind: str
) -> None:
    small.heal()
    with broker_in_trouble(kind, rabbitmq.pid, proxy):
        assert place_feed(small, f"new/{kind}") < PLACED_LIMIT_S
        took, untouched = kill_worker(small)
        small.check(untouched=untouched)
        assert took.last_s < PLACED_LIMIT_S


def test_a_worker_whose_lost_connection_is_still_there_waits_for_its_name(
    small: Stage, rabbitmq: RabbitMq, proxy: PlainProxy
) -> None:
    small.heal()
    worker = small.cluster.workers["w1"]
    mailbox = f"{worker.argv[worker.argv.index('-n') + 1]}.celery.pidbox"
    logged = len(worker.text().encode())
    proxy.refuse()
    with amqp.Connection(f"127.0.0.1:{rabbitmq.port}") as connection:
        channel = connection.channel()
        wait_until(lambda: declared(channel, mailbox), limit_s=30, what="the worker's own queue is gone")
        proxy.admit()
        wait_until(
            lambda: "RESOURCE_LOCKED" in worker.log.read_bytes()[logged:].decode(),
            limit_s=30,
            what=lambda: f"the worker finds its name taken:\n{worker.text()[-4000:]}",
        )
    wait_answering(small.cluster)
    assert worker.is_running()


def declared(channel: Any, queue: str) -> bool:
    try:
        channel.queue_declare(queue, exclusive=True)
    except amqp.exceptions.ResourceLocked:
        channel.open()
        return False
    return True


@pytest.mark.parametrize(
    ("login", "host", "remedy"),
    [
        ("guest:wrong", "", "correct the user name and the password in FEEDQ_BROKER_URL"),
        ("guest:guest", "nowhere", "correct the virtual host at the end of FEEDQ_BROKER_URL"),
    ],
)
def test_remedies_fit_what_rabbitmq_refuses(rabbitmq: RabbitMq, login: str, host: str, remedy: str) -> None:
    (check,) = check_broker(f"amqp://{login}@127.0.0.1:{rabbitmq.port}/{host}")
    assert check.advice.startswith(remedy)
