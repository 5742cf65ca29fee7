"""Connectors of brokers: names and envelopes, options, answers, and where a stream begins."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import Client

from feedq.connectors.base import BOUNDLESS, Room, parse_options
from feedq.connectors.messages import Inbox, enclose, name_at_source
from feedq.connectors.mqtt import MqttOptions, unshared
from feedq.connectors.nats import NatsCursor
from feedq.connectors.nats_client import NatsMessage
from feedq.connectors.nats_consumer import (
    Pulls,
    Received,
    Retention,
    Start,
    StreamFacts,
    choose_start,
)
from feedq.connectors.resp import DEPTH_MAX, BrokenAnswer, RedisLink
from feedq.connectors.wire.connection import SourceConnection
from feedq.errors import InvalidInput, SourceUnavailable
from feedq.worker.batch_queue import InflightBudget


@pytest.mark.parametrize(
    ("payload", "member"),
    [
        (b'{"a": 1}', '"data":{"a": 1}'),
        (b" 1.50 ", '"data": 1.50 '),
        (b"null", '"data":null'),
        (b"", '"data":""'),
        (b"plain", '"data":"plain"'),
        (b"NaN", '"data":"NaN"'),
        ("“”\n".encode(), '"data":"“”\\n"'),
        (b"\xff\x00", '"data_base64":"/wA="'),
        (b'1,"topic":"forged"', '"data":"1,\\"topic\\":\\"forged\\""'),
        (b"1}", '"data":"1}"'),
    ],
)
def test_an_envelope_holds_the_payload_as_it_can(payload: bytes, member: str) -> None:
    assert enclose({"topic": "t"}, payload).decode() == '{"topic":"t",' + member + "}"


async def test_an_inbox_that_has_failed_gives_nothing_more() -> None:
    inbox: Inbox[int] = Inbox(bytes_max=10, room=BOUNDLESS)
    task = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    inbox.put(1, size=1)
    inbox.fail(SourceUnavailable("first"))
    inbox.fail(SourceUnavailable("second"))
    for taking in (task, inbox.take()):
        with pytest.raises(SourceUnavailable, match="first"):
            await taking


async def test_a_taker_that_is_cancelled_loses_nothing() -> None:
    inbox: Inbox[int] = Inbox(bytes_max=10, room=BOUNDLESS)
    task = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    task.cancel()
    inbox.put(1, size=1)
    with suppress(asyncio.CancelledError):
        await task
    assert await inbox.take() == [1]


async def test_what_waits_takes_room_until_the_next_is_asked_for() -> None:
    budget = InflightBudget(10)
    inbox, other = (Inbox[int](bytes_max=100, room=budget) for _ in range(2))
    inbox.put(1, size=6)
    assert (budget.bytes, inbox.is_full) == (6, False)
    inbox.put(2, size=6)
    assert (budget.bytes, inbox.is_full) == (12, True)
    assert not other.is_full, "whoever holds nothing may go on"
    assert await inbox.take() == [1, 2]
    assert (budget.bytes, inbox.is_full) == (12, True), "they are not passed on yet"
    task = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    assert (budget.bytes, inbox.is_full) == (0, False)
    inbox.put(3, size=1)
    assert await task == [3]
    inbox.put(4, size=1)
    inbox.close()
    inbox.close()
    assert budget.bytes == 0


def test_a_feed_has_one_name_at_its_source_and_no_other_feed_has_it() -> None:
    one = name_at_source("default", "acme/orders")
    assert one == name_at_source("default", "acme/orders") == "feedq-default-acme-orders-e0a03565"
    similar = [("staging", "acme/orders"), ("default", "acme-orders"), ("default-acme", "orders")]
    assert len({one, *(name_at_source(*of) for of in similar)}) == 4


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_name_at_a_source_is_one_that_every_server_allows(environment: str, feed: str) -> None:
    name = name_at_source(environment, feed)
    assert len(name) <= 64
    assert name.isascii()
    assert name.replace("-", "").isalnum()


MINIMAL = {"url": "mqtt://127.0.0.1", "topics": ["plant/#"]}


def options(**source: Any) -> MqttOptions:
    parsed = parse_options("mqtt", {**MINIMAL, **source})
    assert isinstance(parsed, MqttOptions)
    return parsed


@pytest.mark.parametrize(
    ("url", "port", "tls"),
    [("mqtt://host", 1883, False), ("mqtts://host", 8883, True), ("mqtt://[::1]:7000/", 7000, False)],
)
def test_a_url_is_read(url: str, port: int, tls: bool) -> None:
    location = options(url=url).location
    assert (location.port, location.tls) == (port, tls)


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ("", "is not a topic filter"),
        ("a\0b", "is not a topic filter"),
        ("x" * 65_536, "is not a topic filter"),
        ("#/a", "'#' must be the whole last level"),
        ("a#", "'#' must be the whole last level"),
        ("a/b+", "'+' must be a whole level"),
        ("$share/a", "must be $share/group/filter"),
        ("$share//a", "must be $share/group/filter"),
        ("$share/g+/a", "must be $share/group/filter"),
    ],
)
def test_a_bad_topic_filter_is_refused(topic: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        options(topics=[topic])
    assert str(caught.value).startswith("source.topics: ")
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("idle_timeout_s", "keepalive_s"), [(60, 30), (0, 60), (1, 1), (0.1, 1), (3600, 60), (5, 2)]
)
def test_a_ping_leaves_time_for_its_answer(idle_timeout_s: float, keepalive_s: int) -> None:
    assert options(idle_timeout_s=idle_timeout_s).keepalive_s == keepalive_s


@pytest.mark.parametrize(("topic", "inner"), [("$share/g/a/b", "a/b"), ("a/b", "a/b"), ("$SYS/x", "$SYS/x")])
def test_a_trial_is_no_member_of_a_group(topic: str, inner: str) -> None:
    assert unshared(topic) == inner


def test_the_library_still_makes_its_socket_where_we_hand_it_ours() -> None:
    """It is no documented hook: a release that takes it away must be noticed here, not at a user's."""
    assert "_create_socket" in vars(Client)


