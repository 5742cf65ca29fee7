"""What the sink's conformance suite needs beyond the interface: to look into the database, and to break things.

One harness per kind of sink; a new kind brings its own and runs the same suite. Writers that freeze or lose
their connection do so at an exact statement, through `tests.proxy` or by way of the driver, never by chance.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

import psycopg2
from psycopg2 import sql
from sqlalchemy import Engine, event

from feedq.core.model import JSON
from feedq.errors import CommitUnknown
from feedq.local.postgres import Postgres
from feedq.sinks.base import FeedWrite, Sink, Target
from feedq.sinks.postgresql import PostgresSink
from feedq.sinks.sql import SqlSink
from tests.contract.sink_stage import (
    ENVIRONMENT,
    PATIENCE_S,
    RAW,
    FrozenWrite,
)
from tests.proxy import Fault, PostgresProxy, Trap

Kind = TypeVar("Kind", bound=PostgresSink | SqlSink)


@cache
def _shared_database(postgres: Postgres) -> str:
    return postgres.create_database("contract_of_the_sinks")


def empty_database(postgres: Postgres) -> str:
    """A database with nothing in it and nobody else connected: emptied, which is quicker than a new one."""
    url = _shared_database(postgres)
    connection = psycopg2.connect(url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        cursor.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
        )
        for (schema,) in cursor.fetchall():
            cursor.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        cursor.execute("CREATE SCHEMA public")
    connection.close()
    return url


class DatabaseHarness(Generic[Kind]):
    """Makes sinks of one kind over one database, and closes them."""

    def __init__(self, kind: type[Kind], url: str) -> None:
        self.url = url
        self._kind = kind
        self._sinks: list[Kind] = []

    def sink(
        self,
        *,
        role: str = "writer",
        worker_id: UUID | None = None,
        environment: str = ENVIRONMENT,
        url: str | None = None,
    ) -> Kind:
        made = self._kind(url or self.url, environment=environment, worker_id=worker_id or uuid4(), role=role)
        self._sinks.append(made)
        return made

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class ServerHarness(DatabaseHarness[Kind]):
    """Over a database of a server, before which a proxy stands that breaks connections."""

    def __init__(self, kind: type[Kind], url: str, *, proxy: PostgresProxy, database: str = "") -> None:
        super().__init__(kind, url)
        self.proxy = proxy
        self._proxied_url = f"{proxy.url}{database}"

    def frozen(self, writes: Sequence[FeedWrite], *, worker_id: UUID) -> FrozenWrite:
        trap = self.proxy.arm(Fault.HOLD, "COMMIT", application=f"feedq-writer/{worker_id}")
        sink = self.sink(worker_id=worker_id, url=self._proxied_url)
        return FrozenWrite(sink, writes, stopped=trap.tripped, release=trap.release)

    def lost(self, writes: Sequence[FeedWrite], *, happened: bool) -> Sink:
        return self._lose(Fault.CUT_AFTER if happened else Fault.CUT_BEFORE, writes)[0]

    def stranded(self, writes: Sequence[FeedWrite]) -> tuple[Sink, Callable[[], None]]:
        sink, trap = self._lose(Fault.STRAND, writes)
        return sink, trap.release

    def close(self) -> None:
        self.proxy.close()
        super().close()

    def _lose(self, fault: Fault, writes: Sequence[FeedWrite]) -> tuple[Sink, Trap]:
        sink = self.sink(url=self._proxied_url)
        trap = self.proxy.arm(fault, "COMMIT")
        try:
            written = sink.write(writes)
        except CommitUnknown:
            assert trap.tripped.wait(PATIENCE_S)
            return sink, trap
        raise AssertionError(f"the commit was answered: {written}")


class PostgresSinkHarness(ServerHarness[PostgresSink]):
    """`PostgresSink` over a database that is otherwise empty."""

    refused = b'"\\u0000"'

    def __init__(self, url: str) -> None:
        super().__init__(PostgresSink, url, proxy=PostgresProxy(url))

    def rows(self, target: Target) -> list[tuple[str, int, Any]]:
        payload = "payload" if target.format == "bytes" else "payload::text"
        return self.query(f'SELECT feed, epoch, {payload} FROM "{target.table}" ORDER BY ctid')

    def landed(self, target: Target = RAW) -> Counter[tuple[str, int, str]]:
        return Counter(self.query(f'SELECT feed, epoch, payload::text FROM "{target.table}"'))

    def dead(self) -> list[tuple[str, int, bytes, JSON]]:
        letters = self.sink().dead_letters(limit=10**6)
        return [(x.feed, x.epoch, x.record, x.cursor) for x in reversed(letters)]

    def spoil(self, target: Target, code: str = "45000") -> bytes:
        self.query(
            "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.payload::text = '\"odd\"' THEN RAISE 'how odd' USING ERRCODE = '{code}'; END IF; "
            f'RETURN NEW; END $$; CREATE TRIGGER spoil BEFORE INSERT ON "{target.table}" '
            "FOR EACH ROW EXECUTE FUNCTION spoil()"
        )
        return b'"odd"'

    def drop_table(self, target: Target) -> None:
        self.query(f'DROP TABLE "{target.table}"')

    @contextmanager
    def hold(self, target: Target) -> Iterator[None]:
        with self.session() as operator:
            operator.execute(f'BEGIN; LOCK TABLE "{target.table}"')
            yield
            operator.execute("ROLLBACK")

    def unreachable(self) -> Sink:
        with PostgresProxy(self.url) as gone:
            return self.sink(url=gone.url)

    # -- PostgreSQL only -----------------------------------------------------------------------------

    def query(self, statement: str, parameters: Any = None, *, url: str | None = None) -> list[Any]:
        with self.session(url) as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def session(self, url: str | None = None) -> Iterator[Any]:
        """A cursor in autocommit mode, for a session of an operator's."""
        connection = psycopg2.connect(url or self.url)
        connection.autocommit = True
        try:
            yield connection.cursor()
        finally:
            # The server notices a closed connection a moment later, and would keep its locks until then.
            with suppress(psycopg2.Error):
                connection.cursor().execute("ROLLBACK")
            connection.close()


