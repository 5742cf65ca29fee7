"""MariaDB and MySQL: InnoDB's row locks, whole seconds of patience, and a strict mode that has to be asked for.

A session says whose it is by a named lock, ``feedq-<role>/<worker id>``, which the server gives back when the
session ends. ``IS_USED_LOCK`` tells the number of the session that has it, and ``KILL`` ends that: a user may end
the sessions of its own name.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import URL, Insert, Inspector, Select, Table, text, types
from sqlalchemy.dialects import mysql as dialect
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError, ProgrammingError

from feedq.connectors.wire.dialing import keep_alive
from feedq.sinks.base import FeedWrite
from feedq.sinks.session import ROLES, ErrorScope, application_name, number_after
from feedq.sinks.sql import column_values
from feedq.sinks.sql.column_values import Conversion, conversion
from feedq.sinks.sql.session import NewValues, SqlSession
from feedq.sinks.table_definitions import MYSQL, checkpoint
from feedq.sinks.target_table import TableName

SESSIONS_MAX: Final = 8
"""Of one worker in one role; a worker has one, and a few more while it replaces lost ones."""
IDLE_TIMEOUT_S: Final = 60
"""A session of a host that vanished, or that froze, is ended by the server; ours opens another one."""
IDLE_IN_TRANSACTION_TIMEOUT_S: Final = 30
STATEMENT_TIMEOUT_S: Final = 50
"""Shorter than we wait for an answer: better an error than a connection given up."""
NET_TIMEOUT_S: Final = 30
_TIMEOUTS: Final = {"connect_timeout": 5, "read_timeout": 60, "write_timeout": 60}
"""For the driver, but for what the URL says itself; longer than every wait that we ask the server for."""
STRICT: Final = (
    "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
NO_SUCH_SESSION: Final = 1094
NO_SUCH_TABLE: Final = 1146
NUMBERING: Final = re.compile(r" AUTO_INCREMENT=\d+")
NAME_CHARACTERS_MAX: Final = 64
"""Of a column."""
SYSTEM_SCHEMAS: Final = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
STATEMENT_OVERHEAD_BYTES: Final = 64 * 1024

_SETTINGS: Final = (
    # To what is set already: quotes and backslashes must go on meaning what the driver was told they do.
    f"SET SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), '{STRICT}')",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION wait_timeout = {IDLE_TIMEOUT_S}, "
    f"net_read_timeout = {NET_TIMEOUT_S}, net_write_timeout = {NET_TIMEOUT_S}",
)
_SETTINGS_OF_MARIADB: Final = (
    f"SET SESSION idle_transaction_timeout = {IDLE_IN_TRANSACTION_TIMEOUT_S}, "
    f"max_statement_time = {STATEMENT_TIMEOUT_S}",
)

# Numbers of errors that say what the driver's classes of them do not.
_LOCKED: Final = (1205, 1969, 3024, 3572)
# Besides deadlocks: somebody changes or makes a table at this moment.
_CONFLICTS: Final = (1020, 1213, 1412, 1615, 1684)
_DENIED: Final = (1142, 1143)
# No room, out of memory, read-only, interrupted, an error of the storage engine.
_LATER: Final = (1021, 1030, 1037, 1038, 1041, 1114, 1290, 1317, 1836)
# Too many connections, shutting down.
_UNAVAILABLE: Final = (1040, 1053, 1203, 1226)
OF_SERVERS: Final = range(1000, 2000), range(3000, 2**16)
"""Errors that a server has sent; others are the client's."""
_BY_CODE: Final[Mapping[int, ErrorScope]] = {
    **dict.fromkeys(_LOCKED, ErrorScope.LOCKED),
    **dict.fromkeys(_CONFLICTS, ErrorScope.CONFLICT),
    **dict.fromkeys(_DENIED, ErrorScope.TARGET),
    **dict.fromkeys(_LATER, ErrorScope.LATER),
    **dict.fromkeys(_UNAVAILABLE, ErrorScope.UNAVAILABLE),
}
REFUSED_COMMITS: Final = frozenset({1020, 1205, 1213})
"""Answers of a server that lives and has rolled back."""

_BITS: Final = {
    dialect.TINYINT: 8,
    types.SmallInteger: 16,
    dialect.MEDIUMINT: 24,
    types.BigInteger: 64,
    types.Integer: 32,
}
"""The first that fits counts."""


