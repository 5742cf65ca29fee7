"""A landing's table as it is, and whether the landing can work with it.

`describe` reads a table's shape by way of SQLAlchemy's inspector; `problem` judges it, and is pure: every
complaint says which table and column, and what to do about it. Names are case-sensitive as far as the database
is, and quoted by SQLAlchemy; a dot separates schema and table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Inspector, Table, types
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.types import TypeEngine

from feedq.sinks import landing as postgresql
from feedq.sinks.base import Landing
from feedq.sinks.landing import TableName, column_sources
from feedq.sinks.reserved import SYSTEM, why_nowhere
from feedq.sinks.sql.column_values import is_binary
from feedq.sinks.sql.flavor import Flavor

DEFAULT_COLUMNS: Final = ("feed", "epoch", "received_at", "payload")
WHOLE_INDEX_ONLY: Final = ("_where", "_length")
"""Options of an index that covers some rows only, or the beginnings of values."""


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column as the inspector describes it."""

    type: TypeEngine[Any]
    not_null: bool
    is_json: bool
    has_default: bool
    is_numbered: bool
    """The database gives NULL a number of its own."""
    generated: bool
    """Only the database writes it."""

    @property
    def for_reading(self) -> postgresql.Column:
        """What those who read records need to know of it, in PostgreSQL's words."""
        kind = "jsonb" if self.is_json else "bytea" if is_binary(self.type) else "text"
        return postgresql.Column(
            kind,
            kind,
            not_null=self.not_null,
            has_default=self.has_default,
            generated=self.generated,
            insertable=True,
            selectable=True,
        )


@dataclass(frozen=True, slots=True)
class SqlTableShape:
    """A table as it is."""

    name: TableName
    columns: Mapping[str, SqlColumn]
    unique_keys: frozenset[frozenset[str]]
    """Those that a landing's key may name."""
    other_unique: bool
    """Whether there are unique indexes besides that are partial, or over parts of values."""
    unfit: str | None
    """Why nothing can land there whatever the landing."""


def describe(
    connection: Connection, inspector: Inspector, flavor: Flavor, landing: Landing
) -> SqlTableShape | None:
    """None when there is no such table. Raises `SQLAlchemyError`."""
    name = TableName.parse(landing.table)
    if flavor.is_system(name, inspector.default_schema_name):
        return SqlTableShape(name, {}, frozenset(), False, SYSTEM)
    if not inspector.has_table(name.name, schema=name.schema):
        return None
    if name.name in inspector.get_view_names(schema=name.schema):
        return SqlTableShape(name, {}, frozenset(), False, "is a view: name a table")
    described = inspector.get_columns(name.name, schema=name.schema)
    json_columns = flavor.json_columns(connection, name)
    primary = inspector.get_pk_constraint(name.name, schema=name.schema)["constrained_columns"]
    own = flavor.own_columns(described, primary)
    columns = {
        column["name"]: SqlColumn(
            column["type"],
            not_null=not column["nullable"],
            is_json=column["name"] in json_columns or isinstance(column["type"], types.JSON),
            has_default=column.get("default") is not None or _is_numbered(column) or column["name"] in own,
            is_numbered=_is_numbered(column) or column["name"] in own,
            generated="computed" in column or bool(column.get("identity", {}).get("always")),
        )
        for column in described
    }
    whole: set[frozenset[str]] = {frozenset(primary)} if primary else set()
    indexes = [index for index in inspector.get_indexes(name.name, schema=name.schema) if index["unique"]]
    partial = [index for index in indexes if not _is_whole(index)]
    whole |= {frozenset(index["column_names"]) for index in indexes if index not in partial}  # type: ignore[arg-type] # whole ones have names
    for constraint in inspector.get_unique_constraints(name.name, schema=name.schema):
        if not constraint.get("duplicates_index"):
            whole.add(frozenset(constraint["column_names"]))
    unfit = flavor.unfit_table(connection, inspector, name)
    return SqlTableShape(name, columns, frozenset(whole), bool(partial), unfit)


def shape_of(table: Table, connection: Connection) -> SqlTableShape:
    """The shape of a table that is yet to be made."""
    columns = {
        column.name: SqlColumn(
            column.type.dialect_impl(connection.dialect),
            not_null=not column.nullable,
            is_json=isinstance(column.type.dialect_impl(connection.dialect), types.JSON),
            has_default=False,
            is_numbered=False,
            generated=False,
        )
        for column in table.c
    }
    return SqlTableShape(TableName(table.schema, table.name), columns, frozenset(), False, None)


