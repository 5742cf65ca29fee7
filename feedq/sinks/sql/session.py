"""What sessions with MariaDB, MySQL and SQLite have in common: the hot statements of the ledger, tables as
SQLAlchemy reflects them, and rows that are inserted, many at a time.

A record is encoded by `feedq.sinks.copytext`, so that it lands here as it does in PostgreSQL, and its texts are
converted to values by `feedq.sinks.sql.column_values`. What cannot be encoded or converted is refused before the
database sees it, which tells the usual reasons apart without a single attempt. A NULL is for the database to
judge, if it does: a trigger may put something in its place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

import sqlalchemy
from sqlalchemy import (
    URL,
    ColumnCollection,
    Engine,
    Insert,
    Inspector,
    MetaData,
    NullPool,
    Table,
    and_,
    case,
    create_engine,
    false,
    insert,
    inspect,
    make_url,
    or_,
    tuple_,
    types,
)
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import ArgumentError
from sqlalchemy.types import TypeEngine

from feedq.core.model import FeedKey
from feedq.core.passwords import mask_url
from feedq.errors import InvalidInput
from feedq.sinks.base import SYSTEM, FeedWrite, Fenced, FenceRequest, OnConflict, SuspectRecord, Target, parts
from feedq.sinks.copytext import SetAside, UnreadableRecord, chunks, encoded, texts_of_row
from feedq.sinks.session import SinkSession, TargetPlan, c
from feedq.sinks.sql.column_values import Conversion, Unfit, is_binary
from feedq.sinks.table_definitions import checkpoint, made_table, utc_now
from feedq.sinks.target_table import Column, TableName, TableShape, Types, written_columns

NewValues = Callable[[ColumnCollection[str, Any]], Mapping[str, Any]]
"""What a row whose key is there already gets, by column, from the row that was to be inserted."""
CHECKPOINT_KEY: Final = ("environment", "feed_id")
ROWS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 256 * 1024
"""Of records in one statement. PyMySQL cuts at 1 MB, with every byte escaped, and then rows are counted anew."""

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


class SqlSession(SinkSession):
    """A session whose rows are inserted, with values converted to the types of their columns."""

    head_types = (TEXT, ("integer",), ("date and time",))
    payload_types = PAYLOAD_TYPES
    driver: ClassVar[str]
    """The one that is tested."""
    upserts_by_key: ClassVar[bool] = True
    """Whether `upsert` looks at the key that it is given, and at no other."""

    @classmethod
    def open(cls, url: str, name: str) -> Engine:
        sink, parsed = f"sink {mask_url(url)}", parsed_url(url)
        scheme, _, driver = parsed.drivername.partition("+")
        if driver not in ("", cls.driver):
            raise InvalidInput(f"{sink}: feedq supports only the driver {cls.driver}: write {scheme}://…")
        try:
            return create_engine(
                parsed.set(drivername=f"{scheme}+{cls.driver}"),
                poolclass=NullPool,
                connect_args=cls.connect_args(parsed),
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
            )
        except ModuleNotFoundError:
            raise InvalidInput(f"{sink}: the driver is not installed: pip install {cls.driver}") from None
        except ArgumentError as error:
            raise InvalidInput(f"{sink}: {mask_url(str(error))}") from None

    @classmethod
    @abstractmethod
    def connect_args(cls, url: URL) -> dict[str, Any]:
        """What bounds the driver's waits. Raises `InvalidInput` for a URL that leads to no database."""

    # -- checkpoints ---------------------------------------------------------------------------------

    def lock(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        self.begin()
        found: dict[FeedKey, str | None] = {}
        for part in parts(sorted(write.key for write in writes)):
            # The ids find the rows by the key, and the pairs leave a successor's rows alone.
            pairs = tuple_(c.feed_id, c.epoch).in_(part)
            rows = self.execute(self.locking([feed_id for feed_id, _ in part], skip_locked=True).where(pairs))
            found |= {(row.feed_id, row.epoch): row.commit_id for row in rows}
        self.has_begun = True
        return {
            write.key
            for write in writes
            if write.key not in found
            or (write.continues is not None and found[write.key] != str(write.continues))
        }

    def advance(self, writes: Sequence[FeedWrite], landed: Mapping[FeedKey, int], commit_id: UUID) -> None:
        rows = [
            {
                "environment": self.environment,
                "feed_id": write.feed_id,
                "feed": write.feed,
                "epoch": write.epoch,
                "owner": str(self.worker_id),
                "cursor": self.cursor_text(write.cursor),
                "records": landed[write.key],
                "commit_id": str(commit_id),
                "feed_uuid": "",
                "installation": "",
            }
            for write in writes
        ]
        # The rows are there and locked by us: an upsert changes many of them in one statement, each by values of
        # its own, which UPDATE cannot do. What is not changed is only there since it may not be NULL.
        self.execute(self.upsert(checkpoint, CHECKPOINT_KEY, _advanced), rows)

    def fence(self, requests: Sequence[FenceRequest], commit_id: UUID) -> list[Fenced]:
        rows = [
            {
                "environment": self.environment,
                "feed_id": request.feed_id,
                "feed": request.feed,
                "epoch": request.epoch,
                "owner": str(self.worker_id),
                "commit_id": str(commit_id),
                "records": 0,
                "feed_uuid": str(request.identity.feed),
                "installation": str(request.identity.installation),
            }
            for request in requests
        ]
        self.execute(self.upsert(checkpoint, CHECKPOINT_KEY, _raised), rows)
        asked = {request.feed_id: request.epoch for request in requests}
        return [
            Fenced(one.feed_id, one.epoch, one.cursor, one.records, one.commit_id, is_given=one.is_given)
            for one in self.checkpoints_of(asked).values()
            # By owner and epoch: a person may have given it another cursor since, and with it another commit_id.
            if (one.owner, one.epoch) == (self.worker_id, asked[one.feed_id])
        ]

    @classmethod
    @abstractmethod
    def upsert(cls, table: Table, key: Sequence[str], change: NewValues) -> Insert:
        """An INSERT that changes a row whose key is there already, or leaves it alone if ``change`` is empty."""

    # -- targets -------------------------------------------------------------------------------------

    @classmethod
    def plan_type(cls, target: Target) -> type[TargetPlan]:
        return InsertPlan

    @classmethod
    def judge(cls, target: Target, shape: TableShape | None) -> str | None:
        if (why := super().judge(target, shape)) or shape is None or cls.upserts_by_key:
            return why
        return _other_key(target, shape)

    def imagine(self, target: Target) -> tuple[TargetPlan, bool]:
        # Not every database makes tables in a transaction: records are only read and converted.
        table = made_table(target)
        dialect = self.connection.dialect
        columns = {
            column.name: _column(column.type.dialect_impl(dialect), not_null=not column.nullable)
            for column in table.c
        }
        return self.new_plan(target, TableShape(table.schema, table.name, columns)), False

    def describe(self, targets: Collection[Target]) -> dict[Target, TableShape]:
        if not targets:
            return {}
        self.set_lock_timeout(self.lock_timeout_s)
        # One for all of them: it remembers what it has asked the database.
        inspector = inspect(self.connection)
        found = {target: self._shape(inspector, target) for target in targets}
        return {target: shape for target, shape in found.items() if shape is not None}

    def fingerprints(self, shapes: Sequence[TableShape]) -> Sequence[Any]:
        return [self.fingerprint(TableName(shape.schema, shape.name)) for shape in shapes]

    def _shape(self, inspector: Inspector, target: Target) -> TableShape | None:
        """None when there is no such table."""
        name = TableName.parse(target.table)

        def unfit(why: str | None) -> str | None:
            return why and f"table {target.table!r} {why}"

        if self.is_system(name, inspector.default_schema_name):
            return TableShape(name.schema, name.name, {}, unfit=unfit(SYSTEM))
        if not inspector.has_table(name.name, schema=name.schema):
            return None
        if name.name in inspector.get_view_names(schema=name.schema):
            return TableShape(name.schema, name.name, {}, unfit=unfit("is a view: name a table"))
        fingerprint = self.fingerprint(name)
        described = inspector.get_columns(name.name, schema=name.schema)
        json_columns = self.json_columns(name)
        primary = inspector.get_pk_constraint(name.name, schema=name.schema)["constrained_columns"]
        own = self.own_columns(described, primary)
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
            unfit(self.unfit_table(inspector, name)),
            has_other_unique=has_partial,
            fingerprint=fingerprint,
        )

    @classmethod
    @abstractmethod
    def is_system(cls, name: TableName, default_schema: str | None) -> bool:
        """Whether a table is one that the database keeps about itself."""

    @abstractmethod
    def unfit_table(self, inspector: Inspector, name: TableName) -> str | None:
        """Why nothing can land in a table, as the end of a sentence that begins with it."""

    @abstractmethod
    def fingerprint(self, name: TableName) -> Any:
        """What changes when the columns of a table do, and when it is made anew; None when there is none."""

    def json_columns(self, name: TableName) -> Collection[str]:
        """Columns that hold JSON although their type does not say so."""
        return ()

    def own_columns(self, columns: Sequence[ReflectedColumn], primary: Sequence[str]) -> Collection[str]:
        """Columns that the database fills although nothing says so."""
        return ()

    @classmethod
    @abstractmethod
    def conversion(cls, column_type: Any, *, is_json: bool) -> Conversion:
        """How texts become values of a column."""

    @classmethod
    def bends_null(cls, column_type: Any) -> bool:
        """Whether a NULL for a column of this type that is NOT NULL becomes something else, without an error."""
        return False


