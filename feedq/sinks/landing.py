"""Whether a landing can work: table names, table shapes, and what is wrong between the two.

Pure. `feedq.sinks.catalog` reads the shapes from a database; here they are judged, and every complaint
says which table and column, and what to do about it. Names are case-sensitive and never folded, because
the driver quotes them; a dot separates schema and table and cannot be part of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from psycopg2 import sql

from feedq.sinks.base import Landing, OnConflict
from feedq.sinks.mapping import ColumnSource, Origin, flattened, pointer_to, unknown_field
from feedq.sinks.reserved import why_not_in_postgresql

NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer names off silently, and two of them could then mean the same table."""
WRITABLE_KINDS: Final = {"r": "table", "p": "partitioned table", "f": "foreign table"}

TEXT: Final = ("text", "character varying")
PAYLOAD_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "json": ("jsonb", "json"),
    "csv": TEXT,
    "text": TEXT,
    "bytes": ("bytea",),
}
"""By record format; the first one is what a table of ours gets."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the feed names it; without a schema, the connection's search path decides."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Raises `ValueError`, saying what is wrong with the name."""
        parts = text.split(".")
        if len(parts) > 2 or not all(parts):
            raise ValueError(f"sink.table {text!r} is neither a table nor schema.table")
        for part in parts:
            if "\0" in part or len(part.encode()) > NAME_BYTES_MAX:
                raise ValueError(f"sink.table {text!r}: {part!r} is longer than {NAME_BYTES_MAX} bytes")
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name) if self.schema else sql.Identifier(self.name)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalog describes it."""

    type: str
    """Without length or precision, e.g. ``character varying``."""
    definition: str
    """With them, e.g. ``character varying(10)``: what a staging column is declared as."""
    not_null: bool
    has_default: bool
    generated: bool
    """Only the database writes it."""
    insertable: bool
    """Whether this session's role may write it."""
    selectable: bool
    """Whether it may read it, which looking for a key that is there already takes."""
    updatable: bool = True
    """Whether it may change it, which putting a new row in the place of an old one takes."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as it is, with what this session's role may do to it."""

    schema: str
    name: str
    kind: str
    usable_schema: bool
    role: str
    has_triggers: bool
    """They may change a row before it is judged."""
    columns: Mapping[str, Column]
    unique_keys: frozenset[frozenset[str]]

    @property
    def identifier(self) -> sql.Identifier:
        # Qualified, whatever the feed wrote: a later change of the search path must not move the landing.
        return sql.Identifier(self.schema, self.name)


def default_columns(landing: Landing) -> dict[str, tuple[str, ...]]:
    """The columns of a landing without ``columns``, in order, with the types that each may have."""
    return {
        "feed": TEXT,
        "epoch": ("bigint",),
        "received_at": ("timestamp with time zone",),
        "payload": PAYLOAD_TYPES[landing.format],
    }


NO_COLUMNS: Final[Mapping[str, Column]] = MappingProxyType({})


def column_sources(landing: Landing, columns: Mapping[str, Column] = NO_COLUMNS) -> tuple[ColumnSource, ...]:
    """Where the columns of the user's own table come from: the given ones, and those that ``flatten`` fills."""
    if landing.flatten is None:
        return landing.columns
    given = {source.column for source in landing.columns}
    left = [
        name
        for name, column in columns.items()
        if name not in given and not column.generated and not column.has_default
    ]
    if landing.csv is not None:
        # There is nothing nested, and a column without a field is none of ours.
        return landing.columns + tuple(
            ColumnSource(name, Origin.POINTER, pointer_to(name))
            for name in left
            if name in landing.csv.fields
        )
    return landing.columns + tuple(flattened(name, landing.flatten) for name in left)


def written_columns(landing: Landing, columns: Mapping[str, Column] = NO_COLUMNS) -> tuple[str, ...]:
    """What is written of a table with these columns, in the order of a COPY."""
    if landing.is_mapped:
        return tuple(source.column for source in column_sources(landing, columns))
    return tuple(default_columns(landing))


def create_table(landing: Landing) -> sql.Composed:
    """The default landing table."""
    columns = [
        sql.SQL("{} {} NOT NULL").format(sql.Identifier(column), sql.SQL(types[0]))
        for column, types in default_columns(landing).items()
    ]
    if landing.key:
        key = sql.SQL(", ").join(map(sql.Identifier, landing.key))
        columns.append(sql.SQL("UNIQUE ({})").format(key))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
        TableName.parse(landing.table).identifier, sql.SQL(", ").join(columns)
    )


def misdeclared(landing: Landing) -> str | None:
    """What is wrong with the landing whatever the database holds; None when nothing is."""
    try:
        table = TableName.parse(landing.table)
    except ValueError as error:
        return str(error)
    if why := why_not_in_postgresql(table.schema, table.name):
        return f"sink.table {landing.table!r} {why}"
    if landing.csv is not None and (why := unknown_field(landing.columns, landing.csv.fields)):
        return why
    if landing.flatten is not None:
        # Which columns that fills is for the table to say.
        return None
    known = written_columns(landing)
    for column in landing.key:
        if column not in known:
            return f"sink.key: {column!r} is not among the columns written: {', '.join(known)}"
    return None


