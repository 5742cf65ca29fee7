"""The sink for MariaDB, MySQL and SQLite, and its catalog: tables as SQLAlchemy reflects them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

from sqlalchemy import Engine, Inspector, NullPool, create_engine, inspect, make_url, types
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.types import TypeEngine

from feedq.core.passwords import mask_url
from feedq.errors import InvalidInput
from feedq.sinks.base import SYSTEM, Target
from feedq.sinks.catalog import Catalog, TargetPlan
from feedq.sinks.session import ErrorScope
from feedq.sinks.sql.column_values import is_binary
from feedq.sinks.sql.insertplan import InsertPlan
from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import SqliteSession
from feedq.sinks.table_definitions import made_table
from feedq.sinks.target_table import (
    DEFAULT_COLUMNS,
    Column,
    TableName,
    TableShape,
    Types,
    problem,
    written_columns,
)
from feedq.sinks.transactional import TransactionalSink

SESSIONS: Final[dict[str, type[SqlSession]]] = {
    "mysql": MySqlSession,
    "mariadb": MySqlSession,
    "sqlite": SqliteSession,
}
"""By the name of SQLAlchemy's dialect."""


WHOLE_INDEX_ONLY: Final = ("_where", "_length")
"""Options of an index that covers some rows only, or the beginnings of values."""
TEXT: Final = ("text",)
PAYLOAD_TYPES: Final[Types] = {
    "json": ("text", "json"),
    "csv": TEXT,
    "text": TEXT,
    "bytes": ("bytes", "any type"),
}
"""By record format."""
KINDS: Final = {
    types.String: "text",
    types.Integer: "integer",
    types.DateTime: "date and time",
    types.NullType: "any type",
}
"""By SQLAlchemy's class of types. SQLite's columns without a type hold anything."""


class SqlCatalog(Catalog):
    """The targets as a session sees them. Methods raise `SQLAlchemyError`."""

    plan_type: ClassVar[type[TargetPlan]] = InsertPlan
    _session: SqlSession

    def judge(self, target: Target, shape: TableShape | None) -> str | None:
        types_ = (TEXT, ("integer",), ("date and time",), PAYLOAD_TYPES[target.format])
        if why := problem(target, shape, dict(zip(DEFAULT_COLUMNS, types_, strict=True))):
            return why
        assert shape is not None
        return None if self._session.upserts_by_key else _other_key(target, shape)

    def make_plan(self, target: Target, shape: TableShape) -> TargetPlan:
        return self.plan_type(self._session, target, shape)

    def imagine(self, target: Target) -> tuple[TargetPlan, bool]:
        # Not every database makes tables in a transaction: records are only read and converted.
        table = made_table(target)
        dialect = self._session.connection.dialect
        columns = {
            column.name: _column(column.type.dialect_impl(dialect), not_null=not column.nullable)
            for column in table.c
        }
        return self.make_plan(target, TableShape(table.schema, table.name, columns)), False

    def create(self, target: Target) -> str | None:
        try:
            self._session.make(made_table(target))
        except SQLAlchemyError as error:
            self._session.rollback()
            if self._session.scope(error) not in (ErrorScope.TARGET, ErrorScope.DATA):
                raise
            schema = TableName.parse(target.table).schema
            where = f"in {schema!r} " if schema else ""
            return (
                f"table {target.table!r} does not exist and cannot be created {where}"
                f"({self._session.explain(error)}): create it, or have somebody permit it"
            )
        return None

    def describe(self, targets: Collection[Target]) -> dict[Target, TableShape]:
        if not targets:
            return {}
        self._session.set_lock_timeout(self._session.lock_timeout_s)
        # One for all of them: it remembers what it has asked the database.
        inspector = inspect(self._session.connection)
        found = {target: self._shape(inspector, target) for target in targets}
        return {target: shape for target, shape in found.items() if shape is not None}

    def fingerprints(self, shapes: Sequence[TableShape]) -> Sequence[Any]:
        return [self._session.fingerprint(TableName(shape.schema, shape.name)) for shape in shapes]

    def _shape(self, inspector: Inspector, target: Target) -> TableShape | None:
        """None when there is no such table."""
        name, session = TableName.parse(target.table), self._session

        def unfit(why: str | None) -> str | None:
            return why and f"table {target.table!r} {why}"

        if session.is_system(name, inspector.default_schema_name):
            return TableShape(name.schema, name.name, {}, unfit=unfit(SYSTEM))
        if not inspector.has_table(name.name, schema=name.schema):
            return None
        if name.name in inspector.get_view_names(schema=name.schema):
            return TableShape(name.schema, name.name, {}, unfit=unfit("is a view: name a table"))
        fingerprint = session.fingerprint(name)
        described = inspector.get_columns(name.name, schema=name.schema)
        json_columns = session.json_columns(name)
        primary = inspector.get_pk_constraint(name.name, schema=name.schema)["constrained_columns"]
        own = session.own_columns(described, primary)
        columns: dict[str, Column] = {}
        for column in described:
            is_numbered = _is_numbered(column) or column["name"] in own
            columns[column["name"]] = _column(
                column["type"],
                is_json=column["name"] in json_columns,
                not_null=not column["nullable"],
                has_default=column.get("default") is not None or is_numbered,
                generated="computed" in column or bool(column.get("identity", {}).get("always")),
            )
        whole, has_partial = _unique_keys(inspector, name, primary)
        return TableShape(
            name.schema,
            name.name,
            columns,
            whole,
            unfit(session.unfit_table(inspector, name)),
            has_other_unique=has_partial,
            fingerprint=fingerprint,
        )


