"""SQLite: one file, one writer at a time, and types that are suggestions.

A transaction begins with ``BEGIN IMMEDIATE``, which locks the file for writing: there are no row locks, so
whoever writes holds up every fence. The lock belongs to the process; nobody else can end it. A frozen writer
blocks its successors until it wakes or dies.

SQLite stores whatever it is given, turned into a number where the declared type and the looks of a text suggest
one. What it would bend is refused before it gets there.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import URL, Insert, Inspector, Table, types
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import OperationalError

from feedq.errors import InvalidInput
from feedq.sinks.session import ErrorScope
from feedq.sinks.sql.column_values import Conversion, Convert, conversion, is_number, native_number, text
from feedq.sinks.sql.session import NewValues, SqlSession
from feedq.sinks.table_definitions import dead_letter
from feedq.sinks.target_table import TableName

dead_letter.dialect_kwargs["sqlite_autoincrement"] = True  # the number of one that is gone is not given again

OPEN_TIMEOUT_S: Final = 5.0

_SCOPES: Final = {
    sqlite3.SQLITE_BUSY: ErrorScope.LOCKED,
    sqlite3.SQLITE_LOCKED: ErrorScope.LOCKED,
    sqlite3.SQLITE_CONSTRAINT: ErrorScope.DATA,
    sqlite3.SQLITE_MISMATCH: ErrorScope.DATA,
    sqlite3.SQLITE_TOOBIG: ErrorScope.DATA,
    sqlite3.SQLITE_ERROR: ErrorScope.TARGET,
    sqlite3.SQLITE_SCHEMA: ErrorScope.CONFLICT,
}
_DEFERRED: Final = re.compile(r"\bINITIALLY\s+DEFERRED\b", re.IGNORECASE)


class SqliteSession(SqlSession):
    """SQLite 3.32 or newer, by Python's own driver."""

    driver = "pysqlite"
    # The lock is the whole file's, and every writer's turn comes.
    locks_all = True
    lock_timeout_s = 5.0

    @classmethod
    def connect_args(cls, url: URL) -> dict[str, Any]:
        if url.database in (None, "", ":memory:") or url.query.get("mode") == "memory":
            raise InvalidInput(
                "each session would have its own database in memory: name a file, sqlite:////path/to/file"
            )
        # A sink is used by one thread at a time, though perhaps not always the same.
        return {"check_same_thread": False, "timeout": OPEN_TIMEOUT_S}

    def _set_up(self) -> int | None:
        self.run("PRAGMA foreign_keys = ON")
        # The first to touch the file, and so to say when it is none of SQLite's.
        self.run("PRAGMA schema_version")
        return None

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def _rollback(self) -> None:
        # The driver's own: SQLite may have rolled back by itself, and would refuse the statement.
        driver: Any = self._connection.connection.dbapi_connection
        driver.rollback()

    def _bound_locks(self, seconds: float) -> None:
        self.run(f"PRAGMA busy_timeout = {round(1000 * seconds)}")

    @classmethod
    def scope(cls, error: Any) -> ErrorScope:
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
        if code is not None:
            # The lowest byte; the others say more than we tell apart.
            return _SCOPES.get(code & 0xFF, ErrorScope.UNAVAILABLE)
        # Or a value that the driver cannot even send.
        return ErrorScope.UNAVAILABLE if isinstance(error, OperationalError) else ErrorScope.DATA

    def refused_commit(self, error: Exception) -> bool:
        # Busy readers keep a commit from happening, and leave the transaction as it was.
        return self.scope(error) in (ErrorScope.LOCKED, ErrorScope.DATA)

    def find_locked(self, feed_ids: Sequence[int]) -> Collection[int]:
        # No rows are locked here, only the file.
        return ()

    @classmethod
    def folded(cls, name: str) -> str:
        # Of ASCII, and of nothing else.
        return name.encode().lower().decode()

    @classmethod
    def is_system(cls, name: TableName, default_schema: str | None) -> bool:
        return name.name.casefold().startswith("sqlite_")

    def unfit_table(self, inspector: Inspector, name: TableName) -> str | None:
        # Nothing else tells, though a comment may say so, too.
        schema = self._schema_of(name)
        made_by = self.connection.exec_driver_sql(
            f"SELECT sql FROM {schema}.sqlite_master WHERE type = 'table' AND name = ?",  # noqa: S608 - quoted
            (name.name,),
        ).scalar()
        if made_by is not None and _DEFERRED.search(made_by):
            return (
                "has a foreign key that is INITIALLY DEFERRED, and so checked at the commit only, when it is too "
                "late to tell which record is to blame: make it INITIALLY IMMEDIATE"
            )
        return None

    def fingerprint(self, name: TableName) -> Any:
        # Of all tables of the file, which is cheap, and rarely more than needed.
        schema = self._schema_of(name)
        return self.connection.exec_driver_sql(f"PRAGMA {schema}.schema_version").scalar()

    def _schema_of(self, name: TableName) -> str:
        quote = self.connection.dialect.identifier_preparer.quote_identifier
        return quote(name.schema or "main")

    def own_columns(self, columns: Sequence[ReflectedColumn], primary: Sequence[str]) -> Collection[str]:
        # INTEGER PRIMARY KEY is SQLite's own number of the row.
        kinds = {column["name"]: column["type"] for column in columns}
        if len(primary) == 1 and type(kinds[primary[0]]) is types.INTEGER:
            return primary
        return ()

    @classmethod
    def conversion(cls, column_type: Any, *, is_json: bool) -> Conversion:
        if is_json:
            return Conversion(json_text, types.NullType())
        if isinstance(column_type, types.Numeric):
            return Conversion(native_number, types.NullType())
        return conversion(column_type)

    @classmethod
    def upsert(cls, table: Table, key: Sequence[str], change: NewValues) -> Insert:
        statement = insert(table)
        if changed := change(statement.excluded):
            return statement.on_conflict_do_update(index_elements=list(key), set_=changed)
        return statement.on_conflict_do_nothing(index_elements=list(key))


def json_text(value: str) -> Any:
    """JSON as it is, but for numbers: in a column declared JSON those become SQLite's own."""
    return native_number(value) if is_number(value) else PLAIN(value)


PLAIN: Final[Convert] = text(None)