def misdeclared(landing: Landing) -> str | None:
    """What is wrong with the landing whatever the database holds; None when nothing is."""
    try:
        TableName.parse(landing.table)
    except ValueError as error:
        return str(error)
    if why := why_nowhere(landing.table):
        return f"sink.table {landing.table!r} {why}"
    return None


def written_columns(landing: Landing, shape: SqlTableShape) -> tuple[str, ...]:
    """What is written of the table, in order."""
    if landing.is_mapped:
        readable = {name: column.for_reading for name, column in shape.columns.items()}
        return tuple(source.column for source in column_sources(landing, readable))
    return DEFAULT_COLUMNS


def problem(landing: Landing, shape: SqlTableShape | None) -> str | None:
    """Why the landing cannot work with the table as it is; None when it can."""
    if shape is None:
        return f"table {landing.table!r} does not exist: create it, or correct sink.table"
    if shape.unfit is not None:
        return f"table {landing.table!r} {shape.unfit}"
    try:
        return next(_complaints(landing, shape), None)
    except ValueError as error:
        return f"table {landing.table!r}: {error}"


def _complaints(landing: Landing, shape: SqlTableShape) -> Iterator[str]:
    table, written = f"table {landing.table!r}", written_columns(landing, shape)
    if missing := [name for name in written if name not in shape.columns]:
        yield (
            f"{table} has no column {_listed(missing)}: add it, or correct sink.columns "
            f"(the table has {_listed(shape.columns)})"
            if landing.is_mapped
            else f"{table} exists and has no column {_listed(missing)}: without sink.columns records land as "
            f"({', '.join(DEFAULT_COLUMNS)}); name another table, or map them with sink.columns"
        )
    if not written:
        yield f"{table} has no column that sink.flatten could fill (it has {_listed(shape.columns)})"
    if generated := [name for name in written if shape.columns[name].generated]:
        yield f"{table}: column {_listed(generated)} is generated by the database; leave it out of sink.columns"
    if not landing.is_mapped:
        yield from _wrong_types(landing, shape)
    unfilled = [
        name
        for name, column in shape.columns.items()
        if name not in written and column.not_null and not column.has_default and not column.generated
    ]
    if unfilled:
        yield (
            f"{table}: column {_listed(unfilled)} is NOT NULL without a default and nothing is written to it: "
            "map it in sink.columns, or give it a default"
        )
    if unwritten := [name for name in landing.key if name not in written]:
        yield f"sink.key: {_listed(unwritten)} is not among the columns written: {', '.join(written)}"
    if landing.key and frozenset(landing.key) not in shape.unique_keys:
        key = ", ".join(landing.key)
        yield (
            f"{table} has no unique index on exactly ({key}), which sink.key needs: "
            f"CREATE UNIQUE INDEX … ON {landing.table} ({key})"
        )


def _wrong_types(landing: Landing, shape: SqlTableShape) -> Iterator[str]:
    wanted: dict[str, tuple[str, bool]] = {
        "feed": ("a text", isinstance(shape.columns["feed"].type, types.String)),
        "epoch": ("an integer of 64 bits", isinstance(shape.columns["epoch"].type, types.Integer)),
        "received_at": ("a date and time", isinstance(shape.columns["received_at"].type, types.DateTime)),
    }
    payload = shape.columns["payload"]
    if landing.format == "bytes":
        wanted["payload"] = ("of bytes for source.format bytes", _holds_bytes(payload.type))
    else:
        may_be_json = landing.format == "json" or not payload.is_json
        is_text = payload.is_json or isinstance(payload.type, types.String)
        wanted["payload"] = (f"a text for source.format {landing.format}", is_text and may_be_json)
    for name, (kind, fits) in wanted.items():
        if not fits:
            yield (
                f"table {landing.table!r}: column {name!r} is {shape.columns[name].type!r}, and must be {kind}; "
                "change the column, name another table, or map the records with sink.columns"
            )


def _is_numbered(column: ReflectedColumn) -> bool:
    return column.get("autoincrement") is True or "identity" in column


def _is_whole(index: Mapping[str, Any]) -> bool:
    options = index.get("dialect_options", {})
    return all(index["column_names"]) and not any(
        value is not None for option, value in options.items() if option.endswith(WHOLE_INDEX_ONLY)
    )


def _holds_bytes(column_type: TypeEngine[Any]) -> bool:
    # SQLite's columns without a type hold anything.
    return is_binary(column_type) or isinstance(column_type, types.NullType)


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
