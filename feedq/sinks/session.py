"""One connection to a sink database: opened with bounds on every wait, and honest about its commits.

Autocommit throughout: transactions begin and end where the caller says so, and a single statement is a
transaction of the server's, which a client frozen afterwards cannot hold open. `SinkSession.commit` tells apart
what psycopg2 does not: a commit that the server refused, and one whose answer never came.

It does not reconnect and does not retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg2
from psycopg2 import extensions, extras, sql

Statement = str | sql.Composable

CONNECT_TIMEOUT_S: Final = 5
IDLE_IN_TRANSACTION_TIMEOUT_MS: Final = 30_000
"""Backstop for a session frozen inside a transaction that nobody could terminate."""
STATEMENT_TIMEOUT_MS: Final = 300_000
"""For whoever sets no other."""
GATHERED_BYTES: Final = 64 * 1024
"""Small chunks are put together up to this."""
READ_SIZE: Final = 1 << 20
"""Ignored by our readers, which hand over whole chunks; psycopg2's 8 kB would be a call per 50 records."""

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
# database, that is where the control tables are, and no landing belongs among them.
_WHO_AM_I: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class Backend:
    """A server process, told from a later one of the same number by when it started."""

    pid: int
    started_at: datetime


class AnswerLost(Exception):
    """COMMIT was sent and the connection broke: it may or may not have happened."""


class CopySource:
    """Feeds an iterator of chunks to psycopg2, and keeps the exception that ended it, if one did."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self.error: Exception | None = None

    def read(self, _size: int) -> bytes:
        gathered: list[bytes] = []
        size = 0
        try:
            # Each read is a call with the interpreter's lock let go of and waited for: not one for every record of
            # thousands of slow feeds. And an empty one would end the COPY, silently and too early.
            for chunk in self._chunks:
                gathered.append(chunk)
                size += len(chunk)
                if size >= GATHERED_BYTES:
                    break
            return b"".join(gathered)
        except Exception as error:
            # psycopg2 would replace it with "error in .read() call".
            self.error = error
            raise


class SinkSession:
    """A connection in autocommit mode. Methods raise `psycopg2.Error`."""

    def __init__(self, url: str, *, application_name: str) -> None:
        self._connection = psycopg2.connect(driver_url(url), application_name=application_name, **_LIBPQ)
        try:
            self._connection.autocommit = True
            extras.register_uuid(conn_or_curs=self._connection)  # type: ignore[no-untyped-call]
            self.execute(_SET_WHAT_IS_KNOWN, {"names": list(_SETTINGS), "values": list(_SETTINGS.values())})
            self.execute(_KEEP_OUT_OF_CONTROL)
            self._notice_a_dead_client()
            ((pid, started_at),) = self.execute(_WHO_AM_I)
        except BaseException:
            self._connection.close()
            raise
        self.backend = Backend(pid, started_at)
        self._timeouts_ms = {"statement_timeout": STATEMENT_TIMEOUT_MS}
        self.has_begun = False
        """Whether a transaction is open, or was when the connection broke."""

    @property
    def is_broken(self) -> bool:
        return bool(self._connection.closed)

    @property
    def server_version(self) -> int:
        return int(self._connection.info.server_version)

    def execute(self, statement: Statement, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a statement; returns its rows, if it has any."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def change(self, statement: Statement, parameters: Mapping[str, Any]) -> int:
        """Run a statement that returns no rows; returns how many it changed."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            changed: int = cursor.rowcount
            return changed

    def copy(self, statement: Statement, chunks: Iterable[bytes]) -> None:
        """COPY ... FROM STDIN. An exception raised by ``chunks`` comes through as itself."""
        source = CopySource(chunks)
        with self._connection.cursor() as cursor:
            try:
                cursor.copy_expert(statement, source, READ_SIZE)
            except psycopg2.Error:
                if source.error is not None:
                    raise source.error from None
                raise

    def set_lock_timeout(self, seconds: float) -> None:
        """Bound every wait for a lock from here on; 0 waits as briefly as the server can."""
        self._set_timeout("lock_timeout", seconds)

    def set_statement_timeout(self, seconds: float) -> None:
        """Bound every statement from here on; a COMMIT is none."""
        self._set_timeout("statement_timeout", seconds)

    def _set_timeout(self, name: str, seconds: float) -> None:
        timeout_ms = max(1, round(1000 * seconds))
        if timeout_ms != self._timeouts_ms.get(name):
            parameters = {"name": name, "ms": str(timeout_ms)}
            self.execute("SELECT set_config(%(name)s, %(ms)s, false)", parameters)
            self._timeouts_ms[name] = timeout_ms

    def begin(self, first: str = "", parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Open a transaction and run its first statement, both in one round trip; returns its rows."""
        rows = self.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {first}", parameters)
        self.has_begun = True
        return rows

    def commit(self) -> None:
        """Commit.

        Raises:
            AnswerLost: nobody knows whether it happened; the connection is closed.
            psycopg2.Error: the server refused, and rolled everything back.
        """
        with self._connection.cursor() as cursor:
            try:
                cursor.execute("COMMIT")
            except psycopg2.Error as error:
                if self._answered_and_lives():
                    raise
                # Even an error with a code: a backend told to go may say so after its commit is durable.
                self.close()
                raise AnswerLost(str(error).strip()) from error
            # The server answers ROLLBACK to the commit of a transaction that had failed.
            assert cursor.statusmessage == "COMMIT", f"COMMIT was answered by {cursor.statusmessage}"
        self.has_begun = False

    def rollback(self) -> None:
        """End a transaction, if one is open; a connection that cannot is closed."""
        if self.is_broken:
            return
        try:
            if self._connection.info.transaction_status != extensions.TRANSACTION_STATUS_IDLE:
                self.execute("ROLLBACK")
        except psycopg2.Error:
            self.close()
        else:
            self.has_begun = False

    def close(self) -> None:
        self._connection.close()

    def _answered_and_lives(self) -> bool:
        status = self._connection.info.transaction_status
        return not self.is_broken and status == extensions.TRANSACTION_STATUS_IDLE

    def _notice_a_dead_client(self) -> None:
        try:
            self.execute("SELECT set_config('client_connection_check_interval', '100', false)")
        except psycopg2.Error:
            # PostgreSQL before 14, or a platform that cannot poll for it: then a long statement of a dead
            # client runs to its end, which delays its successor and does no other harm.
            if self.is_broken:
                raise


def driver_url(url: str) -> str:
    """A URL as libpq wants it: without the driver that SQLAlchemy's URLs may name."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}" if separator else url


def application_name(role: str, worker_id: UUID) -> str:
    """What a sink session calls itself, so that a successor can tell whose it is."""
    return f"feedq-{role}/{worker_id}"


def worker_of(name: str | None) -> UUID | None:
    """The worker whose sink session calls itself ``name``."""
    head, _, tail = (name or "").partition("/")
    if not head.startswith("feedq-"):
        return None
    try:
        return UUID(tail)
    except ValueError:
        return None
