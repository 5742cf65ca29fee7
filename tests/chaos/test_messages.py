"""Messages that are repeated, late, forged or garbage: one log line, and nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

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
