"""A thousand forged messages to one worker, over Valkey: it lives, and its feeds stream as before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from feedq.local.valkey import Valkey
from tests import forged
from tests.chaos.conftest import Stages
from tests.cluster import Cluster, wait_until
from tests.faults import assert_untouched, lone_worker
from tests.invariants import mark
from tests.source_process import Source

pytestmark = pytest.mark.timeout(240)

MESSAGES = 1_000
BROADCASTS = 200
LISTS = ("feedq", "feedq.control")
CHANNELS = ("/3.celery.pidbox", "/3.celeryev/worker.heartbeat", "/3.celeryev/worker.online")
SEED = 11
EMPTIED_S = 90.0


@pytest.fixture
def alone(
    stages: Stages, tmp_path: Path, database_url: str, broker_url: str
) -> Iterator[tuple[Cluster, Source]]:
    """One worker with a few feeds, which listens to the events of others, as Celery does by default."""
    stages.discard()  # it would take part of the machine
    cluster = Cluster(tmp_path, database_url=database_url, broker_url=broker_url)
    with lone_worker(cluster) as source:
        yield cluster, source


def test_forged_messages_end_no_worker(alone: tuple[Cluster, Source], valkey: Valkey) -> None:
    cluster, source = alone
    rng = Random(SEED)
    worker, before, epochs = cluster.workers["w1"], mark(source), cluster.epochs()
    queue = cluster.sql("SELECT queue FROM feedq.worker")[0]["queue"]
    client = valkey.client(database=3)
    try:
        for item in forged.raw(rng):
            for name in (queue, *LISTS):
                client.lpush(name, item)
            for channel in CHANNELS:
                client.publish(channel, item)
        for command in forged.commands():
            client.publish(CHANNELS[0], forged.envelope(command, None, routing_key=""))
        for number in range(MESSAGES):
            name = rng.choice((queue, *LISTS))
            client.lpush(name, forged.envelope(forged.task(rng), rng, routing_key=name))
            if number % (MESSAGES // BROADCASTS) == 0:
                channel = rng.choice(CHANNELS)
                client.publish(
                    channel, forged.envelope(forged.control(rng), rng, routing_key="worker.heartbeat")
                )
            assert worker.is_running(), worker.text()[-6000:]
        wait_until(
            lambda: not worker.is_running() or not any(client.llen(name) for name in (queue, *LISTS)),
            "all messages are taken",
            limit_s=EMPTIED_S,
        )
        assert worker.is_running(), worker.text()[-6000:]
        wait_until(
            lambda: not client.hlen("unacked"),
            lambda: f"none is left to come again: {json.dumps(list(map(str, client.hvals('unacked'))))}",
            limit_s=EMPTIED_S,
        )
    finally:
        client.close()
    assert_untouched(cluster, source, before=before, epochs=epochs)
