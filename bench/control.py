"""The control plane at size: a million feeds and a thousand workers as rows of a real PostgreSQL.

The feeds are declared as `feedq.control.store.feeds` leaves them, the passes are the real ones, and the
statements of the workers (register, claim, heartbeat) are the real ones too; only the worker processes are not
there, so messages are counted and not sent. What sending costs is measured apart, through Celery into a real
Valkey.

Three sizes, ten times larger each, tell how it grows.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

import psutil
import psycopg2

from bench.report import Figure, at_most, say
from bench.servers import started
from feedq.control import reconcile as control
from feedq.control.reconcile import PassReport, reconcile
from feedq.control.store.migrate import upgrade
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import WorkerSession
from feedq.core import limits
from feedq.core.model import Assignment, Load, NewWorker, Worker
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from feedq.settings import Settings

SIZES: Final = ((10_000, 10), (100_000, 100), (1_000_000, 1_000))
SPARE: Final = 1.25
"""Capacity of the workers over the feeds: one of them can be lost."""
CLAIMS: Final = 1_000
CLAIMING: Final = 10
"""Workers that claim what they are given by the real statement: the rate is the same for all."""
IDLE_PASSES: Final = 20
BEATING_S: Final = 20.0
INTERVAL_S: Final = 2.0
SENDERS: Final = 8
"""Threads that send the heartbeats, each worker's on a session of its own."""
TTL_S: Final = 3600.0
"""So long that the simulated workers need no heartbeats while something else is measured."""
SETTINGS: Final = {"max_connections": str(max(workers for _, workers in SIZES) + 100)}
MESSAGES: Final = 10_000
LIMIT_S: Final = 600.0
_SEND: Final = """
import time
from uuid import uuid4
from feedq.celery.application import app
from feedq.core import limits
from feedq.core.model import Assignment
from feedq.celery.tasks import send_all
worker = uuid4()
assignments = [Assignment(n, 1, worker, "feedq.node.bench") for n in range(1, {count} + 1)]
send_all(assignments[:100])
began = time.monotonic()
send_all(assignments)
print(len(assignments) / (time.monotonic() - began))
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one size took, in seconds and cores."""

    feeds: int
    workers: int
    first_s: float
    idle_s: float
    death_s: float
    heartbeat_cores: float
    claims_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.feeds:,} feeds on {self.workers:,} workers: first placement {self.first_s:.1f} s, "
            f"idle pass {1000 * self.idle_s:.1f} ms, a death {1000 * self.death_s:.0f} ms, "
            f"heartbeats {self.heartbeat_cores:.3f} core, claims {self.claims_per_s:,.0f} a second"
        )


def measure(directory: Path, *, sizes: Sequence[tuple[int, int]] = SIZES) -> Iterator[Figure]:
    # Three descriptors a session; the usual soft limit is 1,024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with started(Postgres(directory, settings=SETTINGS)) as postgres:
        measured = []
        for feeds, workers in sizes:
            measured.append(_measure(postgres, feeds=feeds, workers=workers))
            say(str(measured[-1]))
        with started(Valkey(directory)) as valkey:
            rate = _messages_per_s(postgres, valkey)
    yield from _figures(measured)
    rates = ", ".join(f"{f.claims_per_s:,.0f} at {f.feeds:,}" for f in measured)
    yield Figure("claims, a thousand a statement, one worker after the other", "-", f"{rates} a second", None)
    yield Figure("stream_feed messages sent through Celery into Valkey", "-", f"{rate:,.0f} a second", None)


def _figures(measured: Sequence[Figures]) -> Iterator[Figure]:
    largest = measured[-1]
    case = f"{largest.feeds:,} feeds on {largest.workers:,} workers"
    before = measured[:-1]
    yield at_most(
        f"{case}: first placement of all", 60.0, largest.first_s, "s", runs=_growth(before, "first_s")
    )
    yield at_most(f"{case}: idle pass", 0.05, largest.idle_s, "s", runs=_growth(before, "idle_s"))
    lost = largest.feeds // largest.workers
    yield at_most(
        f"{case}: a worker's death, {lost:,} feeds placed",
        0.5,
        largest.death_s,
        "s",
        runs=_growth(before, "death_s"),
    )
    yield at_most(
        f"{case}: a heartbeat of each every {INTERVAL_S:g} s, CPU of PostgreSQL",
        0.3,
        largest.heartbeat_cores,
        "cores",
        runs=_growth(before, "heartbeat_cores"),
    )


def _growth(smaller: Sequence[Figures], name: str) -> str:
    return ", ".join(f"{getattr(f, name):.3g} at {f.feeds:,}" for f in smaller)


