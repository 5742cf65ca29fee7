"""One connection to a sink database by way of SQLAlchemy: its waits are bounded, its commits honest.

Transactions begin and end where the caller says so. `SqlSession.commit` tells apart a commit that the database
refused, and one whose answer never came. It does not reconnect and does not retry: SQLAlchemy would open a new
connection behind our back after an error, which is why a broken session refuses to be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, CursorResult, Engine, Executable
from sqlalchemy.exc import SQLAlchemyError

from feedq.sinks.session import AnswerLost
from feedq.sinks.sql.flavor import Flavor, explain
from feedq.sinks.sqlstate import ErrorScope

MENDABLE: Final = (ErrorScope.DATA, ErrorScope.LANDING)
"""What a savepoint can undo."""


class RowRefused(Exception):
    """The database stopped at some row of many; ``position`` is a guess at which one."""

    def __init__(self, error: SQLAlchemyError, position: int | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.position = position


class SqlSession:
    """A connection, outside of any transaction until `begin`. Methods raise `SQLAlchemyError`."""

    def __init__(self, engine: Engine, flavor: Flavor, *, role: str, worker_id: UUID) -> None:
        self.flavor = flavor
        self._connection = engine.connect()
        try:
            self.number = flavor.set_up(self._connection, role=role, worker_id=worker_id)
            """By which the server knows it."""
            flavor.rollback(self._connection)
        except BaseException:
            self.close()
            raise
        self._closed = False
        self._lock_wait_s: float | None = None
        self.has_begun = False
        """Whether a transaction is open and has done something, or had when the connection broke."""

    @property
    def is_broken(self) -> bool:
        return self._closed or self._connection.invalidated

    @property
    def connection(self) -> Connection:
        assert not self.is_broken, "a session that broke is not used again"
        return self._connection

    def execute(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None
    ) -> CursorResult[Any]:
        """Run a statement, once for each of ``rows``."""
        return self.connection.execute(statement, rows)

    def set_lock_wait(self, seconds: float) -> None:
        if seconds != self._lock_wait_s:
            self._lock_wait_s = None
            self.flavor.set_lock_wait(self.connection, seconds)
            self._lock_wait_s = seconds

    def forget_lock_wait(self) -> None:
        """Somebody else has set it."""
        self._lock_wait_s = None

    def begin(self) -> None:
        self.flavor.begin(self.connection)

    def commit(self) -> None:
        """Commit.

        Raises:
            AnswerLost: nobody knows whether it happened; the connection is closed.
            SQLAlchemyError: the database refused; what has been done is to be rolled back.
        """
        try:
            self.flavor.commit(self.connection)
        except SQLAlchemyError as error:
            if not self.is_broken and self.flavor.refused_commit(error):
                raise
            self.close()
            raise AnswerLost(explain(error)) from error
        self.has_begun = False

    def rollback(self) -> None:
        """End a transaction, if one is open; a connection that cannot is closed."""
        if self.is_broken:
            return
        try:
            self.flavor.rollback(self._connection)
        except SQLAlchemyError:
            self.close()
        else:
            self.has_begun = False

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        """What is done within happens as a whole, or not at all if it raises."""
        dialect = self.connection.dialect
        dialect.do_savepoint(self.connection, name)
        try:
            yield
        except BaseException as error:
            # Other errors end the transaction altogether, and there are no savepoints left to go back to.
            cause = error.error if isinstance(error, RowRefused) else error
            mendable = not isinstance(cause, SQLAlchemyError) or self.flavor.trouble(cause) in MENDABLE
            if mendable and not self.is_broken:
                dialect.do_rollback_to_savepoint(self.connection, name)
                dialect.do_release_savepoint(self.connection, name)
            raise
        dialect.do_release_savepoint(self.connection, name)

    def close(self) -> None:
        self._closed = True
        try:
            if not self._connection.closed:
                # Not handed back in good order: whatever transaction is open ends with the connection.
                self._connection.invalidate()
                self._connection.close()
        except (SQLAlchemyError, OSError):
            # It was broken already, and there is nothing left to close.
            return
