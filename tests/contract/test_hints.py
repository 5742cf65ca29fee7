"""Hints in a node's queue are read many at a time: each is handed over, and none beyond the prefetch window. What
cannot be handled is gone for good, and the next message is handed over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from kombu import Connection, Consumer, Queue, transport
from kombu.transport.redis import Transport as RedisTransport

from feedq.celery import broker
from feedq.celery.broker import NODE_PREFIX, READ_AT_ONCE

COUNT = 2 * READ_AT_ONCE + 7


@pytest.fixture
def connection(broker_url: str) -> Iterator[Connection]:
    broker.install()
    with Connection(broker_url) as connection:
        yield connection


def _publish(connection: Connection, queue: str, count: int) -> None:
    producer = connection.Producer()
    for number in range(count):
        producer.publish({"number": number}, routing_key=queue, serializer="json")


def _drain(connection: Connection, *, until: int, heard: list[Any]) -> None:
    while len(heard) < until:
        connection.drain_events(timeout=10)


def test_all_are_handed_over_in_order_and_what_is_no_message_is_dropped(
    connection: Connection, broker_url: str
) -> None:
    queue = f"{NODE_PREFIX}{uuid4()}"
    _publish(connection, queue, COUNT)
    plain: Any = redis.Redis.from_url(broker_url)
    for place, bad in ((3, "no message"), (-9, json.dumps({"body": 1}))):
        plain.execute_command("LINSERT", queue, "AFTER", plain.lindex(queue, place), bad)
    heard: list[Any] = []

    def hear(message: Any) -> None:
        heard.append(message.payload["number"])
        message.ack()

    with Consumer(connection, Queue(queue), on_message=hear):
        _drain(connection, until=COUNT, heard=heard)
    assert heard == list(range(COUNT))
    assert not plain.exists(queue)


def test_no_more_are_taken_than_the_window_has_room_for(connection: Connection, broker_url: str) -> None:
    queue = f"{NODE_PREFIX}{uuid4()}"
    _publish(connection, queue, COUNT)
    window = 10
    heard: list[Any] = []
    with Consumer(connection, Queue(queue), prefetch_count=window, on_message=heard.append):
        _drain(connection, until=window, heard=heard)
        assert len(heard) == window
        assert redis.Redis.from_url(broker_url).llen(queue) == COUNT - window
        for message in list(heard):
            message.ack()
        _drain(connection, until=2 * window, heard=heard)
    assert len(heard) == 2 * window


def test_tags_of_messages_differ_between_channels(connection: Connection) -> None:
    tags = [channel._next_delivery_tag() for channel in (connection.channel(), connection.channel()) * 2]
    assert len(set(tags)) == len(tags)


def test_a_message_that_makes_its_handler_raise_is_rejected_and_the_next_one_handled(
    connection: Connection, broker_url: str
) -> None:
    queue, heard = str(uuid4()), list[int]()
    _publish(connection, queue, 3)

    def hear(message: Any) -> None:
        heard.append(message.payload["number"])
        if heard == [0]:
            raise RuntimeError("poison")
        message.ack()

    with Consumer(connection, Queue(queue), on_message=hear):
        _drain(connection, until=3, heard=heard)
    assert heard == [0, 1, 2]
    assert not redis.Redis.from_url(broker_url).hlen("unacked")


def test_an_error_of_the_connection_is_not_taken_for_a_bad_message(
    connection: Connection, broker_url: str
) -> None:
    queue = str(uuid4())
    _publish(connection, queue, 1)

    def break_off(_: Any) -> None:
        raise ConnectionResetError("the broker went away")

    with Consumer(connection, Queue(queue), on_message=break_off), pytest.raises(ConnectionResetError):
        connection.drain_events(timeout=10)
    assert (
        redis.Redis.from_url(broker_url).hlen("unacked") + redis.Redis.from_url(broker_url).llen(queue) == 1
    )


def test_who_connected_before_it_was_installed_gets_it_too(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_transport_cache", {"redis": RedisTransport})
    monkeypatch.setattr(broker, "_transport_cache", transport._transport_cache)
    broker.install()
    with Connection(broker_url) as connection:
        assert isinstance(connection.transport, broker.RedisTransport)
