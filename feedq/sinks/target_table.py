"""Judges whether a target can work: table names, table shapes, and what is wrong between the two. Pure.

A session reads the shapes from its database; here they are judged, and every complaint says which table
and column, and what to do about it. Names are quoted wherever they are written, and never folded; a dot separates
schema and table and cannot be part of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy.dialects.postgresql.base import PGDialect

from feedq.sinks.base import OnConflict, Target
from feedq.sinks.mapping import DEFAULT_SOURCES, ColumnSource, Drift, Origin, flattened, pointer_to

NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer names off silently, and two of them could then mean the same table."""
FILLED_MAX: Final = 100
"""Columns of a table that `Drift.ADD` fills besides those that are given, and adds."""
# Of PostgreSQL: it knows the words that are reserved there. Not for a driver that wants each % twice.
_PREPARER: Final = PGDialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]

Types = Mapping[str, Sequence[str]]
"""Those that each column of a default target may have; the first is what a complaint asks for."""


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the database describes it."""

    type: str
    """Without length or precision, e.g. ``character varying``; outside of PostgreSQL the kind of its type."""
    definition: str
    """As declared, e.g. ``character varying(10)``."""
    not_null: bool
    has_default: bool
    generated: bool
    """Only the database writes it."""
    insertable: bool = True
    """Whether this session's role may write it."""
    selectable: bool = True
    """Whether it may read it, which looking for a key that is there already takes."""
    updatable: bool = True
    """Whether it may change it, which putting a new row in the place of an old one takes."""
    remedy: str | None = None
    """What to do where its default takes numbers from a sequence that this session's role may not use."""
    own_type: Any = field(default=None, compare=False)
    """What the driver's library knows of the type."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as it is, with what this session's role may do to it."""

    schema: str | None
    name: str
    columns: Mapping[str, Column]
    unique_keys: frozenset[frozenset[str]] = frozenset()
    """Those that a target's key may name."""
    unfit: str | None = None
    """Why nothing can land there whatever the target."""
    role: str | None = None
    """Where the database says what it may do."""
    owner: str = ""
    """There: who may permit it more."""
    has_other_unique: bool = False
    """Whether there are unique indexes besides that are partial, or over parts of values."""
    fingerprint: Any = None
    """Changes when columns do, and when the table is made anew; taken before the rest was read."""

    @property
    def quoted(self) -> str:
        return ".".join(quoted(name) for name in (self.schema, self.name) if name)


NO_COLUMNS: Final[Mapping[str, Column]] = MappingProxyType({})


def column_sources(target: Target, columns: Mapping[str, Column] = NO_COLUMNS) -> tuple[ColumnSource, ...]:
    """Where the columns that are written come from: the given ones, and those that ``flatten``, or `Drift.ADD`,
    fills; or the default ones."""
    if not target.is_mapped:
        return DEFAULT_SOURCES
    if target.flatten is None and target.drift is not Drift.ADD:
        return target.columns
    given = {source.column for source in target.columns}
    left = [
        name
        for name, column in columns.items()
        if name not in given and not column.generated and not column.has_default
    ]
    if target.csv is not None:
        # There is nothing nested, and a column without a field is none of ours.
        return target.columns + tuple(
            ColumnSource(name, Origin.POINTER, pointer_to(name)) for name in left if name in target.csv.fields
        )
    if target.flatten is None:
        return target.columns + tuple(
            ColumnSource(name, Origin.POINTER, pointer_to(name)) for name in left[:FILLED_MAX]
        )
    return target.columns + tuple(flattened(name, target.flatten) for name in left)


def written_columns(target: Target, columns: Mapping[str, Column] = NO_COLUMNS) -> tuple[str, ...]:
    """What is written of a table with these columns, in the order of a COPY."""
    return tuple(source.column for source in column_sources(target, columns))


