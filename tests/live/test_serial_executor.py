"""Jobs in order on a thread that nobody has to wait for, and the hard limit of leaving."""

from __future__ import annotations

import time
from threading import Event

import pytest

from feedq.worker.threads import Deadline, SerialExecutor

LIMIT_S = 10.0


def test_an_error_is_told_to_whoever_asked_and_does_not_end_the_lane() -> None:
    lane = SerialExecutor("test")
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 / 0).result(LIMIT_S)
    assert lane.submit(int, "7").result(LIMIT_S) == 7
    lane.close(timeout_s=LIMIT_S, drop_waiting=False)


def test_a_lane_that_closes_does_what_waits_or_drops_it() -> None:
    for drop in (False, True):
        lane, started, go_on, done = SerialExecutor("test"), Event(), Event(), list[int]()
        lane.submit(lambda s=started, g=go_on: (s.set(), g.wait(LIMIT_S)))
        assert started.wait(LIMIT_S)
        waiting = lane.submit(done.append, 1)
        assert not lane.close(timeout_s=0.01, drop_waiting=drop)
        go_on.set()
        assert lane.close(timeout_s=LIMIT_S, drop_waiting=drop)
        assert (waiting.cancelled(), done) == ((True, []) if drop else (False, [1]))
        with pytest.raises(RuntimeError):
            lane.submit(done.append, 2)


def test_the_deadline_waits_for_work_that_is_meant_to_be_waited_for() -> None:
    left, busy_until = Event(), time.monotonic() + 0.5
    ended_at: list[float] = []

    def leave(_: int) -> None:
        ended_at.append(time.monotonic())
        left.set()

    deadline = Deadline(0.05, is_busy=lambda: time.monotonic() < busy_until, leave=leave)
    deadline.start()
    deadline.begin(0)
    assert left.wait(LIMIT_S)
    assert ended_at[0] >= busy_until