class MySqlSession(SqlSession):
    """MariaDB 10.6 or newer, MySQL 8.0.19 or newer."""

    driver = "pymysql"
    upserts_by_key = False
    # A deadlock ends the transaction; a lock that is waited for in vain ends the statement only.
    undoable = frozenset(ErrorScope) - {ErrorScope.CONFLICT, ErrorScope.UNAVAILABLE}

    # -- sessions ------------------------------------------------------------------------------------

    @classmethod
    def connect_args(cls, url: URL) -> dict[str, Any]:
        return {name: value for name, value in _TIMEOUTS.items() if name not in url.query}

    def _set_up(self) -> int | None:
        _shorten_keepalives(self.connection.connection.dbapi_connection)
        for statement in _SETTINGS + (_SETTINGS_OF_MARIADB if self._is_mariadb else ()):
            self.run(statement)
        for name in _lock_names(self.role, self.worker_id):
            if self.connection.scalar(text("SELECT GET_LOCK(:name, 0)"), {"name": name}):
                break
        # Every byte of a record may have to be escaped.
        packet = int(self.connection.scalar(text("SELECT @@max_allowed_packet")) or 0)
        self._record_bytes_max = (packet - STATEMENT_OVERHEAD_BYTES) // 2
        # Without a name it works all the same: it could not be ended if it froze, and the server would.
        return int(self.connection.scalar(text("SELECT CONNECTION_ID()")) or 0)

    @property
    def _is_mariadb(self) -> bool:
        return bool(getattr(self.connection.dialect, "is_mariadb", False))

    def begin(self) -> None:
        self.run("START TRANSACTION")

    def _rollback(self) -> None:
        self.run("ROLLBACK")

    def _bound_locks(self, seconds: float) -> None:
        whole = math.ceil(seconds)
        if not self._is_mariadb:
            whole = max(1, whole)
        self.run(f"SET SESSION innodb_lock_wait_timeout = {whole}, lock_wait_timeout = {whole}")

    def unkeepable(self, write: FeedWrite) -> str | None:
        limit = self._record_bytes_max
        for batch in write.batches:
            if batch.size > limit and (longest := max(map(len, batch.split()))) > limit:
                return (
                    f"a record of {longest} bytes is longer than this server takes ({limit}): raise its "
                    "max_allowed_packet to more than twice that"
                )
        return super().unkeepable(write)

    # -- errors --------------------------------------------------------------------------------------

    @classmethod
    def scope(cls, error: Any) -> ErrorScope:
        if not isinstance(error, DBAPIError):
            # A value that the driver cannot even send.
            return ErrorScope.DATA
        code = _code(error)
        if error.connection_invalidated or not any(code in codes for codes in OF_SERVERS):
            return ErrorScope.UNAVAILABLE
        # The server has answered, and lives: what is unknown is the record's fault.
        otherwise = ErrorScope.TARGET if isinstance(error, ProgrammingError) else ErrorScope.DATA
        return _BY_CODE.get(code or 0, otherwise)

    def refused_commit(self, error: Exception) -> bool:
        return isinstance(error, DBAPIError) and _code(error) in REFUSED_COMMITS

    def row_of(self, error: Any) -> int | None:
        said = str(getattr(error, "orig", ""))
        return number_after(" at row ", said[said.rfind(" at row ") :])

    # -- checkpoints ---------------------------------------------------------------------------------

    def locking(self, feed_ids: Sequence[int], *, skip_locked: bool = False) -> Select[*tuple[Any, ...]]:
        # InnoDB locks what it looks at. By the key it looks at these rows; where many of all rows are wanted
        # it would rather look at all of them, and wait for those that others have locked.
        found = super().locking(feed_ids, skip_locked=skip_locked)
        for name in MYSQL:
            found = found.with_hint(checkpoint, "FORCE INDEX (PRIMARY)", name)
        return found

    # -- sessions of others --------------------------------------------------------------------------

    def end_workers(self, worker_ids: Collection[UUID]) -> int:
        names = [name for id_ in worker_ids for role in ROLES for name in _lock_names(role, id_)]
        return sum(self._kill(number) for number in self._holders(names))

    def end_session(self, number: int) -> None:
        # Numbers begin anew with a restart of the server; the lock says that it still is the same session.
        if number in self._holders(_lock_names(self.role, self.worker_id)):
            self._kill(number)

    def _holders(self, names: Sequence[str]) -> list[int]:
        """Numbers of the sessions that have these locks, without our own."""
        if not names:
            return []
        asked = ", ".join(f"IS_USED_LOCK(:n{n})" for n in range(len(names)))
        given = {f"n{n}": name for n, name in enumerate(names)}
        own, *numbers = tuple(self.execute(text(f"SELECT CONNECTION_ID(), {asked}"), given).one())
        return [int(number) for number in numbers if number not in (None, own)]

    def _kill(self, number: int) -> bool:
        """End a session; False when it is gone already."""
        try:
            self.run(f"KILL {number:d}")
        except DBAPIError as error:
            if _code(error) != NO_SUCH_SESSION:
                raise
            return False
        return True

    # -- targets -------------------------------------------------------------------------------------

    @classmethod
    def name_fault(cls, name: str) -> str | None:
        if len(name) > NAME_CHARACTERS_MAX:
            return f"its name is longer than {NAME_CHARACTERS_MAX} characters"
        if name.endswith(" ") or max(name, default="") > "\uffff":
            return "its name ends with a space, or has a character that the database does not allow in names"
        return super().name_fault(name)

    @classmethod
    def folded(cls, name: str) -> str:
        return name.lower()

    @classmethod
    def is_system(cls, name: TableName, default_schema: str | None) -> bool:
        return (name.schema or default_schema or "").casefold() in SYSTEM_SCHEMAS

    def unfit_table(self, inspector: Inspector, name: TableName) -> str | None:
        options = inspector.get_table_options(name.name, schema=name.schema)
        engine = next((value for option, value in options.items() if option.endswith("_engine")), "InnoDB")
        if str(engine).lower() == "innodb":
            return None
        return f"uses the engine {engine}, but only InnoDB can commit data and checkpoint together"

    def fingerprint(self, name: TableName) -> Any:
        quote = self.connection.dialect.identifier_preparer.quote_identifier
        table = ".".join(quote(part) for part in (name.schema, name.name) if part)
        try:
            # Not a type alone: MariaDB's JSON is a text with a constraint.
            row = self.connection.exec_driver_sql(f"SHOW CREATE TABLE {table}").one()
        except DBAPIError as error:
            if _code(error) != NO_SUCH_TABLE:
                raise
            return None
        return NUMBERING.sub("", row[1])

    def json_columns(self, name: TableName) -> Collection[str]:
        if not self._is_mariadb:
            return ()
        # MariaDB's JSON is a LONGTEXT with a constraint.
        found = self.connection.scalars(
            text(
                "SELECT CONSTRAINT_NAME FROM information_schema.CHECK_CONSTRAINTS "
                "WHERE CONSTRAINT_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :name "
                "AND LEVEL = 'Column' AND CHECK_CLAUSE LIKE 'json\\_valid(%'"
            ),
            {"schema": name.schema, "name": name.name},
        )
        return set(found)

    @classmethod
    def conversion(cls, column_type: Any, *, is_json: bool) -> Conversion:
        if is_json:
            return Conversion(column_values.text(None), types.String())
        signed = not getattr(column_type, "unsigned", False)
        match column_type:
            case dialect.BIT():
                return Conversion(
                    column_values.flag(column_type.length or 1, signed=False), types.BigInteger()
                )
            case types.Integer():
                bits = next(bits for kind, bits in _BITS.items() if isinstance(column_type, kind))
                stands_for_boolean = bits == _BITS[dialect.TINYINT]
                make = column_values.flag if stands_for_boolean else column_values.integer
                return Conversion(make(bits, signed=signed), types.BigInteger())
            case types.Numeric():
                precision, scale = column_type.precision, column_type.scale
                return Conversion(
                    column_values.whole_digits(column_values.decimal, precision, scale), types.Numeric()
                )
            case dialect.SET():
                return Conversion(column_values.some_of(list(column_type.values)), types.String())
            case _:
                return conversion(column_type)

    @classmethod
    def bends_null(cls, column_type: Any) -> bool:
        # It becomes the current time, in MariaDB.
        return isinstance(column_type, types.TIMESTAMP)

    @classmethod
    def upsert(cls, table: Table, key: Sequence[str], change: NewValues) -> Insert:
        # INSERT IGNORE would ignore everything else as well: values cut off, constraints, wrong types.
        statement = insert(table)
        changed = change(statement.inserted) or {key[0]: table.c[key[0]]}
        return statement.on_duplicate_key_update(list(changed.items()))


def _code(error: DBAPIError) -> int | None:
    """The server's number of the error."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def _lock_names(role: str, worker_id: UUID) -> list[str]:
    name = application_name(role, worker_id)
    return [name, *(f"{name}#{n}" for n in range(2, SESSIONS_MAX + 1))]


def _shorten_keepalives(driver: Any) -> None:
    """Notice a dead network as soon as the PostgreSQL sink does, where the driver lets us at its socket."""
    sock = getattr(driver, "_sock", None)
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        keep_alive(sock, idle_s=5, interval_s=2, probes=3)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)
