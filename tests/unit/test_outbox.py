"""Messages that leave on a thread of their own, and those that are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from time import monotonic

import pytest

from feedq.telemetry.logs import LogEvent
from feedq.telemetry.metrics import MESSAGES_LEFT_OUT
from feedq.worker.threads import Outbox
from tests.waiting import until

LIMIT_S = 30.0


def outbox_of(
    send: Callable[[Sequence[int]], object], *, stale_s: float = LIMIT_S, limit: int = 100
) -> Outbox[int]:
    return Outbox(send, stale_s=stale_s, event=LogEvent.DISPATCH_FAILED, waiting_max=limit)


class Broker:
    """Hangs until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = Event()
        self.sent: list[list[int]] = []

    def send(self, items: Sequence[int]) -> None:
        self.sent.append(list(items))
        self.go_on.wait(LIMIT_S)


def left_out() -> float:
    (metric,) = MESSAGES_LEFT_OUT.collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_total"))


def test_whoever_puts_does_not_wait_and_what_has_gathered_meanwhile_leaves_together() -> None:
    broker = Broker()
    outbox = outbox_of(broker.send)
    outbox.put([1])
    until(lambda: broker.sent, "the first is being sent")
    for number in (2, 3, 4):
        outbox.put([number])
    assert broker.sent == [[1]]
    broker.go_on.set()
    outbox.close(timeout_s=LIMIT_S)
    assert broker.sent == [[1], [2, 3, 4]]


def test_what_there_is_no_room_for_is_left_out_and_counted() -> None:
    broker, before = Broker(), left_out()
    outbox = outbox_of(broker.send, limit=3)
    outbox.put([1])
    until(lambda: broker.sent, "the first is being sent")
    outbox.put([2, 3])
    outbox.put([4, 5, 6])
    broker.go_on.set()
    outbox.close(timeout_s=LIMIT_S)
    assert broker.sent == [[1], [2, 3, 4]]
    assert left_out() - before == 2


def test_what_has_waited_too_long_is_not_sent_any_more() -> None:
    broker, before = Broker(), left_out()
    outbox = outbox_of(broker.send, stale_s=0.0)
    outbox.put([1, 2])
    outbox.close(timeout_s=LIMIT_S)
    assert broker.sent == []
    assert left_out() - before == 2


def test_a_broker_that_is_away_is_said_once_and_costs_only_what_it_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tries: list[int] = []

    def refuse(items: Sequence[int]) -> None:
        tries.append(len(items))
        raise ConnectionError("no broker")

    outbox, before = outbox_of(refuse), left_out()
    for number in range(1, 4):
        outbox.put([number])
        until(lambda: len(tries) == number, "tried")  # noqa: B023
    outbox.close(timeout_s=LIMIT_S)
    assert left_out() - before == 3
    assert "".join(capsys.readouterr()).count("could not be sent") == 1


def test_closing_waits_for_a_broker_that_hangs_only_so_long() -> None:
    broker = Broker()
    outbox = outbox_of(broker.send)
    outbox.put([1])
    began = monotonic()
    outbox.close(timeout_s=0.05)
    assert monotonic() - began < LIMIT_S / 2
    outbox.put([2])
    broker.go_on.set()
    assert broker.sent in ([], [[1]])
