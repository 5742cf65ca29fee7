"""Options of the nats connector, where its consumer begins, and what it asks for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from feedq.connectors.protocol.nats_client import NatsMessage
from feedq.connectors.protocol.nats_consumer import (
    NatsCursor,
    Pulls,
    Received,
    Retention,
    Start,
    StreamFacts,
    choose_start,
)

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
    assert "made anew" in start.gap


@pytest.mark.parametrize("position", [None, NatsCursor(50, HERE)])
@pytest.mark.parametrize("deliver", ["all", "new", "last"])
def test_a_work_queue_begins_with_what_is_left(position: NatsCursor | None, deliver: Any) -> None:
    start = choose_start(position, stream(retention=Retention.WORK_QUEUE), deliver)
    assert (start.policy, start.seq) == ("all", None)
    assert start.landed == (50 if position else 0)


# -- what it asks for ----------------------------------------------------------------------------------------


class Asked:
    """The requests that were published."""

    def __init__(self, messages: int = 10) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.pulls = Pulls(
            self.publish, subject="NEXT", inbox="IN", messages=messages, bytes_max=1000, heartbeat_s=0.5
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