# -- where it begins -----------------------------------------------------------------------------------------

HERE = "2026-11-20T00:00:00.123456+00:00"


def stream(first: int = 1, last: int = 100, *, retention: Retention = Retention.LIMITS) -> StreamFacts:
    return StreamFacts("orders", HERE, retention, first, last)


def test_a_stream_is_read_from_what_the_server_says() -> None:
    answer = {
        "config": {"name": "orders", "retention": "workqueue", "max_msgs_per_subject": 1},
        "state": {"messages": 9, "first_seq": 2, "last_seq": 10},
        "created": "2026-11-20T00:00:00.123456789Z",
    }
    assert StreamFacts.of(answer) == StreamFacts(
        "orders", HERE, Retention.WORK_QUEUE, 2, 10, keeps_each=False
    )


def test_without_a_cursor_it_begins_where_it_is_told() -> None:
    assert choose_start(None, stream(), "all") == Start("all")
    assert choose_start(None, stream(), "last") == Start("last")
    assert choose_start(None, stream(), "new") == Start("by_start_sequence", seq=101)


@pytest.mark.parametrize("deliver", ["all", "new", "last"])
def test_a_cursor_goes_before_what_it_is_told(deliver: Any) -> None:
    assert choose_start(NatsCursor(50, HERE), stream(), deliver) == Start(
        "by_start_sequence", seq=51, landed=50
    )
    assert choose_start(NatsCursor(100, HERE), stream(), deliver) == Start(
        "by_start_sequence", seq=101, landed=100
    )


def test_what_was_discarded_after_the_cursor_is_a_gap() -> None:
    assert choose_start(NatsCursor(9, HERE), stream(first=10), "all").gap is None
    assert choose_start(NatsCursor(99, HERE), stream(first=101), "all").gap is not None
    start = choose_start(NatsCursor(8, HERE), stream(first=10), "all")
    assert (start.seq, start.landed) == (9, 8)
    assert start.gap == "the oldest message left is 10, the last one read was 8"
    assert start.missed == 1


@pytest.mark.parametrize("position", [NatsCursor(101, HERE), NatsCursor(50, "another time")])
def test_a_stream_that_is_another_one_is_read_from_its_beginning(position: NatsCursor) -> None:
    start = choose_start(position, stream(), "new")
    assert (start.policy, start.seq, start.landed) == ("all", None, 0)
    assert start.gap is not None
    assert "recreated" in start.gap


@pytest.mark.parametrize("position", [None, NatsCursor(50, HERE)])
@pytest.mark.parametrize("deliver", ["all", "new", "last"])
def test_a_work_queue_begins_with_what_is_left(position: NatsCursor | None, deliver: Any) -> None:
    start = choose_start(position, stream(retention=Retention.WORK_QUEUE), deliver)
    assert (start.policy, start.seq) == ("all", None)
    assert start.landed == (50 if position else 0)


# -- what it asks for ----------------------------------------------------------------------------------------


class Asked:
    """The requests that were published."""

    def __init__(self, messages: int = 10, room: Room = BOUNDLESS) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.pulls = Pulls(
            self.publish,
            subject="NEXT",
            inbox="IN",
            messages=messages,
            bytes_max=1000,
            heartbeat_s=0.5,
            room=room,
        )

    def publish(self, subject: str, body: bytes, reply: str) -> None:
        assert subject == "NEXT"
        self.requests.append((reply, msgspec.json.decode(body)))

    @property
    def batches(self) -> list[int]:
        return [body["batch"] for _, body in self.requests]


