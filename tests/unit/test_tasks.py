"""When the messages of a pass leave."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from uuid import uuid4

import pytest

from feedq import tasks
from feedq.model import Assignment
from feedq.settings import settings
from feedq.tasks import SENT_AFTER_S, SENT_AT_ONCE, dispatch, sent_after_s

LIMIT_S = 10.0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Assignment]]:
    batches: list[Sequence[Assignment]] = []
    monkeypatch.setattr(tasks, "_send_all", batches.append)
    return batches


def assignments(count: int) -> list[Assignment]:
    worker_id = uuid4()
    return [Assignment(feed_id, 1, worker_id, "queue") for feed_id in range(1, count + 1)]


def test_few_messages_leave_at_once(sent: list[Sequence[Assignment]]) -> None:
    few = assignments(SENT_AT_ONCE)
    dispatch(few)
    assert sent == [few]


def test_many_leave_once_their_workers_had_time_to_connect_and_all_of_them_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_left, before = Event(), Event()
    batches: list[Sequence[Assignment]] = []

    def send_all(batch: Sequence[Assignment]) -> None:
        assert before.is_set(), "they left before dispatch returned"
        batches.append(batch)
        have_left.set()

    monkeypatch.setattr(tasks, "_send_all", send_all)
    many = assignments(SENT_AT_ONCE + 1)
    dispatch(many)
    before.set()
    assert have_left.wait(LIMIT_S)
    assert batches == [many]


def test_the_more_begin_the_longer_their_messages_wait_but_not_until_they_are_overdue() -> None:
    waits_s = [sent_after_s(count) for count in (SENT_AT_ONCE, SENT_AT_ONCE + 1, 1_000, 10_000, 10**6)]
    assert waits_s == sorted(waits_s)
    assert waits_s[0] == 0.0
    assert waits_s[1] >= SENT_AFTER_S
    assert waits_s[-1] <= settings().dispatch_timeout_s / 2
