"""A worker with a beat of its own (``-B``): whatever ends the worker, and whenever, ends its beat."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from feedq.local.process import free_port
from feedq.telemetry.logs import LogEvent
from tests.cluster import Cluster, wait_until
from tests.node import Node

ROUNDS = 5
"""Whether a beat that was just forked hears a signal is a matter of microseconds."""


def group_of(worker: Node) -> list[str]:
    """What is left of the processes that a worker started, itself included."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == worker.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.info['cmdline']}")
    return found


def waits(worker: Node) -> bool:
    return worker.log.exists() and bool(worker.events(LogEvent.DATABASE_AWAY))


def ends_whole(worker: Node, how: signal.Signals) -> None:
    worker.signal(how)
    assert worker.wait(20) == (0 if how is signal.SIGTERM else -how), worker.text()[-4000:]
    wait_until(lambda: not group_of(worker), lambda: f"all have ended: {group_of(worker)}", limit_s=10)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_beat_of_a_worker_that_waits_for_its_database_ends_with_it(
    tmp_path: Path, database_url: str, broker_url: str, how: signal.Signals
) -> None:
    nowhere = {"FEEDQ_DATABASE_URL": f"postgresql://nobody@127.0.0.1:{free_port()}/none"}
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, with_roles=False) as cluster:
        for number in range(ROUNDS):
            worker = cluster.add_worker(f"w{number}", "-B", env=nowhere, ready=False)
            wait_until(lambda: waits(worker), worker.text)  # noqa: B023
            ends_whole(worker, how)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_beat_of_a_worker_that_serves_ends_with_it(
    tmp_path: Path, database_url: str, broker_url: str, how: signal.Signals
) -> None:
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, with_roles=False) as cluster:
        worker = cluster.add_worker("w1", "-B")
        wait_until(
            lambda: cluster.sql("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'feedq-beat%'"),
            "its beat takes part in the election",
        )
        wait_until(lambda: len(group_of(worker)) >= 3, "itself, its monitor and its beat run")
        ends_whole(worker, how)
