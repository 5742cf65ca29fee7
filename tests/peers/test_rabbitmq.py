"""RabbitMQ as the broker: it may hang as Valkey may."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import amqp
import pytest

from feedq.local.postgres import Postgres
from feedq.verbs.diagnosis.server_checks import check_broker
from tests import forged
from tests.cluster import Cluster, wait_until
from tests.faults import (
    BROKER_TROUBLES,
    PLACED_LIMIT_S,
    assert_untouched,
    broker_in_trouble,
    few_feeds,
    kill_worker,
    lone_worker,
    place_feed,
    wait_answering,
)
from tests.invariants import mark
from tests.node import Node
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


MESSAGES = 1_500

BROADCASTS = 300

SEED = 12

QUEUES = ("feedq", "feedq.control")

EXCHANGES = (("celery.pidbox", ""), ("celeryev", "worker.heartbeat"), ("celeryev", "worker.online"))

EMPTIED_S = 90.0

STOP_LIMIT_S = 15.0

HEADERS = 0x2000

DEEP = 10_000


class Raw(amqp.Message):  # type: ignore[misc]  # py-amqp has no types
    """A message whose properties are these bytes."""

    def __init__(self, body: bytes, properties: bytes) -> None:
        super().__init__(body)
        self.raw = properties

    def _serialize_properties(self) -> bytes:
        return self.raw


def deep_headers() -> bytes:
    """A table in a table in a table."""
    table = b""
    for _ in range(DEEP):
        item = b"\x01aF" + struct.pack(">I", len(table)) + table if table else b"\x01aV"
        table = item
    return struct.pack(">HI", HEADERS, len(table)) + table


UNREADABLE: list[dict[str, Any]] = [
    {"content_type": b"\xff\xfe"},
    {"correlation_id": b"\xff"},
    {"application_headers": {b"\xff": 1}},
    {"application_headers": {"task": b"\xff\xfe", "id": b"\x80"}},
    {"application_headers": {"task": "feedq.reconcile", "id": "x", "x" * 255: 1}, "reply_to": b"\xc3"},
]


def test_forged_messages_of_rabbitmq_end_no_worker(
    tmp_path: Path, database_url: str, rabbitmq: RabbitMq
) -> None:
    cluster = Cluster(tmp_path, database_url=database_url, broker_url=rabbitmq.url)
    with lone_worker(cluster) as source:
        rng = Random(SEED)
        worker, before, epochs = cluster.workers["w1"], mark(source), cluster.epochs()
        queues = (cluster.sql("SELECT queue FROM feedq.worker")[0]["queue"], *QUEUES)
        with amqp.Connection(f"127.0.0.1:{rabbitmq.port}") as connection:
            channel = connection.channel()
            for target in [*(("", queue) for queue in queues), *EXCHANGES]:
                for properties in UNREADABLE:
                    publish(channel, amqp.Message(b"[[],{},{}]", **properties), *target)
                publish(channel, Raw(b"[[],{},{}]", deep_headers()), *target)
            for command in forged.commands():
                publish(channel, message_of(command), *EXCHANGES[0])
            for number in range(MESSAGES):
                publish(channel, message_of(forged.task(rng)), "", rng.choice(queues))
                if number % (MESSAGES // BROADCASTS) == 0:
                    publish(channel, message_of(forged.control(rng)), *rng.choice(EXCHANGES))
            wait_until(
                lambda: not worker.is_running() or not waiting(channel, queues),
                lambda: f"all messages are taken; {waiting(channel, queues)} are not",
                limit_s=EMPTIED_S,
            )
            assert worker.is_running(), worker.text()[-6000:]
            assert_untouched(cluster, source, before=before, epochs=epochs)
            # What was not acknowledged would come back now. The beat, which asks for passes, goes before that.
            stop(cluster.beats["b1"])
            wait_answering(cluster)
            stop(worker)
            left = [channel.basic_get(queue) for queue in QUEUES]
            assert left == [None, None], [(m.headers, m.body) for m in left if m]


def stop(node: Node) -> None:
    node.signal(signal.SIGTERM)
    assert node.wait(STOP_LIMIT_S) == 0


def message_of(message: forged.Forged) -> amqp.Message:
    properties = message.properties or {}
    return amqp.Message(
        message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        application_headers=message.headers if isinstance(message.headers, dict) else {},
        **properties,
    )


def publish(channel: Any, message: amqp.Message, exchange: str, routing_key: str) -> None:
    with suppress(ValueError, struct.error):  # what AMQP cannot express at all
        channel.basic_publish(message, exchange=exchange, routing_key=routing_key)


def waiting(channel: Any, queues: Sequence[str]) -> int:
    """Messages that nobody has taken yet."""
    return sum(channel.queue_declare(queue, passive=True).message_count for queue in queues)


# -- on workers that stay until the end of this file, and keep their names at the broker till then -------


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
        wait_until(lambda: declared(channel, mailbox), "the worker's own queue is gone")
        proxy.admit()
        wait_until(
            lambda: "RESOURCE_LOCKED" in worker.log.read_bytes()[logged:].decode(),
            lambda: f"the worker finds its name taken:\n{worker.text()[-4000:]}",
        )
    wait_answering(small.cluster)
    assert worker.is_running()
