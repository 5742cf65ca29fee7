"""The session with any database that SQLAlchemy speaks and that nothing special is known of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

from sqlalchemy import URL, Engine, Insert, Inspector, Table, inspect
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import SQLAlchemyError

from feedq.sinks.base import FeedWrite
from feedq.sinks.session import SinkSession
from feedq.sinks.sql.column_values import Conversion, conversion
from feedq.sinks.table_definitions import checkpoint, dead_letter
from feedq.sinks.target_table import TableName

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 60
"""For an answer of the server to anything; longer than every wait that we ask it for."""
_OF_MYSQL_DRIVERS: Final = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "read_timeout": READ_TIMEOUT_S,
    "write_timeout": READ_TIMEOUT_S,
}
_CONNECT_ARGS: Final[Mapping[str, Mapping[str, int]]] = {
    "pymysql": _OF_MYSQL_DRIVERS,
    "mysqldb": _OF_MYSQL_DRIVERS,
    "mariadbconnector": _OF_MYSQL_DRIVERS,
    "mysqlconnector": {"connection_timeout": CONNECT_TIMEOUT_S},
    "psycopg": {"connect_timeout": CONNECT_TIMEOUT_S},
    "psycopg2": {"connect_timeout": CONNECT_TIMEOUT_S},
    "oracledb": {"tcp_connect_timeout": CONNECT_TIMEOUT_S},
}
"""By driver; others wait as long as they please unless the URL says otherwise."""


class SqlSession(SinkSession):
    """A session whose rows are inserted, with values converted to the types of their columns."""

    system_schemas: ClassVar = frozenset({"information_schema", "crdb_internal", "sys", "system"})
    """Those that the database keeps about itself."""
    upserts_by_key: ClassVar[bool] = True
    """Whether `upsert` looks at the key that it is given, and at no other."""

    def __init__(self, engine: Engine, *, environment: str, worker_id: UUID, role: str) -> None:
        super().__init__(engine, environment=environment, worker_id=worker_id, role=role)
        self._has_bookkeeping = False
        self._record_bytes_max = self.record_bytes_max()

    @classmethod
    def connect_args(cls, url: URL, driver: str) -> dict[str, Any]:
        """What bounds the driver's waits, but for what the URL says itself."""
        return {name: value for name, value in _CONNECT_ARGS.get(driver, {}).items() if name not in url.query}

    def record_bytes_max(self) -> int | None:
        """The longest record that a statement may carry."""
        return None

    def unkeepable(self, write: FeedWrite) -> str | None:
        if limit := self._record_bytes_max:
            for batch in write.batches:
                if batch.size > limit and (longest := max(map(len, batch.split()))) > limit:
                    return (
                        f"a record of {longest} bytes is longer than this server takes ({limit}): raise its "
                        "max_allowed_packet to more than twice that"
                    )
        return super().unkeepable(write)

    def row_of(self, error: SQLAlchemyError) -> int | None:
        """The row of a statement, from 0, that the database stopped at. A hint, nothing more."""
        return None

    def ensure_bookkeeping(self) -> None:
        if not self._has_bookkeeping:
            self.set_lock_timeout(self.lock_timeout_s)
            for table in (checkpoint, dead_letter):
                self.make(table)
            self._has_bookkeeping = True

    def make(self, table: Table) -> None:
        """Make a table if it is missing; of two sessions that do so at the same moment, one finds it there."""
        if self._exists(table):
            return
        try:
            self.begin()
            table.create(self.connection)
            self._commit()
        except SQLAlchemyError:
            self.rollback()
            if self.is_broken or not self._exists(table):
                raise

    def end_reading(self) -> None:
        """Have what was read outside of `begin` over with, where that began a transaction, too."""
        if self.isolation is None:
            self.rollback()

    def _exists(self, table: Table) -> bool:
        try:
            return inspect(self.connection).has_table(table.name, schema=table.schema)
        finally:
            self.end_reading()

    # -- targets -------------------------------------------------------------------------------------

    @classmethod
    def is_system(cls, name: TableName, default_schema: str | None) -> bool:
        """Whether a table is one that the database keeps about itself."""
        schema = (name.schema or default_schema or "").casefold()
        # In PostgreSQL and its like a name without a schema is looked for among the catalogs first.
        as_catalog = schema if name.schema else name.name
        return schema in cls.system_schemas or as_catalog.startswith("pg_")

    def unfit_table(self, inspector: Inspector, name: TableName) -> str | None:
        """Why nothing can land in a table, as the end of a sentence that begins with it."""
        return None

    def json_columns(self, name: TableName) -> Collection[str]:
        """Columns that hold JSON although their type does not say so."""
        return ()

    def own_columns(self, columns: Sequence[ReflectedColumn], primary: Sequence[str]) -> Collection[str]:
        """Columns that the database fills although nothing says so."""
        return ()

    @classmethod
    def conversion(cls, column_type: Any, *, is_json: bool) -> Conversion:
        """How texts become values of a column."""
        return conversion(column_type)

    @classmethod
    def upsert(cls, table: Table, *, key: Sequence[str], replaced: Sequence[str]) -> Insert | None:
        """An INSERT that leaves a row of the same key alone but for the columns ``replaced``; None when there is
        no such statement."""
        return None