def problem(landing: Landing, shape: TableShape | None) -> str | None:
    """Why the landing cannot work with the table as it is; None when it can."""
    if shape is None:
        return f"table {landing.table!r} does not exist: create it, or correct sink.table"
    # The search path may have led into a schema that was not named.
    if why := why_not_in_postgresql(shape.schema, shape.name):
        return f"sink.table {landing.table!r} leads to {_table(shape)}, which {why}"
    if shape.kind not in WRITABLE_KINDS:
        return f"{landing.table!r} is not a table that records can be copied into: name a table"
    if not shape.usable_schema:
        return (
            f"role {shape.role!r} may not use schema {shape.schema!r} of table {landing.table!r}: "
            f"GRANT USAGE ON SCHEMA {_quoted(shape.schema)} TO {_quoted(shape.role)}"
        )
    try:
        written = written_columns(landing, shape.columns)
    except ValueError as error:
        return f"table {landing.table!r}: {error}, too often for sink.flatten: map it in sink.columns"
    return next(_complaints(landing, shape, written), None)


def _complaints(landing: Landing, shape: TableShape, written: Sequence[str]) -> Iterator[str]:
    yield from _missing(landing, shape, written)
    yield from _unwritable(landing, shape, written)
    yield from _types(landing, shape)
    yield from _unfilled(landing, shape, written)
    if landing.key:
        yield from _keyless(landing, shape, written)
    if landing.on_conflict is OnConflict.UPDATE:
        yield from _unchangeable(landing, shape, written)


def _missing(landing: Landing, shape: TableShape, written: Sequence[str]) -> Iterator[str]:
    missing = [column for column in written if column not in shape.columns]
    if missing and landing.is_mapped:
        yield (
            f"table {landing.table!r} has no column {_listed(missing)}: add it, or correct sink.columns "
            f"(the table has {_listed(shape.columns)})"
        )
    elif missing:
        wanted = ", ".join(f"{name} {types[0]}" for name, types in default_columns(landing).items())
        yield (
            f"table {landing.table!r} exists and has no column {_listed(missing)}: without sink.columns "
            f"records land as ({wanted}); name another table, or map them with sink.columns"
        )
    elif not written:
        yield (
            f"table {landing.table!r} has no column that sink.flatten could fill "
            f"(it has {_listed(shape.columns)}): add one, or map one in sink.columns"
        )


def _unwritable(landing: Landing, shape: TableShape, written: Sequence[str]) -> Iterator[str]:
    columns = [(name, shape.columns[name]) for name in written]
    generated = [name for name, column in columns if column.generated]
    if generated:
        yield (
            f"table {landing.table!r}: column {_listed(generated)} is generated by the database; "
            "leave it out of sink.columns"
        )
    if not all(column.insertable for _, column in columns):
        yield (
            f"role {shape.role!r} may not insert into table {landing.table!r}: "
            f"GRANT INSERT ON {_table(shape)} TO {_quoted(shape.role)}"
        )


def _types(landing: Landing, shape: TableShape) -> Iterator[str]:
    if landing.is_mapped:
        for source in landing.columns:
            name = source.column
            as_bytes = source.origin is Origin.RECORD and shape.columns[name].type == "bytea"
            if as_bytes and landing.format != "bytes":
                yield (
                    f"table {landing.table!r}: column {name!r} is bytea, and the whole record needs a text, "
                    "json or jsonb column, or source.format bytes"
                )
        return
    for name, types in default_columns(landing).items():
        found = shape.columns[name].definition
        if shape.columns[name].type not in types:
            why = f" for source.format {landing.format}" if name == "payload" else ""
            yield (
                f"table {landing.table!r}: column {name!r} is {found}, and must be {types[0]}{why}; "
                "change the column, name another table, or map the records with sink.columns"
            )


def _unfilled(landing: Landing, shape: TableShape, written: Sequence[str]) -> Iterator[str]:
    unfilled = [
        name
        for name, column in shape.columns.items()
        if name not in written and column.not_null and not column.has_default and not column.generated
    ]
    if unfilled:
        yield (
            f"table {landing.table!r}: column {_listed(unfilled)} is NOT NULL without a default and "
            "nothing is written to it: map it in sink.columns, or give it a default"
        )


def _keyless(landing: Landing, shape: TableShape, written: Sequence[str]) -> Iterator[str]:
    key = ", ".join(map(_quoted, landing.key))
    unwritten = [name for name in landing.key if name not in written]
    if unwritten:
        yield (
            f"sink.key: {_listed(unwritten)} is not among the columns written to table {landing.table!r}: "
            f"{_listed(written)}"
        )
        return
    if frozenset(landing.key) not in shape.unique_keys:
        yield (
            f"table {landing.table!r} has no unique index on exactly ({key}), which sink.key needs: "
            f"CREATE UNIQUE INDEX ON {_table(shape)} ({key})"
        )
    if not all(shape.columns[name].selectable for name in landing.key):
        yield (
            f"role {shape.role!r} may not read the key ({key}) of table {landing.table!r}, which sink.key "
            f"needs: GRANT SELECT ({key}) ON {_table(shape)} TO {_quoted(shape.role)}"
        )


def _unchangeable(landing: Landing, shape: TableShape, written: Sequence[str]) -> Iterator[str]:
    columns = [shape.columns[name] for name in written]
    # PostgreSQL wants SELECT for whatever an update takes its new values from.
    if not all(column.updatable and column.selectable for column in columns):
        yield (
            f"role {shape.role!r} may not change rows of table {landing.table!r}, which sink.on_conflict "
            f"update needs: GRANT SELECT, UPDATE ON {_table(shape)} TO {_quoted(shape.role)}"
        )


def _table(shape: TableShape) -> str:
    return f"{_quoted(shape.schema)}.{_quoted(shape.name)}"


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _quoted(name: str) -> str:
    """For a statement that a person may copy from a message."""
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'
