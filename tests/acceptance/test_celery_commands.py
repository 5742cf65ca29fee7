"""Celery's own commands and signals: no worker ends by one that should not end it, and each works or says what to
use instead."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedq.control.store.grants import Role
from tests.cluster import ROOT, Cluster, Place, feed, wait_until
from tests.invariants import check_invariants, wait_streaming
from tests.node import Node
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

FEED = "commanded"
LIMIT_S = 30.0
START_MORE = "restart it with other values, or start more workers"
COMMANDS = {
    "status": "1 node online",
    "report": "software -> celery:5.7",
    "purge -f": "purged from 2 queues",
    "list bindings": "node.w1",
    "call feedq.reconcile": "-",
    "inspect ping": "pong",
    "inspect report": "software -> celery:5.7",
    "inspect conf": '"beat_scheduler": "feedq.celery.beat:ElectedScheduler"',
    "inspect stats": '"feeds": 1',
    "inspect clock": '"clock"',
    "inspect active": "feedq.stream_feed",
    "inspect active_queues": "feedq.control",
    "inspect registered": "feedq.reconcile",
    "inspect scheduled": "- empty -",
    "inspect reserved": "- empty -",
    "inspect revoked": "OK",
    "inspect query_task unknown": "{}",
    "inspect memsample": "MB",
    "inspect memdump": "rss (end)",
    "control revoke unknown": "flagged as revoked",
    "control terminate SIGTERM unknown": "tasks unknown",
    "control revoke_by_stamped_headers a=b": "flagged as revoked",
    "control rate_limit feedq.reconcile 1000/s": "new rate limit set",
    "control time_limit feedq.reconcile 60 50": "time limits set",
    "control enable_events": "task events already enabled",
    "control disable_events": "OK",
    "control heartbeat": "OK",
    "control add_consumer another": "add consumer another",
    "control cancel_consumer another": "no longer consuming from another",
    "control election": "TypeError",
    "control pool_grow 1": START_MORE,
    "control pool_shrink 1": START_MORE,
    "control pool_restart": START_MORE,
    "control autoscale 10 1": START_MORE,
}


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with Source(rate=20) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(place: Place, source: Source) -> Iterator[Cluster]:
    with place.cluster() as running:
        running.add_beat("b1")
        running.add_worker("w1", gossip=True)
        running.apply([feed(FEED, source.url)])
        wait_streaming(source, [FEED])
        yield running


@pytest.fixture
def worker(cluster: Cluster, source: Source) -> Iterator[Node]:
    """A worker that streams, and must do so to the end of the test, undisturbed."""
    epochs = cluster.epochs()
    yield cluster.workers["w1"]
    assert cluster.workers["w1"].is_running()
    check_invariants(cluster, source, [FEED], untouched=epochs)


def celery(cluster: Cluster, tmp_path: Path, command: str) -> Node:
    """Begin a command of Celery."""
    argv = [sys.executable, "-m", "celery", "-A", "feedq", *command.split()]
    assert cluster.nursery is not None
    node = cluster.nursery.node("command", argv, env=cluster.env, cwd=ROOT, log=tmp_path / "command.log")
    node.start()
    return node


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_or_says_what_to_use_instead(
    command: str, cluster: Cluster, worker: Node, tmp_path: Path
) -> None:
    word, *rest = command.split()
    if word in ("status", "inspect", "control"):
        # By itself it waits for a second, and for all that time; of one that is named, for the answer.
        rest = ["--timeout=20", f"--destination={cluster.leases()[FEED].worker}", *rest]
    ran = celery(cluster, tmp_path, " ".join((word, *rest)))
    assert ran.wait(LIMIT_S) == 0, ran.text()
    assert COMMANDS[command] in ran.text()


def test_events_are_shown(cluster: Cluster, worker: Node, tmp_path: Path) -> None:
    events = celery(cluster, tmp_path, "events --dump")
    wait_until(lambda: "heartbeat" in events.text(), limit_s=LIMIT_S, what=events.text)
    events.signal(signal.SIGINT)
    events.wait(LIMIT_S)


def test_usr1_shows_what_each_thread_does(worker: Node) -> None:
    worker.signal(signal.SIGUSR1)
    stacks = ("\nMainThread\n===", "\nfeedq-loop\n===")
    wait_until(lambda: all(stack in worker.text() for stack in stacks), limit_s=LIMIT_S, what=worker.text)


def test_hup_starts_a_worker_anew_and_shutdown_ends_it(cluster: Cluster, tmp_path: Path) -> None:
    # Celery calls the program again that it was called by, which `python -m celery` does not survive.
    program = str(Path(sys.executable).with_name("celery"))
    argv = [program, "-A", "feedq", "worker", "-n", "w2@w2", "-c", "10", "--without-mingle"]
    env = {**cluster.env, **cluster.as_role(Role.WORKER)}
    node = cluster.workers["w2"] = Node("w2", argv, env=env, cwd=ROOT, log=tmp_path / "w2.log")
    node.start()
    cluster.wait_worker("w2")
    before = cluster.worker_id(node)
    wait_until(lambda: "w2@w2 ready" in node.text(), limit_s=LIMIT_S, what=node.text)
    node.signal(signal.SIGHUP)
    active = "SELECT 1 FROM feedq.worker WHERE name = 'w2@w2' AND state = 'active' AND id <> %s"
    wait_until(lambda: cluster.sql(active, (before,)), limit_s=LIMIT_S, what=node.text)
    wait_until(lambda: node.text().count("w2@w2 ready") == 2, limit_s=LIMIT_S, what=node.text)
    assert node.is_running()
    celery(cluster, tmp_path, "control -d w2@w2 shutdown").wait(LIMIT_S)
    assert node.wait(LIMIT_S) == 0, node.text()
    assert cluster.sql(active, (before,)) == []


def test_autoscale_is_refused_with_what_to_use_instead(cluster: Cluster) -> None:
    node = cluster.add_worker("w3", "--autoscale=10,3", ready=False)
    assert node.wait(LIMIT_S) == 1
    assert "-c" in node.text().splitlines()[-1]
    assert "-P prefork" in node.text().splitlines()[-1]
