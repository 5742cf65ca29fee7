"""Feeds in trouble at their sink, beside feeds that are well: what the ones do to the others on one worker.

Each case has a table and a source of its own, and lands through the same writer as the neighbours, with a role
that owns nothing. Neighbours land in a table that notes when, so their silence is the sink's own word.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2

from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.source_process import Source

NEIGHBOURS = 10
RATE = 10.0
SINK = "shop"
LIMIT_S = 60.0
PAYLOAD = "x" * 1_000

# The default path begins with the schema named like the user, which is that of the control tables.
PATH = "SET search_path = public"
SETUP = """
CREATE ROLE clerk LOGIN PASSWORD 'clerk';
GRANT ALL ON SCHEMA public TO clerk;
CREATE TABLE landed (feed text NOT NULL, epoch bigint NOT NULL, received_at timestamptz NOT NULL,
    payload jsonb NOT NULL, landed_at timestamptz DEFAULT clock_timestamp());
GRANT ALL ON landed TO clerk;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.n % 7 = 0 THEN RAISE 'no sevens' USING ERRCODE = '45000'; END IF; RETURN NEW; END $$;
CREATE FUNCTION refuse_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
CREATE FUNCTION is_fine(x text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    IF x LIKE '%3' THEN RAISE 'out of order' USING ERRCODE = 'XX000'; END IF; RETURN true; END $$;
CREATE DOMAIN fickle AS text CHECK (is_fine(VALUE));
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One feed in trouble."""

    name: str
    table: str
    setup: str
    records: Callable[[], Iterator[bytes]]
    columns: dict[str, str] = field(default_factory=lambda: {"n": "/n"})
    meddle: str = ""
    """What an operator does once it streams, in a transaction that stays open if it begins one."""
    mend: str = ""
    dead: bool = True
    """Whether its records go to the dead letters; else the feed has an error."""
    pours: bool = False
    """Whether they come as fast as they are read, and not `RATE` a second."""


def _numbers() -> Iterator[bytes]:
    return (json.dumps({"n": n, "t": f"text {n}"}).encode() for n in count(1))


def _poured() -> Iterator[bytes]:
    return (json.dumps({"n": f"no number {n}", "t": PAYLOAD}).encode() for n in range(10_000))


def _deep() -> Iterator[bytes]:
    yield b"[" * 20_000 + b"]" * 20_000
    yield from _numbers()


def _table(name: str, columns: str = "n int", owner: str = "clerk", more: str = "") -> str:
    return (
        f"CREATE TABLE {name} ({columns}); ALTER TABLE {name} OWNER TO {owner}; "
        f"GRANT SELECT, INSERT ON {name} TO clerk; {more}"
    )


def _trigger(table: str, function: str) -> str:
    return f"CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();"


CASES = (
    Case("a record 20,000 deep", "deep", _table("deep", "payload jsonb"), _deep, {"payload": ""}),
    Case(
        "a trigger that raises 45000 for 1 record in 7",
        "sevens",
        _table("sevens", more=_trigger("sevens", "refuse")),
        _numbers,
    ),
    Case(
        "a type whose input function raises XX000",
        "fickle_ones",
        _table("fickle_ones", "t fickle"),
        _numbers,
        {"t": "/t"},
    ),
    Case("10 MB refused by their types", "typed", _table("typed"), _poured, pours=True),
    Case(
        "10 MB refused by a trigger",
        "refusing",
        _table("refusing", "n text", more=_trigger("refusing", "refuse_all")),
        _poured,
        pours=True,
    ),
    Case(
        "a table that is dropped",
        "dropped",
        _table("dropped"),
        _numbers,
        meddle="DROP TABLE dropped",
        mend=_table("dropped"),
        dead=False,
    ),
    Case(
        "a table that is locked",
        "locked",
        _table("locked"),
        _numbers,
        meddle="BEGIN; LOCK TABLE locked",
        mend="",
        dead=False,
    ),
    Case(
        "a table without rights",
        "forbidden",
        _table("forbidden", owner="CURRENT_USER"),
        _numbers,
        meddle="REVOKE INSERT ON forbidden FROM clerk",
        mend="GRANT INSERT ON forbidden TO clerk",
        dead=False,
    ),
)


class Sender:
    """Serves the records of one case to whoever connects, each record once."""

    def __init__(self, case: Case) -> None:
        self._records, self._pause_s = case.records(), 0.0 if case.pours else 1 / RATE
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(1.0)
                    self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        for record in self._records:
            self._all(connection, record + b"\n")
            if self._stopping.wait(self._pause_s):
                return
        while not self._stopping.wait(0.1):
            self._all(connection, b"")

    def _all(self, connection: socket.socket, data: bytes) -> None:
        # A worker that reads no more, for backpressure, is waited for; one that is gone is not.
        sent = 0
        while sent < len(data) and not self._stopping.is_set():
            with suppress(TimeoutError):
                sent += connection.send(data[sent:])


class Troubled:
    """One worker with neighbours that stream, and room for cases."""

    def __init__(self, cluster: Cluster, source: Source, operator: Any, senders: ExitStack) -> None:
        self.cluster, self._source, self._operator, self._senders = cluster, source, operator, senders
        self.neighbours = feed_names(NEIGHBOURS, prefix="well")
        self._feeds: list[dict[str, Any]] = []

    def begin(self) -> None:
        self._feeds = [feed(name, self._source.url) for name in self.neighbours]
        for one in self._feeds:
            one["sink"]["name"] = SINK
        self.cluster.apply(self._feeds)
        wait_until(
            lambda: self.count("SELECT count(DISTINCT feed) FROM landed") == NEIGHBOURS,
            lambda: f"the neighbours land:\n{self.cluster.workers['w1'].text()[-4_000:]}",
        )

    def add(self, *cases: Case) -> None:
        """Declare the feeds of these cases."""
        for case in cases:
            self.run(case.setup)
            sender = Sender(case)
            self._senders.callback(sender.close)
            sink = {"name": SINK, "table": case.table, "columns": case.columns}
            self._feeds.append(
                {"name": case.table, "connector": "tcp", "source": {"url": sender.url}, "sink": sink}
            )
        self.cluster.apply(self._feeds)

    def drop(self, case: Case) -> None:
        """Remove the feed of a case."""
        self._feeds = [one for one in self._feeds if one["name"] != case.table]
        self.cluster.feedq("feed", "remove", "--yes", "--wait", case.table)

    def wait_landed(self, *cases: Case) -> None:
        """Until each of them has landed something, where it is to."""
        for case in cases:
            wait_until(partial(self._has_landed, case), f"{case.name}: lands")

    def wait_shown(self, *cases: Case) -> None:
        """Until the control database says what is wrong with each of them."""
        for case in cases:
            wait_until(partial(self._is_shown, case), partial(self._story, case))

    def _story(self, case: Case) -> str:
        log = self.cluster.workers["w1"].text()
        return f"{case.name}: shown: {self.lease(case)}\n{log[-4_000:]}"

    def _has_landed(self, case: Case) -> bool:
        return self.count(f"SELECT count(*) FROM {case.table}") > 0

    def _is_shown(self, case: Case) -> bool:
        lease = self.lease(case)
        if case.dead:
            return bool(lease["dead_letters_total"] and lease["dead_letter_error"])
        return bool(lease["last_error"] and case.table in lease["last_error"])

    def lease(self, case: Case) -> dict[str, Any]:
        (found,) = self.cluster.sql(
            "SELECT p.* FROM feedq.progress p JOIN feedq.feed f ON f.id = p.feed_id WHERE f.name = %s",
            (case.table,),
        )
        return found

    def run(self, statements: str) -> None:
        with self._operator.cursor() as cursor:
            for statement in filter(None, (part.strip() for part in statements.split(";\n"))):
                cursor.execute(statement)

    def count(self, statement: str) -> int:
        with self._operator.cursor() as cursor:
            cursor.execute(statement)
            return int(cursor.fetchone()[0])

    def now(self) -> float:
        ((now,),) = self._rows("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now)

    def longest_silence_s(self, since: float) -> float:
        """Of any neighbour from then on to now: between two of its records, or after the last."""
        ((longest,),) = self._rows(
            "SELECT extract(epoch FROM max(upto - landed_at))::float8 FROM (SELECT landed_at, "
            "lead(landed_at, 1, clock_timestamp()) OVER (PARTITION BY feed ORDER BY landed_at) AS upto "
            "FROM landed) AS gaps WHERE extract(epoch FROM upto) >= %s",
            (since,),
        )
        return float(longest)

    def wrong_neighbours(self) -> Collection[str]:
        """Those with a record that is lost or there twice."""
        rows = self._rows(
            "SELECT feed FROM landed GROUP BY feed HAVING count(*) <> max((payload->>'seq')::int) "
            "OR count(DISTINCT payload->>'seq') <> count(*)"
        )
        return [name for (name,) in rows]

    def _rows(self, statement: str, parameters: Any = None) -> list[Any]:
        with self._operator.cursor() as cursor:
            cursor.execute(statement, parameters)
            found: list[Any] = cursor.fetchall()
            return found

    @contextmanager
    def meddling(self, case: Case) -> Iterator[None]:
        """What an operator does meanwhile, and its end."""
        connection = psycopg2.connect(self.cluster.database_url)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(PATH)
                if case.meddle:
                    cursor.execute(case.meddle)
                yield
        finally:
            connection.close()
            self.run(case.mend)


@contextmanager
def troubled(directory: Path, *, database_url: str, broker_url: str) -> Iterator[Troubled]:
    """A stage of one worker, the neighbours streaming."""
    parts = urlsplit(database_url)
    url = urlunsplit(parts._replace(netloc=f"clerk:clerk@{parts.hostname}:{parts.port}"))
    with ExitStack() as stack:
        operator = psycopg2.connect(database_url)
        stack.callback(operator.close)
        operator.autocommit = True
        with operator.cursor() as cursor:
            cursor.execute(PATH)
            cursor.execute(SETUP)
        source = stack.enter_context(Source(rate=RATE))
        env = {f"FEEDQ_SINKS__{SINK.upper()}": url}
        cluster = stack.enter_context(
            Cluster(directory, database_url=database_url, broker_url=broker_url, env=env)
        )
        senders = stack.enter_context(ExitStack())
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        made = Troubled(cluster, source, operator, senders)
        made.begin()
        try:
            yield made
        finally:
            senders.close()
            cluster.close()
            with operator.cursor() as cursor:
                cursor.execute("DROP OWNED BY clerk CASCADE; DROP ROLE clerk")
