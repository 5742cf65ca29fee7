"""Whether a landing can work: table names, table shapes, and what is wrong between the two.

Pure. `feedq.sinks.catalog` reads the shapes from a database; here they are judged, and every complaint
says which table and column, and what to do about it. Names are case-sensitive and never folded, because
the driver quotes them; a dot separates schema and table and cannot be part of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from feedq.sinks.base import Landing

NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer names off silently, and two of them could then mean the same table."""
BOOKKEEPING: Final = frozenset({"feedq_checkpoint", "feedq_dead_letter"})
WRITABLE_KINDS: Final = {"r": "table", "p": "partitioned table", "f": "foreign table"}

TEXT: Final = ("text", "character varying")
PAYLOAD_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "json": ("jsonb", "json"),
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


@dataclass(frozen=True, slots=True)
class Shape:
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


def written_columns(landing: Landing) -> tuple[str, ...]:
    """What is written of the table, in the order of a COPY."""
    return tuple(column for column, _ in landing.columns) or tuple(default_columns(landing))


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
    if table.name in BOOKKEEPING:
        return f"sink.table {landing.table!r} is feedq's own; name another table"
    known = written_columns(landing)
    for column in landing.key:
        if column not in known:
            return f"sink.key: {column!r} is not among the columns written: {', '.join(known)}"
    return None


def problem(landing: Landing, shape: Shape | None) -> str | None:
    """Why the landing cannot work with the table as it is; None when it can."""
    if shape is None:
        return f"table {landing.table!r} does not exist: create it, or correct sink.table"
    if shape.kind not in WRITABLE_KINDS:
        return f"{landing.table!r} is not a table that records can be copied into: name a table"
    if not shape.usable_schema:
        return (
            f"role {shape.role!r} may not use schema {shape.schema!r} of table {landing.table!r}: "
            f"GRANT USAGE ON SCHEMA {_quoted(shape.schema)} TO {_quoted(shape.role)}"
        )
    return next(_complaints(landing, shape), None)


def _complaints(landing: Landing, shape: Shape) -> Iterator[str]:
    yield from _missing(landing, shape)
    yield from _unwritable(landing, shape)
    yield from _types(landing, shape)
    yield from _unfilled(landing, shape)
    if landing.key:
        yield from _keyless(landing, shape)


def _missing(landing: Landing, shape: Shape) -> Iterator[str]:
    missing = [column for column in written_columns(landing) if column not in shape.columns]
    if missing and landing.columns:
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


def _unwritable(landing: Landing, shape: Shape) -> Iterator[str]:
    columns = [(name, shape.columns[name]) for name in written_columns(landing)]
    generated = [name for name, column in columns if column.generated]
    if generated:
        yield (
            f"table {landing.table!r}: column {_listed(generated)} is generated by the database; "
            "leave it out of sink.columns"
        )
    if not all(column.insertable for _, column in columns):
        yield (
            f"role {shape.role!r} may not insert into table {landing.table!r}: "
            f"GRANT INSERT ON {_quoted(shape.schema)}.{_quoted(shape.name)} TO {_quoted(shape.role)}"
        )


def _types(landing: Landing, shape: Shape) -> Iterator[str]:
    if landing.columns:
        for name, pointer in landing.columns:
            if not pointer and shape.columns[name].type == "bytea":
                yield (
                    f"table {landing.table!r}: column {name!r} is bytea, and the whole record needs a text, "
                    "json or jsonb column"
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


def _unfilled(landing: Landing, shape: Shape) -> Iterator[str]:
    written = set(written_columns(landing))
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


def _keyless(landing: Landing, shape: Shape) -> Iterator[str]:
    key = ", ".join(map(_quoted, landing.key))
    table = f"{_quoted(shape.schema)}.{_quoted(shape.name)}"
    if frozenset(landing.key) not in shape.unique_keys:
        yield (
            f"table {landing.table!r} has no unique index on exactly ({key}), which sink.key needs: "
            f"CREATE UNIQUE INDEX ON {table} ({key})"
        )
    if not all(shape.columns[name].selectable for name in landing.key):
        yield (
            f"role {shape.role!r} may not read the key ({key}) of table {landing.table!r}, which sink.key "
            f"needs: GRANT SELECT ({key}) ON {table} TO {_quoted(shape.role)}"
        )


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _quoted(name: str) -> str:
    """For a statement that a person may copy from a message."""
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'