def status(code: str, said: str, reply: str) -> NatsMessage:
    return NatsMessage(b"2", reply, "", 0, raw_headers=f"NATS/1.0 {code} {said}\r\n\r\n".encode())


def test_it_asks_anew_when_half_has_come() -> None:
    asked = Asked(10)
    asked.pulls.ask()
    asked.pulls.ask()
    assert asked.requests == [
        ("IN.1", {"batch": 10, "max_bytes": 1000, "expires": 60_000_000_000, "idle_heartbeat": 500_000_000})
    ]
    for _ in range(4):
        asked.pulls.arrived()
        asked.pulls.ask()
    assert asked.batches == [10]
    asked.pulls.arrived()
    asked.pulls.ask()
    assert asked.batches == [10, 5]
    assert asked.pulls.asked == 10


def test_what_was_asked_for_takes_room_until_it_has_come_or_the_request_has_ended() -> None:
    budget = InflightBudget(100_000)
    one, two, three = (Asked(1000, budget) for _ in range(3))
    for each in (one, two, three):
        each.pulls.ask()
    assert one.batches == [64], "few at first"
    assert two.batches[0] < 64, "no more than there is room for"
    assert three.batches == [1], "in a full worker one, or it would starve"
    taken = budget.bytes
    one.pulls.arrived(30_000)
    assert budget.bytes < taken, "whoever holds the message takes room for it now"
    two.pulls.handle(status("408", "Request Timeout", "IN.1"))
    one.pulls.close()
    three.pulls.close()
    three.pulls.close()
    assert budget.bytes == 0


def test_a_feed_whose_messages_come_asks_for_more_and_one_without_for_fewer_again() -> None:
    asked = Asked(1000)
    for _ in range(2000):
        asked.pulls.ask()
        asked.pulls.arrived(100)
    assert asked.batches[0] == 64
    assert 500 <= max(asked.batches) <= 1000
    for number in range(len(asked.requests) + 1, len(asked.requests) + 9):
        asked.pulls.close()
        asked.pulls.ask()
        asked.pulls.handle(status("408", "Request Timeout", f"IN.{number}"))
    assert asked.batches[-1] == 64


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("404", "No Messages"),
        ("408", "Request Timeout"),
        ("409", "Message Size Exceeds MaxBytes"),
        ("409", "Batch Completed"),
    ],
)
def test_a_request_that_has_ended_is_made_anew(code: str, said: str) -> None:
    asked = Asked(10)
    asked.pulls.ask()
    asked.pulls.arrived()
    assert asked.pulls.handle(status(code, said, "IN.1")) is None
    assert asked.pulls.asked == 0
    asked.pulls.ask()
    assert asked.batches == [10, 10]
    # One that has already been served ends nothing else.
    assert asked.pulls.handle(status(code, said, "IN.1")) is None
    assert asked.pulls.asked == 10


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.orders.name.1.17.3.1795167253292007528.4",
        "$JS.ACK.hub.ACCHASH.orders.name.1.17.3.1795167253292007528.4",
        "$JS.ACK._.ACCHASH.orders.name.1.17.3.1795167253292007528.4.token",
    ],
)
def test_a_reply_says_where_a_message_stands(reply: str) -> None:
    assert Received.of(reply) == Received(17, 3, 1795167253292007528)


class Said:
    """A connection on which a server has said something, all at once, and then nothing."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces, b""]

    async def receive(self) -> bytes:
        return self._pieces.pop(0)


def link(*said: bytes) -> RedisLink:
    return RedisLink(cast("SourceConnection", Said(*said)), where="host")


async def test_answers_are_read_however_they_are_cut() -> None:
    said = b"*4\r\n$3\r\nabc\r\n:-7\r\n$-1\r\n*1\r\n+OK\r\n"
    assert await link(said).answer() == [b"abc", -7, None, [b"OK"]]
    assert await link(*(said[n : n + 1] for n in range(len(said)))).answer() == [b"abc", -7, None, [b"OK"]]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"$3\r\nabcd\r\n", "a text that is not as long as declared"),
        (b"*1\r\n" * (DEPTH_MAX + 1) + b":1\r\n", "nested deeper"),
        (b"$x\r\n", "an invalid length"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not in Redis's protocol"),
    ],
)
async def test_what_no_redis_answers_is_told(said: bytes, complaint: str) -> None:
    with pytest.raises(BrokenAnswer, match=complaint):
        await link(said).answer()
