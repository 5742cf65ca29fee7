"""When the messages of a pass leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from uuid import uuid4

import pytest

from feedq.celery import tasks
from feedq.celery.tasks import dispatch, run_reconcile
from feedq.control import reconcile as control
from feedq.control.reconcile import PassReport
from feedq.core.limits import (
    AFTER_FAST_PATH_S,
    MESSAGES_AT_ONCE,
)
from feedq.core.model import Assignment
from feedq.errors import Unavailable

LIMIT_S = 30.0


def assignments(count: int) -> list[Assignment]:
    worker_id = uuid4()
    return [Assignment(feed_id, 1, worker_id, "queue") for feed_id in range(1, count + 1)]


def test_many_leave_once_their_workers_had_time_to_connect_and_all_of_them_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_left, before = Event(), Event()
    batches: list[Sequence[Assignment]] = []

    def send_all(batch: Sequence[Assignment]) -> None:
        assert before.is_set(), "they left before dispatch returned"
        batches.append(batch)
        have_left.set()

    monkeypatch.setattr(tasks, "send_all", send_all)
    many = assignments(MESSAGES_AT_ONCE + 1)
    dispatch(many)
    before.set()
    assert have_left.wait(LIMIT_S)
    assert batches == [many]


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize(("left_out", "wakes"), [(False, 1), (True, 0)])
def test_what_the_fast_path_leaves_is_asked_for_in_a_moment(
    is_away: bool, left_out: bool, wakes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[float] = []

    class Waking:
        @property
        def fleet(self) -> Waking:
            return self

        def wake(self) -> None:
            woken.append(AFTER_FAST_PATH_S)
            if is_away:
                raise Unavailable("it is away")

    class AtOnce:
        def __init__(self, wait_s: float, function: Callable[..., None], arguments: Sequence[object]) -> None:
            assert wait_s == AFTER_FAST_PATH_S
            self._function, self._arguments = function, arguments

        def start(self) -> None:
            self._function(*self._arguments)

    report = PassReport(workers_gone=1, more=True, is_fast_path=True, left_out=left_out)
    monkeypatch.setattr(tasks, "store", Waking)
    monkeypatch.setattr(control, "reconcile", lambda *_, **__: report)
    monkeypatch.setattr(tasks, "Timer", AtOnce)
    assert run_reconcile() == "assigned 0"
    assert len(woken) == wakes