class InsertPlan(TargetPlan):
    """A plan that inserts rows into one target."""

    session: SqlSession

    def __init__(self, session: SqlSession, target: Target, shape: TableShape) -> None:
        """Raises `Unfit` for a constant that its column does not take."""
        super().__init__(session, target, shape)
        columns = {name: shape.columns[name] for name in self.columns}
        self._conversions: Mapping[str, Conversion] = {
            name: session.conversion(column.own_type, is_json=column.type == "json")
            for name, column in columns.items()
        }
        self._not_null = frozenset(
            name
            for name, column in columns.items()
            if column.not_null and session.bends_null(column.own_type)
        )
        table = Table(
            shape.name,
            MetaData(),
            *(sqlalchemy.Column(name, self._conversions[name].bound) for name in self.columns),
            schema=shape.schema,
        )
        replaced = self.columns if target.on_conflict is OnConflict.UPDATE else ()
        self._insert = (
            session.upsert(table, target.key, lambda new: {name: new[name] for name in replaced})
            if target.key
            else insert(table)
        )
        self._done = 0
        """Rows of the last `land` that were in the statements before the last one."""

    def _values(self, texts: Sequence[str | None]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, text in zip(self.columns, texts, strict=True):
            if text is not None:
                try:
                    values[name] = self._conversions[name].convert(text)
                except UnreadableRecord as unfit:
                    raise Unfit(f"column {name!r}: {unfit}") from None
            elif name in self._not_null:
                raise Unfit(f"Column {name!r} cannot be null")
            else:
                values[name] = None
        return values

    def land(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        self._done = 0
        for part in _some_rows(self._rows_of(writes, set_aside)):
            self.session.execute(self._insert, part)
            self._done += len(part)

    def _rows_of(
        self, writes: Sequence[FeedWrite], set_aside: SetAside
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """The rows, each with the size of its record. Records that cannot be converted are ``set_aside``, too."""
        for chunk in chunks(writes):
            for spans, rows in encoded(chunk, self.rows.rows, set_aside):
                suspects = (SuspectRecord(*span[:2], record) for span in spans for record in span.records)
                for suspect, row in zip(suspects, rows.decode().split("\n"), strict=False):
                    try:
                        yield self._values(texts_of_row(row)), len(suspect.record)
                    except UnreadableRecord as unreadable:
                        set_aside(suspect, str(unreadable))

    def row_of(self, error: Any) -> int | None:
        row = self.session.row_of(error)
        return None if row is None else self._done + row


def parsed_url(url: str) -> URL:
    """Raises `InvalidInput`."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
        raise InvalidInput(
            f"sink {mask_url(url)}: SQLAlchemy cannot read this URL; special characters in user name and password "
            "must be percent-encoded"
        ) from None


def _advanced(new: ColumnCollection[str, Any]) -> Mapping[str, Any]:
    """A checkpoint after a commit."""
    return {
        "cursor": new.cursor,
        "records": checkpoint.c.records + new.records,
        "commit_id": new.commit_id,
        "is_given": false(),
        "updated_at": utc_now(),
    }


def _raised(new: ColumnCollection[str, Any]) -> Mapping[str, Any]:
    """A checkpoint after a fence, which raises a smaller epoch, or one's own."""
    old = checkpoint.c
    raises = or_(new.epoch > old.epoch, and_(new.epoch == old.epoch, new.owner == old.owner))
    values = {
        "updated_at": utc_now(),
        # MySQL changes one column after the other: the last two are what the condition asks for.
        **{name: new[name] for name in ("feed", "feed_uuid", "installation", "commit_id", "owner", "epoch")},
    }
    return {name: case((raises, value), else_=old[name]) for name, value in values.items()}


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


def _some_rows(rows: Iterable[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    """Some rows at a time, never none, in order."""
    part: list[dict[str, Any]] = []
    size = 0
    for row, row_size in rows:
        if part and (len(part) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_size
    if part:
        yield part
