"""A connection with PostgreSQL: psycopg2 in autocommit mode, with bounds on every wait, and its transactions.

Autocommit throughout: transactions begin and end where the caller says so, and a single statement is a
transaction of the server's, which a client frozen afterwards cannot hold open. What is done with checkpoints and
records is in `feedq.sinks.postgresql_session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg2
from psycopg2 import extensions, extras, sql
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from feedq.sinks.session import SinkSession
from feedq.sinks.sqlstate import ErrorScope, classify, explain

Statement = str | sql.Composable

CONNECT_TIMEOUT_S: Final = 5
IDLE_IN_TRANSACTION_TIMEOUT_MS: Final = 30_000
"""Backstop for a session frozen inside a transaction that nobody could terminate."""
STATEMENT_TIMEOUT_MS: Final = 300_000
"""For whoever sets no other."""
# libpq's side of a dead network: silence is noticed after 5 + 3 × 2 seconds, unsent data after 10.
_LIBPQ: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "client_encoding": "UTF8",
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# And the server's side, so that a host that vanished does not hold rows for hours.
_SETTINGS: Final[Mapping[str, str]] = {
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "default_transaction_isolation": "read committed",
    "TimeZone": "UTC",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_SET_WHAT_IS_KNOWN: Final = """
SELECT set_config(s.name, wanted.value, false)
FROM unnest(%(names)s::text[], %(values)s::text[]) AS wanted (name, value) JOIN pg_settings AS s USING (name)
"""
_KEEP_OUT_OF_CONTROL: Final = """
SELECT set_config('search_path', 'public', false) WHERE current_schema() = 'feedq'
"""
# PostgreSQL's default path begins with the schema named like the user. For a user called feedq, in the control
# database, that is where the control tables are, and no target belongs among them.
_WHO_AM_I: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class Backend:
    """A server process, told from a later one of the same number by when it started."""

    pid: int
    started_at: datetime


class PostgresConnection(SinkSession):
    """psycopg2's connection for what is frequent, SQLAlchemy over it for the rest."""

    errors = (psycopg2.Error, SQLAlchemyError)
    undoable = frozenset(ErrorScope) - {ErrorScope.UNAVAILABLE}
    _driver: Any = None
    """psycopg2's connection."""

    def _set_up(self) -> Backend:
        self._driver = self.connection.connection.dbapi_connection
        # As other databases have them: SQLAlchemy's tables are the same for all.
        extras.register_default_jsonb(conn_or_curs=self._driver, loads=str)
        self.query(_SET_WHAT_IS_KNOWN, {"names": list(_SETTINGS), "values": list(_SETTINGS.values())})
        self.query(_KEEP_OUT_OF_CONTROL)
        self._notice_a_dead_client()
        self._timeouts_ms = {"statement_timeout": STATEMENT_TIMEOUT_MS}
        ((pid, started_at),) = self.query(_WHO_AM_I)
        return Backend(pid, started_at)

    @property
    def is_broken(self) -> bool:
        return super().is_broken or (self._driver is not None and bool(self._driver.closed))

    @property
    def server_version(self) -> int:
        return int(self._driver.info.server_version)

    def query(self, statement: Statement, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a statement; returns its rows, if it has any."""
        with self._driver.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def text_of(self, statement: sql.Composable) -> str:
        """A statement as it is sent."""
        text: str = statement.as_string(self._driver)
        return text

    def change(self, statement: Statement, parameters: Mapping[str, Any]) -> int:
        """Run a statement that returns no rows; returns how many it changed."""
        with self._driver.cursor() as cursor:
            cursor.execute(statement, parameters)
            changed: int = cursor.rowcount
            return changed

    def set_statement_timeout(self, seconds: float) -> None:
        self._set_timeout("statement_timeout", seconds)

    def _bound_locks(self, seconds: float) -> None:
        self._set_timeout("lock_timeout", seconds)

    def _set_timeout(self, name: str, seconds: float) -> None:
        timeout_ms = max(1, round(1000 * seconds))
        if timeout_ms != self._timeouts_ms.get(name):
            parameters = {"name": name, "ms": str(timeout_ms)}
            self.query("SELECT set_config(%(name)s, %(ms)s, false)", parameters)
            self._timeouts_ms[name] = timeout_ms

    # -- transactions --------------------------------------------------------------------------------

    def begin(self) -> None:
        self._begin_with("")

    def _begin_with(self, first: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Begin and run the first statement, both in one round trip; returns its rows."""
        rows = self.query(f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {first}", parameters)
        self.has_begun = True
        return rows

    def check_at_once(self) -> None:
        self.run("SET CONSTRAINTS ALL IMMEDIATE")

    def begin_for_person(self) -> None:
        super().begin_for_person()
        # What is deferred to the commit would let each record pass, and then refuse all of them.
        self.check_at_once()

    def _commit(self) -> None:
        with self._driver.cursor() as cursor:
            cursor.execute("COMMIT")
            # The server answers ROLLBACK to the commit of a transaction that had failed.
            assert cursor.statusmessage == "COMMIT", f"COMMIT was answered by {cursor.statusmessage}"

    def refused_commit(self, error: Exception) -> bool:
        # Even an error with a code is no answer on a connection that broke: a backend told to go may say so after
        # its commit is durable.
        return bool(self._driver.info.transaction_status == extensions.TRANSACTION_STATUS_IDLE)

    def _rollback(self) -> None:
        if self._driver.info.transaction_status != extensions.TRANSACTION_STATUS_IDLE:
            self.run("ROLLBACK")

    def run(self, statement: str) -> None:
        self.query(statement)

    # -- errors --------------------------------------------------------------------------------------

    @classmethod
    def scope(cls, error: Any) -> ErrorScope:
        return classify(error)

    @classmethod
    def explain(cls, error: Any) -> str:
        return explain(error)

    # -- private -------------------------------------------------------------------------------------

    def _notice_a_dead_client(self) -> None:
        try:
            self.query("SELECT set_config('client_connection_check_interval', '100', false)")
        except psycopg2.Error:
            # PostgreSQL before 14, or a platform that cannot poll for it: then a long statement of a dead
            # client runs to its end, which delays its successor and does no other harm.
            if self.is_broken:
                raise


def open_engine(url: str, application_name: str) -> Engine:
    """What opens connections to the database, with bounds on every wait."""
    return create_engine(
        "postgresql+psycopg2://",
        creator=lambda: psycopg2.connect(driver_url(url), application_name=application_name, **_LIBPQ),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        use_native_hstore=False,
        executemany_mode="values_plus_batch",
        hide_parameters=True,
    )


def driver_url(url: str) -> str:
    """A URL as libpq wants it: without the driver that SQLAlchemy's URLs may name."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}" if separator else url
