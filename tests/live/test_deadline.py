"""The hard limit of leaving."""

from __future__ import annotations

import time
from threading import Event

from feedq.worker.threads import Deadline

LIMIT_S = 10.0


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
