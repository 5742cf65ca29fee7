"""Messages that are repeated, late, forged or garbage: one log line, and nothing else happens."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Queue

from feedq.local.valkey import Valkey
from tests.cluster import wait_until
from tests.invariants import Mark, mark, wait_resumed
from tests.node import Node
from tests.stage import Stage

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

STREAM_FEED = "feedq.stream_feed"
DROPPED = "stream_feed message dropped"


@contextmanager
def sender(stage: Stage) -> Iterator[Callable[..., None]]:
    """Sends a task by name to a worker's own queue, as anybody with the broker's password can."""
    app = Celery(broker=stage.cluster.broker_url)

    def send(node: Node, args: Any, *, task: str = STREAM_FEED) -> None:
        app.send_task(task, args=args, queue=Queue(queue_of(stage, node)), declare=(), serializer="json")

    try:
        yield send
    finally:
        app.close()


def queue_of(stage: Stage, node: Node) -> str:
    rows = stage.cluster.sql("SELECT queue FROM feedq.worker WHERE pid = %s AND state <> 'gone'", (node.pid,))
    queue: str = rows[0]["queue"]
    return queue


class Before:
    """What must be the same afterwards."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.epochs = stage.cluster.epochs(stage.feeds)
        self.mark: Mark = mark(stage.source)
        self.logged = {node.name: len(node.text().encode()) for node in self._nodes()}

    def _nodes(self) -> list[Node]:
        return list(self.stage.cluster.workers.values())

    def dropped(self) -> list[dict[str, Any]]:
        """The log lines about dropped messages since, of all workers."""
        return [
            event for node in self._nodes() for event in node.events(DROPPED, since=self.logged[node.name])
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """The log lines of some severity since, of all workers."""
        return [
            event
            for node in self._nodes()
            for event in node.events(since=self.logged[node.name])
            if event.get("level") in ("warning", "error", "critical")
        ]

    def assert_only_dropped(self, count: int) -> None:
        """Exactly ``count`` messages were dropped, with a line each, and nobody noticed."""
        wait_until(
            lambda: len(self.dropped()) >= count,
            limit_s=15,
            what=lambda: f"{count} messages dropped, not only {self.dropped()}",
        )
        self.assert_undisturbed()
        assert len(self.dropped()) == count

    def assert_undisturbed(self) -> None:
        self.stage.wait_landing(limit_s=10)
        assert [c.feed for c in self.stage.source.connections(since=self.mark.connections)] == []
        self.stage.check(untouched=self.epochs)
        assert [node.name for node in self._nodes() if not node.is_running()] == []


def test_a_message_that_comes_again_three_times_is_dropped_three_times(stage: Stage) -> None:
    victim = stage.busiest()
    row = stage.cluster.leases()[stage.cluster.feeds_of(victim)[0]]
    before = Before(stage)
    with sender(stage) as send:
        for _ in range(3):
            send(victim, (row.feed_id, row.epoch))
    before.assert_only_dropped(3)


def test_a_message_to_the_wrong_worker_is_dropped(stage: Stage) -> None:
    victim = stage.busiest()
    other = next(node for node in stage.cluster.workers.values() if node is not victim)
    row = stage.cluster.leases()[stage.cluster.feeds_of(victim)[0]]
    before = Before(stage)
    with sender(stage) as send:
        send(other, (row.feed_id, row.epoch))
    before.assert_only_dropped(1)


def test_an_old_epoch_is_dropped_by_the_owner_and_by_everybody_else(stage: Stage) -> None:
    chosen = stage.feeds[0]
    old = stage.cluster.leases()[chosen]
    restarted = mark(stage.source)
    stage.cluster.feedq("feed", "restart", chosen)
    wait_resumed(stage.source, [chosen], after=restarted, limit_s=20)
    before = Before(stage)
    with sender(stage) as send:
        for node in stage.cluster.workers.values():
            send(node, (old.feed_id, old.epoch))
    before.assert_only_dropped(len(stage.cluster.workers))


FORGED = [
    [999_999_999, 1],
    [1, 999_999_999],
    [0, 0],
    [-1, 1],
    [2**70, 1],
    ["1; DROP TABLE feedq.lease", 1],
    [None, None],
    [[1], {"a": 1}],
    [],
    [1, 1, 1],
]


def test_forged_feed_ids_are_dropped(stage: Stage) -> None:
    victim = stage.busiest()
    before = Before(stage)
    with sender(stage) as send:
        for args in FORGED:
            send(victim, args)
    before.assert_only_dropped(len(FORGED))


def envelope(body: bytes, *, task: str, content_type: str) -> dict[str, Any]:
    """A message as kombu lays it into a Redis list."""
    task_id = str(uuid.uuid4())
    return {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8" if content_type == "application/json" else "binary",
        "content-type": content_type,
        "headers": {"lang": "py", "task": task, "id": task_id, "root_id": task_id, "argsrepr": "()"},
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "garbage"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }


class Bomb:
    """Pickled, it would run a command in whoever unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a worker unpickled a message",))


GARBAGE = {
    "bytes that are no text": b"\x00\xff\xfe\x80 no text",
    "text that is no JSON": b"this is no JSON",
    "half a message": b'{"body": "W1',
    "JSON that is no object": b"[1, 2, 3]",
    "an object that is no message": b'{"hello": "world"}',
    "a message with a body that is no base64": json.dumps(
        envelope(b"", task=STREAM_FEED, content_type="application/json") | {"body": "%%%"}
    ).encode(),
    "a body that is no JSON": json.dumps(
        envelope(b"{{{", task=STREAM_FEED, content_type="application/json")
    ).encode(),
    "an unknown task": json.dumps(
        envelope(b"[[], {}, {}]", task="acme.unheard_of", content_type="application/json")
    ).encode(),
    "an unknown content type": json.dumps(
        envelope(b"[[], {}, {}]", task=STREAM_FEED, content_type="application/x-carrier-pigeon")
    ).encode(),
    "a pickle": json.dumps(
        envelope(pickle.dumps(Bomb()), task=STREAM_FEED, content_type="application/x-python-serialize")
    ).encode(),
}


def wait_emptied(client: redis.Redis, queue: str) -> None:
    wait_until(lambda: not client.exists(queue), limit_s=15, what=f"somebody took what lies in {queue}")


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_in_the_queues_harms_nobody(stage: Stage, valkey: Valkey, kind: str) -> None:
    victim = stage.busiest()
    queues = (queue_of(stage, victim), "feedq", "feedq.control")
    before = Before(stage)
    client = valkey.client()
    try:
        for queue in queues:
            client.lpush(queue, GARBAGE[kind])
            wait_emptied(client, queue)
    finally:
        client.close()
    wait_until(
        lambda: len(before.complaints()) >= len(queues),
        limit_s=10,
        what=lambda: f"a line for each: {before.complaints()}",
    )
    before.assert_undisturbed()
    assert len(before.complaints()) == len(queues), before.complaints()


def test_what_comes_behind_all_that_garbage_is_still_heard(stage: Stage, valkey: Valkey) -> None:
    client = valkey.client()
    try:
        for node in stage.cluster.workers.values():
            client.lpush(queue_of(stage, node), *GARBAGE.values())
        client.lpush("feedq.control", *GARBAGE.values())
    finally:
        client.close()
    before = mark(stage.source)
    chosen = [stage.cluster.feeds_of(node)[0] for node in stage.cluster.workers.values()]
    stage.cluster.feedq("feed", "restart", *chosen)
    wait_resumed(stage.source, chosen, after=before, limit_s=20)
    stage.check(untouched=stage.epochs_but(chosen))
