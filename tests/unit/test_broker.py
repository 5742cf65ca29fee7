"""What messages and events may take of a worker: none takes more memory than it may, or upsets the clock."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any

import pytest
from celery import Celery

from feedq.celery import broker
from feedq.celery.broker import BoundedClock, BoundedDispatcher


def nothing(*_: Any, **__: Any) -> None: ...


@pytest.fixture
def app() -> Celery:
    """An app whose tasks send messages that stay in this process."""
    app = Celery(broker="memory://", set_as_current=False)
    app.task(nothing, name="a")
    app.finalize()
    return app


@pytest.mark.parametrize(
    ("method", "pack"), [("zlib", zlib.compress), ("bzip2", bz2.compress), ("lzma", lzma.compress)]
)
def test_a_message_that_unpacks_to_more_than_the_limit_is_refused_unread(
    method: str, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2**16
    monkeypatch.setattr(broker, "MESSAGE_BYTES_MAX", limit)
    assert broker._size_problem(pack(bytes(1000)), {"compression": method}) is None
    problem = broker._size_problem(pack(bytes(limit + 1)), {"compression": method})
    assert problem is not None
    assert problem == "larger than 65,536 bytes when it is unpacked"


def test_events_that_wait_for_a_broker_are_bounded(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "EVENTS_WAITING_MAX", 10)
    with app.connection_for_write() as connection:
        dispatcher = BoundedDispatcher(connection, app=app, buffer_group=["task"])
        dispatcher.close()  # as while the broker is away
        for _ in range(100):
            dispatcher.send("task-progress", uuid="1")
    assert len(dispatcher._group_buffer["task"]) == 10


def test_the_clock_adopts_no_number_that_could_not_be_sent_on() -> None:
    clock = BoundedClock()
    assert clock.adjust(41) == 42
    others: list[Any] = [10**4_299, 2**63 - 1, "x", None, [], -5]
    for other in others:
        assert clock.adjust(other) < 100
