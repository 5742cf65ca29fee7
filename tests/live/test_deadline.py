"""The hard limit of leaving."""

from __future__ import annotations

import time

from feedq.worker.threads import Deadline
from tests.waiting import until


def test_the_deadline_waits_for_work_that_is_meant_to_be_waited_for() -> None:
    busy_until = time.monotonic() + 0.5
    ended_at: list[float] = []
    deadline = Deadline(
        0.05,
        is_busy=lambda: time.monotonic() < busy_until,
        leave=lambda _: ended_at.append(time.monotonic()),
    )
    deadline.look()
    assert not ended_at, "it has not begun"
    deadline.begin(0)

    def has_ended() -> bool:
        deadline.look()
        return bool(ended_at)

    until(has_ended, "it ends the process")
    assert ended_at[0] >= busy_until
