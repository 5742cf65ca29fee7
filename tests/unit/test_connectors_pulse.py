"""When to ping a source and when to give it up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.protocol.websocket_connection import Due, Pulse


def pulse(*, ping: float = 20, answer: float = 10, idle: float = 60) -> Pulse:
    return Pulse(ping_interval_s=ping, ping_timeout_s=answer, idle_timeout_s=idle, now=100)


def test_a_ping_that_nothing_follows_gives_the_source_up_and_another_ping_does_not_put_that_off() -> None:
    beat = pulse(ping=4)
    beat.pinged(104)
    beat.pinged(108)
    assert beat.due(113.9) is Due.PING
    assert beat.due(114) is Due.UNANSWERED


def test_only_messages_keep_a_source_from_being_silent() -> None:
    beat = pulse()
    beat.heard(150, message=True)
    beat.heard(205, message=False)
    assert beat.due(209.9) is not Due.SILENT
    assert beat.due(210) is Due.SILENT


@given(
    st.lists(st.tuples(st.floats(0, 30), st.sampled_from(("heard", "message", "look"))), max_size=40),
    st.sampled_from((0.0, 5.0, 20.0)),
    st.sampled_from((0.0, 10.0)),
)
def test_something_is_due_exactly_from_the_time_that_was_announced(
    steps: list[tuple[float, str]], ping: float, idle: float
) -> None:
    beat, now = pulse(ping=ping, idle=idle), 100.0
    for wait, step in steps:
        announced = beat.next_at
        now += wait
        assert (beat.due(now) is Due.NOTHING) == (now < announced)
        match step:
            case "look" if beat.due(now) is Due.PING:
                beat.pinged(now)
            case "heard" | "message":
                beat.heard(now, message=step == "message")
                assert beat.next_at >= announced
