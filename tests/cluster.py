"""`Cluster`: feedq as an operator runs it, workers and beats as plain Celery processes, seen from outside.

Nodes are started by the commands of the Procfile on an embedded PostgreSQL and Valkey. What they do is read
from the control tables, the landing table and the source's log, never asked of feedq's own code. Everything
started is ended by `close`, by its own process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg2
import psycopg2.extras

from feedq.control.store import grants
from feedq.control.store.database import connect_once
from feedq.control.store.grants import Role
from feedq.control.store.migrate import upgrade
from tests.node import INHERITED, Node
from tests.nursery import Nursery

ROOT = Path(__file__).resolve().parent.parent
FEEDQ = Path(sys.executable).with_name("feedq")
CLI_TIMEOUT_S = 60.0
STATEMENT_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Row:
    """A feed's lease, with the names of feed and worker."""

    feed: str
    feed_id: int
    epoch: int
    state: str
    reason: str | None
    worker: str | None
    worker_id: str | None
    connected: bool
    last_error: str | None
    records_total: int
    dead_letters_total: int


class CommandFailed(AssertionError):
    """A feedq command ended with another exit status than 0."""

    def __init__(self, ran: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{ran.args} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        self.ran = ran


PATIENCE_S = 60.0
"""Several times what anything here takes on a busy machine; a limit that is a promise is given."""


def wait_until(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    *,
    limit_s: float = PATIENCE_S,
    interval_s: float = 0.02,
) -> float:
    """Poll until the condition holds; returns the monotonic moment. Fails with ``what`` after the limit."""
    end = time.monotonic() + limit_s
    while True:
        if condition():
            return time.monotonic()
        if time.monotonic() >= end:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {limit_s:g} s: {said}")
        time.sleep(interval_s)


SINK_ROLE = grants.sink_role("default")
ROLE_PASSWORD = "as-a-role"


def make_roles(database_url: str) -> None:
    """The roles of `feedq db grants`, in a database that may be migrated or not."""
    with connect_once(database_url) as connection:
        sink = grants.sink_tables(connection, "default", with_control=True)
        passwords = dict.fromkeys([*map(str, Role), SINK_ROLE], ROLE_PASSWORD)
        grants.apply(database_url, grants.script(connection, grants.PREFIX, [sink], passwords), connection)


def url_of(url: str, role: str) -> str:
    """The same database, as somebody else."""
    parts = urlsplit(url)
    at = parts.netloc.rpartition("@")[2]
    name = grants.role_name(grants.PREFIX, role)
    return urlunsplit(parts._replace(netloc=f"{name}:{ROLE_PASSWORD}@{at}"))


class Cluster:
    """Workers and beats on one control database and one broker."""

    with_roles: bool
    roles_by_default: ClassVar[bool] = False
    nursery_by_default: ClassVar[Nursery | None] = None

    def __init__(
        self,
        directory: Path,
        *,
        database_url: str,
        broker_url: str,
        env: Mapping[str, str] | None = None,
        migrate: bool = True,
        with_roles: bool | None = None,
        forks: bool = True,
        nursery: Nursery | None = None,
        tree: Path = ROOT,
    ) -> None:
        """``database_url`` is that of a superuser, as whom the test looks and makes tables. The processes run as
        the roles of `feedq db grants` ``with_roles``, else as superusers too. They are forked from a
        ``nursery``, where there is one by default or given here; unless it ``forks`` none. Their code is that of
        ``tree``; of another one than this, none can be forked."""
        assert tree == ROOT or not forks
        self.tree = tree
        self.directory = directory
        self.nursery = (nursery or self.nursery_by_default) if forks else None
        self.database_url = database_url
        self.with_roles = self.roles_by_default if with_roles is None else with_roles
        self.given = frozenset(env or ())
        if self.with_roles:
            make_roles(database_url)
        self.broker_url = broker_url
        self.env = {
            **{name: os.environ[name] for name in INHERITED if name in os.environ},
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "FEEDQ_DATABASE_URL": database_url,
            "FEEDQ_BROKER_URL": broker_url,
            "FEEDQ_LOG_FORMAT": "json",
            **({} if tree == ROOT else {"PYTHONPATH": str(tree)}),
            **(env or {}),
        }
        self.env |= self.as_role(Role.OPERATOR)
        self.workers: dict[str, Node] = {}
        self.beats: dict[str, Node] = {}
        self._sql: Any = None
        if migrate:
            upgrade(url_of(database_url, Role.MIGRATION) if self.with_roles else database_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every node: beats and workers in good order where they still can, by force where not."""
        nodes = [*self.beats.values(), *self.workers.values()]
        for node in nodes:
            if node.status == "running":
                node.signal(signal.SIGTERM)
        end = time.monotonic() + 4.0
        while any(node.status == "running" for node in nodes) and time.monotonic() < end:
            time.sleep(0.02)
        for node in nodes:
            node.end()
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    # -- nodes ---------------------------------------------------------------------------------------

    def add_worker(
        self,
        name: str,
        *options: str,
        capacity: int = 100,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
        gossip: bool = False,
    ) -> Node:
        """Start a worker; with ``ready``, wait until its row is active. With ``gossip`` it listens to others."""
        node_id = f"{name}feedqtest"[:12].ljust(12, "0")
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "worker", "-n", f"{name}@{node_id}"]
        argv += ["-c", str(capacity), *(() if gossip else ("--without-mingle", "--without-gossip")), *options]
        node = self.workers[name] = self._node(name, argv, env=self.as_role(Role.WORKER, env), id=node_id)
        if ready:
            self.wait_worker(name)
        return node

    def add_workers(self, names: Collection[str], *options: str, **given: Any) -> None:
        """Start several at once, and wait until each is active."""
        for name in names:
            self.add_worker(name, *options, ready=False, **given)
        for name in names:
            self.wait_worker(name)

    def add_beat(self, name: str, *, env: Mapping[str, str] | None = None) -> Node:
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "beat"]
        node = self._node(name, argv, env=self.as_role(Role.BEAT, env))
        self.beats[name] = node
        return node

    def as_role(self, role: Role, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """``env`` with the databases as this role reaches them, wherever they are."""
        found = dict(env or {})
        if not self.with_roles:
            return found
        url = found.get("FEEDQ_DATABASE_URL", self.env["FEEDQ_DATABASE_URL"])
        found["FEEDQ_DATABASE_URL"] = url_of(url, role)
        if not ({*found, *self.given} & {"FEEDQ_SINKS__DEFAULT", "FEEDQ_SINKS"}):
            found["FEEDQ_SINKS__DEFAULT"] = url_of(url, SINK_ROLE)
        return found

    def _node(self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None, id: str = "") -> Node:
        make = Node if self.nursery is None else self.nursery.node
        log = self.directory / f"{name}.log"
        node = make(name, argv, env={**self.env, **(env or {})}, cwd=self.tree, log=log, id=id)
        node.start()
        return node

    def wait_worker(self, name: str) -> None:
        node = self.workers[name]
        wait_until(
            lambda: self._is_registered(node),
            lambda: f"worker {name} registered ({node.status}); its log ends:\n{node.text()[-4000:]}",
        )

    def _is_registered(self, node: Node) -> bool:
        assert node.is_running(), f"{node.name} ended by itself:\n{node.text()[-4000:]}"
        try:
            return bool(
                self.sql("SELECT 1 FROM feedq.worker WHERE state = 'active' AND pid = %s", (node.pid,))
            )
        except psycopg2.Error:
            return False

    def wait_leader(self) -> Node:
        wait_until(lambda: self.leader() is not None, "a beat is elected")
        leader = self.leader()
        assert leader is not None
        return leader

    def wait_candidate(self, beat: Node) -> None:
        """Wait until a beat takes part in the election."""
        wait_until(
            lambda: any(row["application_name"].startswith("feedq-beat") for row in self.backends(beat)),
            lambda: f"beat {beat.name} is a candidate ({beat.status}):\n{beat.text()[-4000:]}",
        )

    def leader(self) -> Node | None:
        """The elected beat, if its term has not expired."""
        rows = self.sql("SELECT pid FROM feedq.leader WHERE expires_at > clock_timestamp()")
        pids = {row["pid"] for row in rows}
        return next((beat for beat in self.beats.values() if beat.is_running() and beat.pid in pids), None)

    def heal(self, *, workers: Iterable[str], capacity: int = 100) -> None:
        """Start again whichever of these workers and of the beats has ended."""
        for name in workers:
            if name not in self.workers or not self.workers[name].is_running():
                self.add_worker(name, capacity=capacity)
        for name, beat in list(self.beats.items()):
            if not beat.is_running():
                self.add_beat(name)
        for beat in self.beats.values():
            self.wait_candidate(beat)

    # -- the command line ----------------------------------------------------------------------------

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A feedq command, whatever its outcome."""
        env = {**self.env, **(env or {})}
        if self.nursery is not None:
            return self.nursery.run(arguments, env=env, cwd=self.directory, timeout_s=CLI_TIMEOUT_S)
        return subprocess.run(
            [str(FEEDQ), *arguments],
            env=env,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=CLI_TIMEOUT_S,
            check=False,
        )

    def feedq(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """A feedq command that must succeed; returns what it printed."""
        ran = self.run(*arguments, env=env)
        if ran.returncode != 0:
            raise CommandFailed(ran)
        return ran.stdout

    def run_apply(self, **lists: Sequence[Mapping[str, Any]]) -> subprocess.CompletedProcess[str]:
        """Declare feeds, schedules or queues with ``feedq apply -f``, whatever the outcome."""
        file = self.directory / "manifest.json"
        file.write_text(json.dumps({key: list(entries) for key, entries in lists.items()}))
        return self.run("apply", "-f", str(file))

    def apply(
        self, feeds: Sequence[Mapping[str, Any]] = (), *, schedules: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Declare feeds and schedules, which must succeed."""
        ran = self.run_apply(feeds=feeds, schedules=schedules)
        if ran.returncode != 0:
            raise CommandFailed(ran)
        return ran.stdout

    # -- the tables ----------------------------------------------------------------------------------

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Run one statement on the control database, through a session that is opened anew when it broke."""
        for attempt in (1, 2):
            try:
                if self._sql is None or self._sql.closed:
                    self._sql = psycopg2.connect(
                        self.database_url,
                        connect_timeout=5,
                        application_name="feedq-tests",
                        options=f"-c statement_timeout={STATEMENT_TIMEOUT_S}s",
                    )
                    self._sql.autocommit = True
                with self._sql.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                    cursor.execute(statement, parameters or None)
                    return [dict(row) for row in cursor.fetchall()] if cursor.description else []
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def make(self, statement: str) -> None:
        """Make tables for feeds to land in, as the operator: of those a sink may write without further ado."""
        with (
            closing(psycopg2.connect(self.env["FEEDQ_DATABASE_URL"])) as operator,
            operator.cursor() as cursor,
        ):
            cursor.execute(statement)
            operator.commit()

    def leases(self) -> dict[str, Row]:
        rows = self.sql(
            """
            SELECT f.name AS feed, f.id AS feed_id, l.epoch, l.state, l.reason, w.name AS worker,
                   l.worker_id::text, p.connected AND p.epoch = l.epoch AS connected, p.last_error,
                   p.records_total, p.dead_letters_total
            FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id JOIN feedq.progress p ON p.feed_id = f.id
            LEFT JOIN feedq.worker w ON w.id = l.worker_id
            WHERE f.removed_at IS NULL
            """
        )
        return {row["feed"]: Row(**row) for row in rows}

    def epochs(self, feeds: Iterable[str] | None = None) -> dict[str, int]:
        wanted = None if feeds is None else set(feeds)
        return {name: row.epoch for name, row in self.leases().items() if wanted is None or name in wanted}

    def worker_id(self, node: Node) -> str:
        """The id of a node's live session."""
        rows = self.sql(
            "SELECT id::text FROM feedq.worker WHERE pid = %s AND state <> 'gone' ORDER BY started_at DESC",
            (node.pid,),
        )
        assert rows, f"{node.name} has no live session"
        found: str = rows[0]["id"]
        return found

    def feeds_of(self, node: Node) -> list[str]:
        """The feeds that a node holds by the leases."""
        worker_id = self.worker_id(node)
        return sorted(name for name, row in self.leases().items() if row.worker_id == worker_id)

    def backends(self, node: Node) -> list[dict[str, Any]]:
        """The database sessions of a node: rows of ``pg_stat_activity`` with its client ports."""
        port = int(self.database_url.rpartition(":")[2].partition("/")[0])
        mine = [
            c.laddr.port
            for c in psutil.Process(node.pid).net_connections(kind="tcp")
            if c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED
        ]
        return self.sql("SELECT * FROM pg_stat_activity WHERE client_port = ANY(%s)", (mine,))


@dataclass(frozen=True, slots=True)
class Place:
    """What a cluster needs of its own: a directory, a new database, and an emptied broker."""

    directory: Path
    database_url: str
    broker_url: str

    def cluster(self, **options: Any) -> Cluster:
        return Cluster(self.directory, database_url=self.database_url, broker_url=self.broker_url, **options)


def feed(
    name: str, url: str, *, sink: str = "default", table: str = "landed", **source: Any
) -> dict[str, Any]:
    """The declaration of a feed of `tests.source`, as feeds.yaml has it."""
    return {
        "name": name,
        "connector": "tcp",
        "source": {"url": url, "hello": HELLO, "cursor": "/seq", **source},
        "sink": {"name": sink, "table": table},
    }


HELLO = '{"feed": {name}, "from": {cursor}}\n'


def feed_names(count: int, *, prefix: str = "f") -> list[str]:
    return [f"{prefix}/{n:04d}" for n in range(count)]
