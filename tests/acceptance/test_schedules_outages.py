"""Runs through an outage of the control database and the end of all workers: only their owner ends them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.spec import Semantics
from feedq.local.postgres import Postgres
from tests import jobs_under_test
from tests.cluster import Cluster, wait_until
from tests.faults import frozen_database
from tests.schedules import Keys, never

pytestmark = pytest.mark.timeout(150)

TAKES_S = 4.0
TIMEOUT_S = 8.0
"""Of runs that are over in time, and of whose end the database hears when their time is up by its clock."""
TTL_S = 2.0
ENV = {
    "FEEDQ_IMPORTS": "tests.jobs_under_test",
    "FEEDQ_HEARTBEAT_S": "0.5",
    "FEEDQ_TTL_S": str(TTL_S),
}


@pytest.fixture
def cluster(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=ENV) as made:
        made.make(jobs_under_test.TABLE)
        yield made


def declare(schedules: ScheduleStore, *, timeout_s: float) -> None:
    """One schedule of each semantics, which runs when it is triggered only."""
    job: Keys = {"task": "tests.pause", "args": [TAKES_S], "timeout": timeout_s}
    for semantics in Semantics:
        schedules.add(never(semantics, semantics=semantics, **job))


def begin(cluster: Cluster, schedules: ScheduleStore) -> None:
    """Trigger one run of each, and wait until all have been claimed, and the transaction has its session."""
    for semantics in Semantics:
        schedules.trigger(semantics)
    wait_until(
        lambda: (
            len(cluster.sql("SELECT 1 FROM feedq.run WHERE state = 'running'")) == len(Semantics)
            and cluster.sql("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'feedq-job/%'")
        ),
        "all run",
    )


def ends(cluster: Cluster) -> dict[str, tuple[Any, ...]]:
    """State and attempt of the newest run of each schedule, once none is on its way."""
    wait_until(
        lambda: not cluster.sql("SELECT 1 FROM feedq.run WHERE ended_at IS NULL"),
        lambda: (
            f"all have ended: {cluster.sql('SELECT * FROM feedq.run')}\n"
            + "\n".join(node.text()[-3000:] for node in cluster.workers.values())
        ),
    )
    rows = cluster.sql(
        "SELECT s.name, r.state, r.attempt FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "ORDER BY r.id"
    )
    return {row["name"]: (row["state"], row["attempt"]) for row in rows}


def why(cluster: Cluster) -> str:
    return str(cluster.sql("SELECT state, attempt, reason FROM feedq.run ORDER BY id"))


def test_only_its_owner_ends_a_run(cluster: Cluster, schedules: ScheduleStore, postgres: Postgres) -> None:
    declare(schedules, timeout_s=TIMEOUT_S)
    cluster.add_beat("beat")
    cluster.add_worker("w1", "-Q", "jobs", capacity=8)
    begin(cluster, schedules)
    with frozen_database(postgres, cluster, cut=True):
        time.sleep(TIMEOUT_S + 2 * TTL_S)  # the length of the outage
    # All have ended in time; and of a transaction that was cut off nothing was kept.
    attempts = {s: 2 if s is Semantics.TRANSACTIONAL else 1 for s in Semantics}
    assert ends(cluster) == {s: ("succeeded", attempts[s]) for s in Semantics}, why(cluster)
    assert cluster.sql("SELECT detail FROM feedq.event WHERE kind = 'run_finish_rejected'") == []
    begin(cluster, schedules)
    cluster.workers["w1"].signal(signal.SIGKILL)
    time.sleep(TIMEOUT_S + 0.5)  # for which no worker is there
    cluster.add_worker("w2", "-Q", "jobs", capacity=8)
    assert ends(cluster) == {
        Semantics.AT_MOST_ONCE: ("lost", 1),
        Semantics.AT_LEAST_ONCE: ("succeeded", 2),
        Semantics.TRANSACTIONAL: ("succeeded", 2),
    }