def _measure(postgres: Postgres, *, feeds: int, workers: int) -> Figures:
    url = postgres.create_database("control")
    upgrade(url)
    store = PostgresStore(url, retention_days=14)
    settings = Settings.model_construct(settle_s=0.0, ttl_s=6.0)
    try:
        with (
            closing(psycopg2.connect(url)) as session,
            # Nothing falls due but what is measured.
            patch.object(control, "SWEEP_INTERVAL_S", 3600.0),
            patch.object(limits, "DISPATCH_TIMEOUT_S", 3600.0),
        ):
            session.autocommit = True
            _declare(session, feeds)
            fleet = _register(store, workers, capacity=int(SPARE * feeds / workers))
            ids = [worker.id for worker in fleet]
            first_s = _place_all(store, settings, feeds)
            claims = _claim_all(store, session, ids)
            idle_s = _idle(store, settings)
            cores = _heartbeats(postgres, store, session, fleet)
            death_s = _death(store, settings, session, ids)
    finally:
        store.close()
    postgres.drop_database("control")
    return Figures(feeds, workers, first_s, idle_s, death_s, cores, claims)


# -- a fleet on rows ---------------------------------------------------------------------------------


def _declare(session: Any, feeds: int) -> None:
    """New feeds of a thousand tenants, with what `Feeds.add` leaves of each: a lease and an event.
    The sweep, which looks for what was changed by hand, is not due."""
    with session.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO feedq.feed (name, tenant, connector, source, sink, dirty)
            SELECT 'tenant' || mod(n, 1000) || '/feed-' || n, 'tenant' || mod(n, 1000), 'tcp',
                jsonb_build_object('url', 'tcp://feeds.example.com:7001', 'cursor', '/seq'),
                '{"name": "default", "table": "landed"}', false
            FROM generate_series(1, %s) AS n
            """,
            (feeds,),
        )
        cursor.execute("INSERT INTO feedq.lease (feed_id) SELECT id FROM feedq.feed ORDER BY id")
        cursor.execute("INSERT INTO feedq.event (kind, feed_id) SELECT 'feed_added', id FROM feedq.feed")
        cursor.execute("UPDATE feedq.fleet SET sweep_at = clock_timestamp()")
        # Autovacuum does this within a minute of such a change.
        cursor.execute("ANALYZE feedq.feed, feedq.lease")


def _register(store: PostgresStore, count: int, *, capacity: int) -> list[Worker]:
    names = [f"w{n}" for n in range(count)]
    return [
        store.workers.register(
            NewWorker(uuid4(), f"{name}@host", f"feedq.node.{name}", capacity, "host", 1, "bench"),
            ttl_s=TTL_S,
        )
        for name in names
    ]


def _place_all(store: PostgresStore, settings: Settings, feeds: int) -> float:
    placed = 0
    began = time.monotonic()
    while placed < feeds:
        assert time.monotonic() - began < LIMIT_S, f"{placed:,} of {feeds:,} placed after {LIMIT_S:g} s"
        placed += len(_pass(store, settings).assignments)
    return time.monotonic() - began


def _pass(store: PostgresStore, settings: Settings) -> PassReport:
    sent: list[Assignment] = []
    report = reconcile(store, sent.extend, settings)
    assert report is not None, "another pass is under way"
    return report


def _claim_all(store: PostgresStore, session: Any, ids: Sequence[Any]) -> float:
    """Claims a second, by the first workers; the others' leases are turned to what claims would leave."""
    claimed, began = 0, time.monotonic()
    with session.cursor() as cursor:
        for worker_id in ids[:CLAIMING]:
            cursor.execute(
                "SELECT feed_id, epoch FROM feedq.lease WHERE worker_id = %s AND state = 'assigned'",
                (str(worker_id),),
            )
            keys = [(row[0], row[1]) for row in cursor.fetchall()]
            for at in range(0, len(keys), CLAIMS):
                page = keys[at : at + CLAIMS]
                assert len(store.leases.claim(worker_id, page)) == len(page)
                claimed += len(page)
        rate = claimed / (time.monotonic() - began)
        cursor.execute(
            "UPDATE feedq.lease SET state = 'running', reason = NULL, due_at = NULL, generation = 1, "
            "running_since = clock_timestamp() WHERE state = 'assigned'"
        )
        # Autovacuum does this within a minute of such a change.
        cursor.execute("VACUUM ANALYZE feedq.lease")
    return rate


# -- the cases ---------------------------------------------------------------------------------------