class Break(Enum):
    """What happens at a commit of SQLite's."""

    HOLD = auto()
    FAIL_BEFORE = auto()
    FAIL_AFTER = auto()


@dataclass(slots=True)
class SqliteTrap:
    """A fault waiting for the next commit of one worker."""

    fault: Break
    tripped: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


class SqliteHarness(DatabaseHarness[SqlSink]):
    """`SqlSink` over a file of SQLite's. Faults are brought about in the driver: there is no network."""

    refused = b'"refused"'

    def __init__(self, path: Path) -> None:
        super().__init__(SqlSink, f"sqlite:///{path}")
        self.path = path
        self._traps: dict[str, SqliteTrap] = {}
        event.listen(Engine, "do_connect", self._connect)
        self.query(
            "CREATE TABLE raw (feed VARCHAR(200) NOT NULL, epoch BIGINT NOT NULL, received_at DATETIME NOT NULL, "
            "payload TEXT NOT NULL CHECK (payload <> '\"refused\"'))"
        )

    def rows(self, target: Target) -> list[tuple[str, int, Any]]:
        return self.query(f'SELECT feed, epoch, payload FROM "{target.table}" ORDER BY rowid')

    def frozen(self, writes: Sequence[FeedWrite], *, worker_id: UUID) -> FrozenWrite:
        sink, trap = self._trapped(Break.HOLD, worker_id)
        return FrozenWrite(sink, writes, stopped=trap.tripped, release=trap.released.set)

    def lost(self, writes: Sequence[FeedWrite], *, happened: bool) -> Sink:
        sink, trap = self._trapped(Break.FAIL_AFTER if happened else Break.FAIL_BEFORE, uuid4())
        try:
            written = sink.write(writes)
        except CommitUnknown:
            assert trap.tripped.is_set()
            return sink
        raise AssertionError(f"the commit was answered: {written}")

    def stranded(self, writes: Sequence[FeedWrite]) -> tuple[Sink, Callable[[], None]]:
        raise AssertionError("there is nothing that a commit could be on its way through")

    def spoil(self, target: Target) -> bytes:
        self.query(
            f'CREATE TRIGGER spoil BEFORE INSERT ON "{target.table}" WHEN NEW.payload = \'"odd"\' '
            "BEGIN SELECT RAISE(ABORT, 'how odd'); END"
        )
        return b'"odd"'

    def drop_table(self, target: Target) -> None:
        self.query(f'DROP TABLE "{target.table}"')

    def hold(self, target: Target) -> AbstractContextManager[object]:
        raise AssertionError("there is nothing less than the file that can be locked")

    def unreachable(self) -> Sink:
        return self.sink(url=f"sqlite:///{self.path.parent}/nowhere/sink.sqlite3")

    def close(self) -> None:
        event.remove(Engine, "do_connect", self._connect)
        for trap in self._traps.values():
            trap.released.set()
        super().close()

    # -- SQLite only ---------------------------------------------------------------------------------

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=PATIENCE_S)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def _trapped(self, fault: Break, worker_id: UUID) -> tuple[SqlSink, SqliteTrap]:
        """A sink that falls into a trap at its next commit; told from others by the name it gives its file."""
        trap = self._traps[str(worker_id)] = SqliteTrap(fault)
        path = self.path.parent / f"{worker_id}.link"
        path.unlink(missing_ok=True)
        path.symlink_to(self.path)
        return self.sink(worker_id=worker_id, url=f"sqlite:///{path}"), trap

    def _connect(self, _dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> None:
        trap = self._traps.get(Path(str(arguments[0])).stem) if arguments else None
        if trap is not None:
            options["factory"] = lambda *args, **more: BreakingConnection(*args, trap=trap, **more)


class BreakingConnection(sqlite3.Connection):
    """A connection of SQLite's whose first commit falls into a trap."""

    def __init__(self, *args: Any, trap: SqliteTrap, **more: Any) -> None:
        super().__init__(*args, **more)
        self.trap = trap

    def cursor(self, *_: Any) -> Any:
        return super().cursor(BreakingCursor)


class BreakingCursor(sqlite3.Cursor):
    """Carries out the fault."""

    def execute(self, statement: str, *parameters: Any) -> Any:
        trap = self.connection.trap  # type: ignore[attr-defined]
        if statement != "COMMIT" or trap.tripped.is_set():
            return super().execute(statement, *parameters)
        if trap.fault is Break.HOLD:
            trap.tripped.set()
            trap.released.wait(PATIENCE_S)
            return super().execute(statement, *parameters)
        if trap.fault is Break.FAIL_AFTER:
            super().execute(statement, *parameters)
        trap.tripped.set()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error
