"""What a task message may say: everything that Celery sends, and nothing that it would stumble over."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from celery import Celery
from celery.canvas import chain, group
from kombu.message import Message

from feedq.celery import broker
from feedq.celery.broker import BoundedClock, BoundedDispatcher, task_problem
from tests import forged

QUEUE = "feedq"
HEADERS: dict[str, Any] = {"lang": "py", "task": "a", "id": "1", "retries": 0, "timelimit": [None, None]}
EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def nothing(*_: Any, **__: Any) -> None: ...


@pytest.fixture
def app() -> Celery:
    """An app whose tasks send messages that stay in this process."""
    app = Celery(broker="memory://", set_as_current=False)
    app.task(nothing, name="a")
    app.finalize()
    return app


def sent(app: Celery) -> Message:
    """The message that was sent last."""
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        message: Message = queue.get(timeout=5)
        message.accept = {"application/json"}
        return message


def message_of(body: Any, **headers: Any) -> Message:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(
        text,
        content_type="application/json",
        content_encoding="utf-8",
        headers={**HEADERS, **headers},
        accept={"application/json"},
    )


@pytest.mark.parametrize("protocol", [1, 2])
def test_whatever_celery_sends_is_fit(app: Celery, protocol: int) -> None:
    app.conf.task_protocol = protocol
    a = app.tasks["a"]
    sends: list[Callable[[], object]] = [
        lambda: a.delay(),
        lambda: a.apply_async((1, {"x": [None]}), {"y": 2}, countdown=5, expires=60, retries=3),
        lambda: a.apply_async(time_limit=10, soft_time_limit=5.5, priority=3, shadow="b", group_id="g"),
        lambda: a.apply_async(link=a.s(1), link_error=[a.s(), a.s()]),
        lambda: a.apply_async(stamped_headers=["x"], x="y", headers={"mine": [1]}, compression="zlib"),
        lambda: chain(a.s(1), a.s(2), group(a.s(), a.s())).apply_async(),
        lambda: a.apply_async(chord=a.s(3)),
    ]
    for send in sends:
        send()
        assert task_problem(sent(app)) is None


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"{}", {}, "body is not"),
        (b"1", {}, "body is not"),
        (b"[1]", {}, "body is not"),
        (b"{", {}, "body cannot be decoded"),
        (b"[" * 100_000, {}, "body cannot be decoded"),
        ([{}, {}, EMBED], {}, "args are no list"),
        ([[], [], EMBED], {}, "kwargs are no object"),
        ([[], {}, None], {}, "embed is no object"),
        ([[], {}, {"callbacks": 5}], {}, "callbacks is no list of tasks"),
        ([[], {}, {"errbacks": ["x"]}], {}, "errbacks is no list of tasks"),
        ([[], {}, {"chain": [{"task": 5}]}], {}, "chain is no list of tasks"),
        ([[], {}, {"chord": 1}], {}, "chord is no task"),
        ([[], {}, {"id": "2"}], {}, "embed may not say id"),
        ([[], {}, EMBED], {"task": 5}, "task is no text"),
        ([[], {}, EMBED], {"id": [1]}, "id is no text"),
        ([[], {}, EMBED], {"eta": 5}, "eta is no time"),
        ([[], {}, EMBED], {"eta": "0001-01-01T00:00:00+14:00"}, "eta is no time"),
        ([[], {}, EMBED], {"expires": "never"}, "expires is no time"),
        ([[], {}, EMBED], {"retries": 10**400}, "retries is no number"),
        ([[], {}, EMBED], {"timelimit": 5}, "timelimit is not"),
        ([[], {}, EMBED], {"timelimit": ["a", "b"]}, "timelimit is not"),
        ([[], {}, EMBED], {"group": 5}, "group is no text"),
        ([[], {}, EMBED], {"argsrepr": {}}, "argsrepr is no text"),
        ([[], {}, EMBED], {"stamped_headers": 5}, "stamped_headers are no list"),
        ([[], {}, EMBED], {"get": 1}, "a header may not be called 'get'"),
    ],
)
def test_what_celery_would_stumble_over_is_named(body: Any, headers: dict[str, Any], said: str) -> None:
    problem = task_problem(message_of(body, **headers))
    assert problem is not None
    assert problem.startswith(said)


def test_no_forged_message_makes_the_look_itself_raise() -> None:
    rng = Random(5)
    for _ in range(5_000):
        message = forged.task(rng)
        task_problem(
            Message(
                message.body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=message.headers,
                properties=message.properties,
                accept={"application/json"},
            )
        )


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
