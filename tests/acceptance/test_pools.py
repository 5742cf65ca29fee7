"""Workers on Celery's own pools run ordinary tasks whatever else is sent to them, and get no feeds and no jobs."""

from __future__ import annotations

import signal
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from celery import Celery

from feedq.celery.application import DEFAULT_QUEUE
from feedq.celery.tasks import STREAM_FEED
from feedq.control.store.postgresql import PostgresStore
from feedq.telemetry.logs import LogEvent
from tests import forged
from tests.cluster import Cluster, feed, wait_until
from tests.schedules import schedule_spec
from tests.source_process import Source

pytestmark = pytest.mark.timeout(240)

TASKS = """
import os
from celery import shared_task

@shared_task(name="tests.touch")
def touch(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
"""


LIMIT_S = 60.0
FORGED = 300


def forge(broker_url: str) -> None:
    """Send forged messages, of which every other one has time limits that are none."""
    rng = Random(11)
    no_limits: tuple[Any, ...] = ("x", ["x", "y"], [{}, None], 5, [1e308, "9"])
    with closing(redis.Redis.from_url(broker_url)) as client:
        for limits in no_limits * (FORGED // 10):
            wrong = forged.Forged(b"[[], {}, {}]", {"task": STREAM_FEED, "id": "1", "timelimit": limits})
            for message in (wrong, forged.task(rng)):
                client.lpush(DEFAULT_QUEUE, forged.envelope(message, rng, routing_key=DEFAULT_QUEUE))


@pytest.mark.parametrize(
    ("pool", "options"),
    [("prefork", ()), ("prefork", ("--autoscale=2,1",)), ("threads", ()), ("solo", ())],
    ids=["prefork", "autoscale", "threads", "solo"],
)
def test_a_pool_of_celerys_own_runs_ordinary_tasks_and_nothing_of_feedq(
    tmp_path: Path, database_url: str, broker_url: str, pool: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "pool_tasks.py").write_text(TASKS)
    done = tmp_path / "done"
    env = {"FEEDQ_IMPORTS": "pool_tasks", "PYTHONPATH": str(tmp_path)}
    store = PostgresStore(database_url)
    with (
        Source(rate=20) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=env) as cluster,
        Celery(broker=broker_url) as sender,
    ):
        cluster.add_beat("b1")
        worker = cluster.add_worker("w1", "-P", pool, *options, capacity=2, ready=False)
        cluster.apply([feed("one", source.url)])
        later = datetime.now(UTC) + timedelta(hours=1)
        store.jobs.schedules.add(
            schedule_spec("never", every=86_400.0, anchor=later, task="tests.touch", args=["x"])
        )
        store.jobs.schedules.trigger("never")

        forge(broker_url)
        sender.send_task("tests.touch", (str(done),), queue=DEFAULT_QUEUE)
        wait_until(lambda: done.exists() and done.read_text(), worker.text)
        assert (int(done.read_text()) == worker.pid) is (pool != "prefork")
        (said,) = worker.events(LogEvent.TASKS_ONLY)
        assert said["pool"] == ("thread" if pool == "threads" else pool)

        # It makes passes, as any worker of that queue does, and gives itself nothing.
        wait_until(
            lambda: cluster.sql("SELECT 1 FROM feedq.fleet WHERE pass_at IS NOT NULL"), "a pass was made"
        )
        assert cluster.sql("SELECT 1 FROM feedq.worker") == []
        assert {row.state for row in cluster.leases().values()} == {"idle"}
        assert [run.state.value for run in store.jobs.schedules.runs("never")] == ["waiting"]
        assert source.live() == {}

        worker.signal(signal.SIGTERM)
        assert worker.wait(LIMIT_S) == 0, worker.text()[-4000:]
    store.close()
