"""Tables that sinks make: feedq's own two, and tables that feeds land in.

Times are UTC; only PostgreSQL's have a zone. Cursors are JSON, outside of PostgreSQL in a text column: a JSON
column would keep numbers its own way there, and a cursor must come back as it was.

What MariaDB and MySQL have their own way is said here by names, as statements are compiled: SQLAlchemy's own types
and options would have every worker import that dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn, CreateTable
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import JSON, TypeEngine, UserDefinedType

from feedq.sinks.base import Target
from feedq.sinks.mapping import ColumnSource, ColumnType, Origin
from feedq.sinks.target_table import TableName, TableShape, column_sources

MYSQL: Final = ("mysql", "mariadb")
FEED_CHARACTERS_MAX: Final = 200
"""As declared feeds have at most; a key of ours must fit into the index of a MariaDB table."""


class LongText(Text):
    """A text without a bound."""


class LongBinary(LargeBinary):
    """Bytes without a bound."""


class Moment(DateTime):
    """A time in microseconds."""


for _type, _name in ((LongText, "LONGTEXT"), (LongBinary, "LONGBLOB"), (Moment, "DATETIME(6)")):
    compiles(_type, *MYSQL)(lambda *_, name=_name, **__: name)

POSTGRESQL: Final = "postgresql"
TEXT: Final = LongText()
# A text without a bound has no index in MariaDB.
KEY_TEXT: Final = String(FEED_CHARACTERS_MAX).with_variant(Text(), POSTGRESQL)
BINARY: Final = LongBinary()
MOMENT: Final = Moment().with_variant(DateTime(timezone=True), POSTGRESQL)
# SQLite decides by affinity, and a column declared JSON would turn records that are numbers into its own.
RECORD: Final = JSON().with_variant(Text(), "sqlite").with_variant(postgresql.JSONB(), POSTGRESQL)
NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")


class JsonText(UserDefinedType[str]):
    """JSON that is given, and comes back, as a text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"  # jsonb would write numbers its own way


CURSOR: Final = TEXT.with_variant(JsonText(), POSTGRESQL)
ID: Final = String(36).with_variant(postgresql.UUID(as_uuid=False), POSTGRESQL)
NAME: Final = String(64).with_variant(Text(), POSTGRESQL)

PAYLOADS: Final[dict[str, TypeEngine[Any]]] = {"json": RECORD, "csv": TEXT, "text": TEXT, "bytes": BINARY}
"""By record format."""
MADE_TYPES: Final[dict[ColumnType, TypeEngine[Any]]] = {
    ColumnType.TEXT: TEXT,
    ColumnType.BIGINT: BigInteger(),
    ColumnType.NUMERIC: Numeric(38, 12).with_variant(Numeric(), POSTGRESQL),
    ColumnType.DOUBLE: Double(),
    ColumnType.BOOLEAN: Boolean(),
    ColumnType.TIMESTAMP: MOMENT,
    ColumnType.DATE: Date(),
    ColumnType.JSON: RECORD,
    ColumnType.BYTES: BINARY,
}
"""Of columns that are made by `sink.types`."""


@compiles(CreateTable, *MYSQL)
def _create_table_of_mysql(element: CreateTable, compiler: DDLCompiler, **options: Any) -> str:
    # Exact: two feeds may differ in case only. And InnoDB, since other engines have no transactions.
    statement: str = compiler.visit_create_table(element, **options)  # type: ignore[no-untyped-call]  # theirs is
    return statement + "ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin"


metadata: Final = MetaData()


class utc_now(FunctionElement[datetime]):  # noqa: N801 - a function of SQL, and used as one
    """The database's clock, in UTC where there is a way to say so."""

    type = MOMENT
    inherit_cache = True


@compiles(utc_now)
def _utc_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(utc_now, POSTGRESQL)
def _utc_now_of_postgresql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "clock_timestamp()"


@compiles(utc_now, *MYSQL)
def _utc_now_of_mysql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    # Our sessions have UTC for their time zone.
    return "CURRENT_TIMESTAMP(6)"


@compiles(utc_now, "sqlite")
def _utc_now_of_sqlite(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now'))"


checkpoint: Final = Table(
    "feedq_checkpoint",
    metadata,
    Column("environment", NAME, primary_key=True),
    Column("feed_id", BigInteger, primary_key=True, autoincrement=False),
    Column("feed", KEY_TEXT, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", ID, nullable=False),
    Column("cursor", CURSOR),
    Column("records", BigInteger, nullable=False, server_default="0"),
    Column("commit_id", ID),
    Column("updated_at", MOMENT, nullable=False, server_default=utc_now()),
    Column("feed_uuid", ID, nullable=False),
    Column("installation", ID, nullable=False),
    Column("is_given", Boolean, nullable=False, server_default=false()),
    Index("feedq_checkpoint_feed", "environment", "feed"),
    # Every commit updates these rows; with room on their page the indexes are never touched.
    postgresql_with={"fillfactor": 50},
)

dead_letter: Final = Table(
    "feedq_dead_letter",
    metadata,
    Column("id", NUMBER, Identity(always=True), primary_key=True),
    Column("environment", NAME, nullable=False),
    Column("feed_id", BigInteger, nullable=False),
    Column("feed", KEY_TEXT, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("record", BINARY, nullable=False),
    Column("error", TEXT, nullable=False),
    Column("cursor", CURSOR),
    Column("at", MOMENT, nullable=False, server_default=utc_now()),
    Index("feedq_dead_letter_feed", "environment", "feed_id", "id"),
)


def made_table(target: Target) -> Table:
    """The table that is made for a target: the default one, or that of its columns."""
    name = TableName.parse(target.table)
    return Table(
        name.name,
        MetaData(),
        *_made_columns(target),
        *([UniqueConstraint(*target.key)] if target.key else []),
        schema=name.schema,
    )


def _made_columns(target: Target) -> Iterator[Column[Any]]:
    given = dict(target.types)
    for source in column_sources(target):
        name = source.column
        type_ = MADE_TYPES[ColumnType(given[name])] if name in given else _type_of(source, target)
        if name in target.key and type_ is TEXT:
            type_ = KEY_TEXT
        yield Column(name, type_, nullable=target.is_mapped)


def _type_of(source: ColumnSource, target: Target) -> TypeEngine[Any]:
    """The type of a column that `sink.types` does not name; text takes whatever a pointer finds."""
    match source.origin:
        case Origin.FEED:
            return KEY_TEXT
        case Origin.EPOCH:
            return MADE_TYPES[ColumnType.BIGINT]
        case Origin.RECEIVED_AT:
            return MOMENT
        case Origin.RECORD:
            return PAYLOADS[target.format]
        case _:
            return TEXT


def added_columns(dialect: Dialect, shape: TableShape, columns: Mapping[str, ColumnType]) -> dict[str, str]:
    """The statements that add columns to a table, by their names."""
    table = dialect.identifier_preparer.format_table(Table(shape.name, MetaData(), schema=shape.schema))
    statements = {}
    for name, type_ in columns.items():
        column = CreateColumn(Column(name, MADE_TYPES[type_])).compile(dialect=dialect)
        statements[name] = f"ALTER TABLE {table} ADD COLUMN {column}"
    return statements