def _idle(store: PostgresStore, settings: Settings) -> float:
    """The median of passes that find nothing to do."""
    while _pass(store, settings).did_something:
        pass  # what the placement left uneven, if it did
    took = []
    for _ in range(IDLE_PASSES):
        began = time.monotonic()
        report = _pass(store, settings)
        took.append(time.monotonic() - began)
        assert not report.did_something, report
    return statistics.median(took)


def _heartbeats(postgres: Postgres, store: PostgresStore, session: Any, fleet: Sequence[Worker]) -> float:
    """Cores of PostgreSQL while every worker beats, over what it takes when none does: on the lease keepers' own
    sessions, which live for days, so that the first heartbeat of each does not count."""
    load = Load(feeds=1_000, cpu=0.3, rss=2**27, loop_lag_s=0.001, rows_per_s=1_000.0, bytes_per_s=1e5)
    with ExitStack() as ends:
        lease_keepers = [ends.enter_context(closing(store.session(worker, ttl_s=TTL_S))) for worker in fleet]
        for lease_keeper in lease_keepers:
            lease_keeper.heartbeat(load)
        idle = _cores(postgres, lambda: time.sleep(BEATING_S / 4))
        with ThreadPoolExecutor(SENDERS) as threads:
            lanes = [lease_keepers[n::SENDERS] for n in range(SENDERS)]
            busy = _cores(postgres, lambda: list(threads.map(partial(_beat, load=load), lanes)))
    _await_the_end_of_sessions(session)
    return max(0.0, busy - idle)


def _beat(lease_keepers: Sequence[WorkerSession], *, load: Load) -> None:
    began = time.monotonic()
    for turn in range(int(BEATING_S / INTERVAL_S)):
        for n, lease_keeper in enumerate(lease_keepers):
            due = began + INTERVAL_S * (turn + n / len(lease_keepers))
            time.sleep(max(0.0, due - time.monotonic()))
            assert lease_keeper.heartbeat(load) is not None


def _await_the_end_of_sessions(session: Any) -> None:
    """On the server, where a session holds its worker's lock until its backend is gone."""
    deadline = time.monotonic() + LIMIT_S
    with session.cursor() as cursor:
        while True:
            cursor.execute("SELECT FROM pg_stat_activity WHERE application_name LIKE 'feedq-keeper/%'")
            if not cursor.rowcount:
                return
            assert time.monotonic() < deadline, "closed sessions are still there"
            time.sleep(0.1)


def _cores(postgres: Postgres, work: Callable[[], object]) -> float:
    """Cores that all processes of the server used meanwhile."""
    before, began = _cpu_s(postgres), time.monotonic()
    work()
    return (_cpu_s(postgres) - before) / (time.monotonic() - began)


def _cpu_s(postgres: Postgres) -> float:
    """Of those that run and, in the postmaster's account, of those that have ended."""
    server = psutil.Process(postgres.pid)
    ended = server.cpu_times()
    used = ended.children_user + ended.children_system
    for process in (server, *server.children(recursive=True)):
        # In nanoseconds: a session that beats for a minute uses less than one tick of what psutil reads.
        with suppress(FileNotFoundError, ProcessLookupError):
            used += int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9
    return used


def _death(store: PostgresStore, settings: Settings, session: Any, ids: Sequence[Any]) -> float:
    """From a pass that finds a worker without a session to its feeds' new assignments, committed."""
    victim = ids[0]
    with session.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM feedq.lease WHERE worker_id = %s", (str(victim),))
        held = cursor.fetchone()[0]
        # Nobody is declared gone within a ttl of the server's start.
        cursor.execute(
            "UPDATE feedq.fleet SET alive_since = alive_since - interval '1 hour', alive_at = clock_timestamp()"
        )
        cursor.execute(
            "SELECT greatest(0, extract(epoch FROM pg_postmaster_start_time() - clock_timestamp()) + %s)::float8",
            (settings.ttl_s,),
        )
        time.sleep(cursor.fetchone()[0])
        cursor.execute(
            "UPDATE feedq.worker SET suspected_at = clock_timestamp() WHERE id = %s", (str(victim),)
        )
    began = time.monotonic()
    placed = 0
    while placed < held:
        assert time.monotonic() - began < LIMIT_S
        placed += len(_pass(store, settings).assignments)
    return time.monotonic() - began


def _messages_per_s(postgres: Postgres, valkey: Valkey) -> float:
    """How fast assignments leave as Celery messages, to a queue that nobody reads."""
    env = {**os.environ, "FEEDQ_DATABASE_URL": postgres.url(), "FEEDQ_BROKER_URL": valkey.url()}
    ran = subprocess.run(
        [sys.executable, "-c", _SEND.format(count=MESSAGES)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return float(ran.stdout)