class SqlSink(TransactionalSink):
    """A session with a database, on behalf of one worker. Belongs to one thread."""

    catalog_type = SqlCatalog

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        """Raises `InvalidInput` for a URL that leads to no database, or to one without a driver here."""
        super().__init__(url, environment=environment, worker_id=worker_id, role=role)
        self.session_type, self._engine = _database_of(url)


def _database_of(url: str) -> tuple[type[SqlSession], Engine]:
    """What a URL leads to; no connection is made. Raises `InvalidInput`."""
    sink = f"sink {mask_url(url)}"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
        raise InvalidInput(
            f"{sink}: SQLAlchemy cannot read this URL; special characters in user name and password must be "
            "percent-encoded"
        ) from None
    scheme, _, driver = parsed.drivername.partition("+")
    kind = SESSIONS[scheme]
    if driver not in ("", kind.driver):
        raise InvalidInput(f"{sink}: feedq speaks to it by {kind.driver} only: write {scheme}://…")
    try:
        engine = create_engine(
            parsed.set(drivername=f"{scheme}+{kind.driver}"),
            poolclass=NullPool,
            connect_args=kind.connect_args(parsed),
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )
    except ModuleNotFoundError:
        raise InvalidInput(f"{sink}: the driver is not installed: pip install {kind.driver}") from None
    except ArgumentError as error:
        raise InvalidInput(f"{sink}: {mask_url(str(error))}") from None
    return kind, engine


def _other_key(target: Target, shape: TableShape) -> str | None:
    """Why the database might take another unique index for the key of the target; None when it cannot."""
    written = set(written_columns(target, shape.columns))
    # Numbers that the database gives out itself cannot be there already.
    others = [key for key in shape.unique_keys - {frozenset(target.key)} if key & written]
    if not target.key or not (others or shape.has_other_unique):
        return None
    named = ", ".join(f"({', '.join(sorted(key))})" for key in others) or "over parts of values"
    return (
        f"table {target.table!r} has another unique index, {named}, and ON DUPLICATE KEY UPDATE would take it for "
        "sink.key: drop it, or leave sink.key out"
    )


def _unique_keys(
    inspector: Inspector, name: TableName, primary: Sequence[str]
) -> tuple[frozenset[frozenset[str]], bool]:
    """Returns the keys of a table, and whether it has unique indexes besides that cover it in part."""
    whole: set[frozenset[str]] = {frozenset(primary)} if primary else set()
    indexes = [index for index in inspector.get_indexes(name.name, schema=name.schema) if index["unique"]]
    partial = [index for index in indexes if not _is_whole(index)]
    whole |= {frozenset(index["column_names"]) for index in indexes if index not in partial}  # type: ignore[arg-type] # whole ones have names
    for constraint in inspector.get_unique_constraints(name.name, schema=name.schema):
        if not constraint.get("duplicates_index"):
            whole.add(frozenset(constraint["column_names"]))
    return frozenset(whole), bool(partial)


def _column(
    column_type: TypeEngine[Any],
    *,
    not_null: bool,
    is_json: bool = False,
    has_default: bool = False,
    generated: bool = False,
) -> Column:
    if is_json or isinstance(column_type, types.JSON):
        kind = "json"
    elif is_binary(column_type):
        kind = "bytes"
    else:
        kind = next((name for known, name in KINDS.items() if isinstance(column_type, known)), "other")
    return Column(
        kind,
        repr(column_type),
        not_null=not_null,
        has_default=has_default,
        generated=generated,
        own_type=column_type,
    )


def _is_numbered(column: ReflectedColumn) -> bool:
    return column.get("autoincrement") is True or "identity" in column


def _is_whole(index: Mapping[str, Any]) -> bool:
    options = index.get("dialect_options", {})
    return all(index["column_names"]) and not any(
        value is not None for option, value in options.items() if option.endswith(WHOLE_INDEX_ONLY)
    )
