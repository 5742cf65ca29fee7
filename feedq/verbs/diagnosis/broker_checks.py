"""The broker: does it answer, does a message come back as it was sent, and does it evict queues?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from queue import Empty
from typing import Any
from uuid import uuid4

import redis
from kombu.connection import Connection
from kombu.exceptions import KombuError

from feedq.celery.broker import bounded_options, is_redis
from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text
from feedq.verbs.diagnosis.checks import Check, fail, not_checked, ok, unreachable, warn

TIMEOUT_S = 5
EVICTION = "broker eviction"


def check_broker(url: str) -> Iterator[Check]:
    """All checks of the broker; if it cannot be reached, the first one says so and is the last."""
    reached = _reachable(url)
    yield reached
    if reached.advice:
        return
    yield _messages(url)
    if is_redis(url):
        yield _redis(url)


def _reachable(url: str) -> Check:
    try:
        with connect(url) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=TIMEOUT_S)
    except Exception as error:  # noqa: BLE001  # whatever a transport raises, the broker is not reachable
        return unreachable("broker", url, error, setting="FEEDQ_BROKER_URL")
    return ok("broker", mask_url(url))


def connect(url: str) -> Any:
    """A connection that waits for its server no longer than `TIMEOUT_S` at a time."""
    return Connection(url, connect_timeout=TIMEOUT_S, transport_options=bounded_options(url, TIMEOUT_S))


def _messages(url: str) -> Check:
    """Send one message as `stream_feed` is sent, and take it back."""
    sent = {"feed_id": 1, "epoch": 1, "text": "ä"}
    with connect(url) as connection:
        try:
            received = _there_and_back(connection, sent)
        except (*connection.connection_errors, *connection.channel_errors, KombuError, Empty) as error:
            return fail(
                "messages",
                f"a JSON message did not come back: {mask_url(driver_text(error))}",
                "see that the broker's user may declare, write and read queues",
            )
    if received != sent:
        return fail(
            "messages", "a JSON message came back altered", "see what stands between here and the broker"
        )
    return ok("messages", "a JSON message came back as it was sent")


def _there_and_back(connection: Any, sent: Any) -> Any:
    """Through a queue of its own, which goes away with the connection at the latest."""
    options = {"durable": False, "auto_delete": True, "exclusive": True}
    exchange = {"durable": False, "auto_delete": True}
    name = f"feedq.doctor.{uuid4()}"
    with closing(
        connection.SimpleQueue(name, serializer="json", queue_opts=options, exchange_opts=exchange)
    ) as queue:
        queue.put(sent)
        message = queue.get(timeout=TIMEOUT_S)
        message.ack()
        # RabbitMQ tells a consumer whose queue is deleted, and kombu takes that for an error.
        queue.consumer.cancel()
        queue.queue.delete()
        return message.payload


def _redis(url: str) -> Check:
    """A broker that evicts keys loses queues. What a restart loses does no harm: reconcile sends it again."""
    if url.startswith("redis+socket://"):
        url = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    try:
        with closing(
            redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        ) as client:
            config = {str(key): str(value) for key, value in client.config_get("maxmemory*").items()}
    except (redis.RedisError, ValueError) as error:
        return not_checked(
            EVICTION,
            f"the broker's settings cannot be read: {mask_url(driver_text(error))}",
            "permit CONFIG GET to the user of FEEDQ_BROKER_URL, or see where it is set up that maxmemory-policy "
            "is noeviction",
        )
    return _eviction(config)


def _eviction(config: dict[str, str]) -> Check:
    policy = config.get("maxmemory-policy", "noeviction")
    if config.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        return warn(
            EVICTION,
            f"maxmemory-policy {policy} discards queues when memory runs low",
            "CONFIG SET maxmemory-policy noeviction",
        )
    return ok(EVICTION, f"maxmemory {config.get('maxmemory', '0')}, policy {policy}")