def problem(target: Target, shape: TableShape | None, types: Types) -> str | None:
    """Why the target cannot work with the table as it is; None when it can."""
    if shape is None:
        return f"table {target.table!r} does not exist: create it, or correct sink.table"
    if shape.unfit is not None:
        return shape.unfit
    try:
        written = written_columns(target, shape.columns)
    except ValueError as error:
        return f"table {target.table!r}: {error}, too often for sink.flatten: map it in sink.columns"
    return next(_complaints(target, shape, written, types), None)


def _complaints(target: Target, shape: TableShape, written: Sequence[str], types: Types) -> Iterator[str]:
    table = f"table {target.table!r}"
    yield from _wrong_columns(target, shape, written, types)
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
    if unwritten := [name for name in target.key if name not in written]:
        yield f"sink.key: {_listed(unwritten)} is not among the columns written to {table}: {_listed(written)}"
    if target.key and frozenset(target.key) not in shape.unique_keys:
        key = ", ".join(map(quoted, target.key))
        yield (
            f"{table} has no unique index on exactly ({key}), which sink.key needs: "
            f"CREATE UNIQUE INDEX {'' if shape.role else '… '}ON {shape.quoted} ({key})"
        )
    if shape.role is not None:
        yield from _not_permitted(target, shape, written, shape.role)


def _wrong_columns(target: Target, shape: TableShape, written: Sequence[str], types: Types) -> Iterator[str]:
    table, there = f"table {target.table!r}", _listed(shape.columns)
    if not written:
        yield (
            f"{table} has no column that sink.flatten could fill (it has {there}): add one, or map one in "
            "sink.columns"
        )
    if missing := [name for name in written if name not in shape.columns]:
        wanted = ", ".join(f"{name} {type_}" for name, (type_, *_) in types.items())
        yield (
            f"{table} has no column {_listed(missing)}: add it, or correct sink.columns (the table has {there})"
            if target.is_mapped
            else f"{table} exists and has no column {_listed(missing)}: without sink.columns records land as "
            f"({wanted}); name another table, or map them with sink.columns"
        )
    if generated := [name for name in written if shape.columns[name].generated]:
        yield f"{table}: column {_listed(generated)} is generated by the database; leave it out of sink.columns"
    for name, wanted_types in () if target.is_mapped else types.items():
        found = shape.columns[name]
        if found.type not in wanted_types:
            why = f" for source.format {target.format}" if name == "payload" else ""
            yield (
                f"{table}: column {name!r} is {found.definition}, and must be {wanted_types[0]}{why}; "
                "change the column, name another table, or map the records with sink.columns"
            )


def _not_permitted(target: Target, shape: TableShape, names: Sequence[str], role: str) -> Iterator[str]:
    """What the role may not do; each with the statement that permits it."""
    table, written = f"table {target.table!r}", [shape.columns[name] for name in names]
    have, to = f"have {quoted(shape.owner)} run", f"ON {shape.quoted} TO {quoted(role)}"
    if not all(column.insertable for column in written):
        yield f"role {role!r} may not insert into {table}: {have} GRANT INSERT {to}"
    if not all(shape.columns[name].selectable for name in target.key):
        key = ", ".join(map(quoted, target.key))
        yield (
            f"role {role!r} may not read the key ({key}) of {table}, which sink.key needs: "
            f"{have} GRANT SELECT ({key}) {to}"
        )
    # PostgreSQL wants SELECT for whatever an update takes its new values from.
    updates = target.on_conflict is OnConflict.UPDATE
    if updates and not all(column.updatable and column.selectable for column in written):
        yield (
            f"role {role!r} may not change rows of {table}, which sink.on_conflict update needs: "
            f"{have} GRANT SELECT, UPDATE {to}"
        )
    for name, column in shape.columns.items():
        if column.remedy is not None and name not in names:
            yield f"role {role!r} may not use the sequence of column {name!r} of {table}: {column.remedy}"


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def quoted(name: str) -> str:
    """For a statement that a person may copy from a message."""
    return _PREPARER.quote(name)
