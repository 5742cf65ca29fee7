"""The faults of the promise, as procedures: each does one thing to a stage, and measures what it cost.

The chaos tests assert on them with limits for a noisy machine; `bench.faults` repeats them and compares the
figures with the promise itself. None of them waits for the fleet to be whole again: `Stage.heal` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2
from celery import Celery

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedSpec
from feedq.local.postgres import Postgres
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.invariants import Mark, Took, check_invariants, connections_of, mark, wait_resumed, wait_streaming
from tests.node import Node
from tests.proxy import PlainProxy
from tests.source_process import Source
from tests.stage import WORKERS, Stage, wall_clock

FAILOVER_LIMIT_S = 30.0
DRAIN_LIMIT_S = 15.0
MANY_FEEDS = 500
FEW_FEEDS = 9
PACE_OFF = {"FEEDQ_CONNECTS_PER_S": "0", "FEEDQ_HOST_CONNECTS_PER_S": "{}"}
"""For what a fleet takes by itself; with the pace on, its connections are spread on purpose."""
PLACED_LIMIT_S = 10.0
"""For a feed to begin elsewhere, or at all, on a noisy machine."""
SETTLE_S = 2.0
"""A fleet of workers that all are younger than this takes itself for a cold start, and waits."""


def kill_worker(stage: Stage) -> tuple[Took, dict[str, int]]:
    """``kill -9`` of the busiest worker. Returns what it took, and the epochs it must not have changed."""
    victim = stage.busiest()
    feeds = stage.cluster.feeds_of(victim)
    untouched = stage.epochs_but(feeds)
    took = stage.wait_resumed(feeds, lambda: victim.signal(signal.SIGKILL), limit_s=FAILOVER_LIMIT_S)
    victim.wait(5)
    return took, untouched


def place_feed(stage: Stage, name: str) -> float:
    """Declare one more feed. Returns the seconds until it was sent its first record."""
    store = PostgresStore(stage.cluster.database_url)
    try:
        store.now()  # the session is there
        before = mark(stage.source)
        store.feeds.add(FeedSpec(**feed(name, stage.source.url)))
        stage.feeds.append(name)
        return wait_resumed(stage.source, [name], after=before, limit_s=FAILOVER_LIMIT_S).last_s
    finally:
        store.close()


BROKER_TROUBLES = ("frozen", "hanging", "dropping")


@contextmanager
def broker_in_trouble(kind: str, pid: int, proxy: PlainProxy) -> Iterator[None]:
    """A broker behind a proxy that is there and does not answer, for the length of the block.

    ``frozen``: the server is stopped. ``hanging``: connections are accepted, and nothing comes back. ``dropping``:
    nobody gets in, and what was sent is lost, without a word.
    """
    if kind == "frozen":
        os.kill(pid, signal.SIGSTOP)
    elif kind == "hanging":
        proxy.hang()
    else:
        proxy.drop()
    try:
        yield
    finally:
        if kind == "frozen":
            os.kill(pid, signal.SIGCONT)
        else:
            proxy.resume()


@contextmanager
def few_feeds(cluster: Cluster, *, postgres: Postgres) -> Iterator[Stage]:
    """A few feeds on three workers under one beat, of a cluster that is empty yet."""
    names = feed_names(FEW_FEEDS)
    with Source(rate=10.0) as source, cluster:
        cluster.add_beat("b1")
        cluster.add_workers(WORKERS)
        cluster.apply([feed(name, source.url) for name in names])
        stage = Stage(cluster, source, names, postgres=postgres)
        stage.heal()
        yield stage


@contextmanager
def lone_worker(cluster: Cluster) -> Iterator[Source]:
    """A few feeds that stream on one worker, which listens to the events of others, as Celery does by default."""
    names = feed_names(FEW_FEEDS)
    with Source(rate=10.0) as source, cluster:
        cluster.add_beat("b1")
        cluster.add_worker("w1", gossip=True)
        cluster.apply([feed(name, source.url) for name in names])
        wait_streaming(source, names)
        yield source


def assert_untouched(cluster: Cluster, source: Source, *, before: Mark, epochs: Mapping[str, int]) -> None:
    """All feeds of a `lone_worker` stream as they did, and it still hears and answers messages."""
    assert [c.feed for c in source.connections(since=before.connections)] == []
    check_invariants(cluster, source, feed_names(FEW_FEEDS), untouched=epochs)
    wait_answering(cluster)


def wait_answering(cluster: Cluster) -> None:
    """Wait until every worker answers a ping through the broker."""
    running = [node for node in cluster.workers.values() if node.is_running()]
    wait_until(
        lambda: answering(cluster.broker_url) == len(running),
        "every worker answers a ping through the broker",
    )


def answering(broker_url: str) -> int:
    """How many workers answer a ping, over a connection of its own: earlier ones may have been cut."""
    app = Celery(broker=broker_url, set_as_current=False)
    with app.connection_for_write() as connection:
        return len(app.control.ping(timeout=1.0, connection=connection))


def terminate_worker(stage: Stage) -> tuple[Took, dict[str, int]]:
    """SIGTERM of the busiest worker, which must exit with status 0."""
    victim = stage.busiest()
    feeds = stage.cluster.feeds_of(victim)
    untouched = stage.epochs_but(feeds)
    ended: list[float] = []

    def fault() -> float:
        moment = victim.signal(signal.SIGTERM)
        try:
            status = victim.wait(DRAIN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{victim.name} did not end:\n{victim.text()[-4000:]}") from None
        ended.append(time.monotonic() - moment)
        assert status == 0, f"{victim.name} ended with {status}:\n{victim.text()[-4000:]}"
        return moment

    took = stage.wait_resumed(feeds, fault, limit_s=FAILOVER_LIMIT_S)
    return Took(took.delays_s, exit_s=ended[0]), untouched


@contextmanager
def frozen_worker(stage: Stage, victim: Node) -> Iterator[tuple[list[str], float]]:
    """A worker that is stopped for the length of the block: its feeds, and the moment it stopped."""
    feeds = stage.cluster.feeds_of(victim)
    stage.frozen.update(connections_of(stage.source, feeds))
    moment = victim.freeze()
    try:
        yield feeds, moment
    finally:
        victim.thaw()


def freeze_worker(stage: Stage) -> tuple[Took, dict[str, int], Node]:
    """SIGSTOP of the busiest worker until its feeds stream elsewhere, then SIGCONT."""
    victim = stage.busiest()
    untouched = stage.epochs_but(stage.cluster.feeds_of(victim))
    before = mark(stage.source)
    with frozen_worker(stage, victim) as (feeds, moment):
        took = wait_resumed(stage.source, feeds, after=before, since=moment, limit_s=FAILOVER_LIMIT_S)
    return took, untouched, victim


def freeze_inside_transaction(stage: Stage) -> tuple[Took, Node]:
    """SIGSTOP of a worker while its writer's transaction is open; delays count from the moment it was gone.

    A lock on the landing table makes every writer wait inside its transaction, the checkpoint rows locked.
    The victim is frozen there, then the lock goes: the others commit, the victim's transaction stays open.
    """
    victim = stage.busiest()
    worker_id = stage.cluster.worker_id(victim)
    before = mark(stage.source)
    lock = psycopg2.connect(stage.cluster.database_url)
    try:
        lock.cursor().execute("LOCK TABLE landed IN EXCLUSIVE MODE")
        wait_until(
            lambda: waiting_in_transaction(stage.cluster, victim),
            f"{victim.name}'s writer waits inside its transaction",
            limit_s=10,
        )
        with frozen_worker(stage, victim) as (feeds, _):
            lock.rollback()
            wait_until(
                lambda: gone_at(stage.cluster, worker_id) is not None,
                f"{victim.name} is declared gone",
                limit_s=FAILOVER_LIMIT_S,
            )
            gone = gone_at(stage.cluster, worker_id)
            assert gone is not None
            since = gone - wall_clock(0.0)
            took = wait_resumed(stage.source, feeds, after=before, since=since, limit_s=FAILOVER_LIMIT_S)
    finally:
        lock.close()
    return took, victim


def waiting_in_transaction(cluster: Cluster, node: Node) -> bool:
    """Whether one of its sessions waits for a lock on a table, its transaction open.

    Of those that it has now: a worker that was declared gone a moment ago opens a new one to write with.
    """
    backends = [row["pid"] for row in cluster.backends(node)]
    return bool(
        cluster.sql(
            """
            SELECT 1 FROM pg_locks k JOIN pg_stat_activity a USING (pid)
            WHERE k.pid = ANY(%s) AND NOT k.granted AND k.locktype = 'relation' AND a.xact_start IS NOT NULL
            """,
            (backends,),
        )
    )


@contextmanager
def many_feeds(directory: Path, *, postgres: Postgres, broker_url: str, database: str) -> Iterator[Stage]:
    """A worker with `MANY_FEEDS` feeds of one record a second, and an idle one beside it."""
    names = feed_names(MANY_FEEDS, prefix="many")
    # The idle worker is there to take over, not to be given half of them first.
    env = {**PACE_OFF, "FEEDQ_MOVES_PER_PASS": "0"}
    url = postgres.create_database(database)
    with (
        Source(rate=1.0) as source,
        Cluster(directory, database_url=url, broker_url=broker_url, env=env) as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_worker("w1", capacity=MANY_FEEDS)
        cluster.apply([feed(name, source.url) for name in names])
        wait_streaming(source, names)
        cluster.add_worker("w2", capacity=MANY_FEEDS)
        settled = (
            "SELECT 1 FROM feedq.worker WHERE name LIKE 'w2@%%' "
            "AND started_at < clock_timestamp() - make_interval(secs => %s)"
        )
        wait_until(lambda: cluster.sql(settled, (SETTLE_S,)), "the idle worker has settled")
        yield Stage(cluster, source, names, postgres=postgres)
    postgres.drop_database(database)


def gone_at(cluster: Cluster, worker_id: str) -> float | None:
    """The epoch second at which a worker was declared gone, if it was."""
    rows = cluster.sql(
        "SELECT extract(epoch FROM at)::float8 AS at FROM feedq.event "
        "WHERE kind = 'worker_gone' AND worker_id = %s",
        (worker_id,),
    )
    return rows[0]["at"] if rows else None


def kill_leader(stage: Stage) -> float:
    """``kill -9`` of the elected beat. Returns the seconds until another one is."""
    leader = stage.cluster.wait_leader()
    moment = leader.signal(signal.SIGKILL)
    leader.wait(5)
    return wait_other_leader(stage.cluster, leader) - moment


def freeze_leader(stage: Stage) -> tuple[float, Node]:
    """SIGSTOP of the elected beat until another one is elected, then SIGCONT."""
    leader = stage.cluster.wait_leader()
    moment = leader.freeze()
    try:
        took = wait_other_leader(stage.cluster, leader) - moment
    finally:
        leader.thaw()
    return took, leader


def kill_worker_and_beats(stage: Stage) -> tuple[Took, dict[str, int]]:
    """``kill -9`` of the busiest worker in a fleet that has no beat left."""
    for beat in stage.cluster.beats.values():
        beat.signal(signal.SIGKILL)
        beat.wait(5)
    return kill_worker(stage)


def wait_other_leader(cluster: Cluster, previous: Node) -> float:
    def other() -> bool:
        rows = cluster.sql("SELECT pid FROM feedq.leader WHERE expires_at > clock_timestamp()")
        return any(row["pid"] != previous.pid for row in rows)

    return wait_until(other, "another beat is elected", limit_s=FAILOVER_LIMIT_S, interval_s=0.005)


def restart_database(stage: Stage) -> tuple[float, float]:
    """A fast restart of PostgreSQL. Returns the seconds until all land, since its stop and its return."""
    moment = time.monotonic()
    stage.postgres.stop()
    stage.postgres.start()
    back = time.monotonic()
    all_land = stage.wait_landing(limit_s=FAILOVER_LIMIT_S)
    return all_land - moment, all_land - back


def terminate_sessions(stage: Stage) -> float:
    """End each database session of the busiest worker in turn. Returns the longest time until all landed."""
    backends = stage.cluster.backends(stage.busiest())
    assert backends, "a worker without a database session"
    return max(terminate_backend(stage, backend) for backend in backends)


def terminate_backend(stage: Stage, backend: dict[str, Any]) -> float:
    """End one database session of a worker. Returns the seconds until everything sent by then had landed."""
    moment = time.monotonic()
    stage.cluster.sql("SELECT pg_terminate_backend(%s)", (backend["pid"],))
    return stage.wait_landing(limit_s=FAILOVER_LIMIT_S) - moment


@contextmanager
def frozen_database(postgres: Postgres, cluster: Cluster, *, cut: bool) -> Iterator[None]:
    """No session is answered, and none can be had; those that there were are cut off, or go on afterwards."""
    server = psutil.Process(postgres.pid)
    database = cluster.database_url.rpartition("/")[2]
    sessions = [process for process in server.children() if database in " ".join(process.cmdline())]
    assert sessions
    stopped = [server] if cut else [server, *sessions]
    try:
        send_signal(stopped, signal.SIGSTOP)
        if cut:
            send_signal(sessions, signal.SIGTERM)
        yield
    finally:
        send_signal(stopped, signal.SIGCONT)


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """To each that is still there: a session may end at any moment."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
