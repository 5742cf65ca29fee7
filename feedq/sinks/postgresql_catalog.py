"""The catalog of PostgreSQL: feedq's own tables, and targets as `DESCRIBE` reads them, all in one statement."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import psycopg2
from psycopg2 import sql

from feedq.errors import InvalidInput
from feedq.sinks import target_table
from feedq.sinks.base import Target
from feedq.sinks.catalog import Catalog, TargetPlan
from feedq.sinks.copyplan import CopyPlan
from feedq.sinks.made_table import made_columns
from feedq.sinks.mapping import ColumnType, Origin
from feedq.sinks.postgresql_session import PostgresSinkSession, identifier_of
from feedq.sinks.reserved import why_not_in_postgresql
from feedq.sinks.sqlstate import ErrorScope, classify, explain
from feedq.sinks.stagedcopy import KeyedCopyPlan
from feedq.sinks.statements import (
    BOOKKEEPING_EXISTS,
    CREATE_BOOKKEEPING,
    CREATION_LOCK,
    DESCRIBE,
    MAY_CREATE,
)
from feedq.sinks.target_table import DEFAULT_COLUMNS, Column, TableName, TableShape, Types, quoted

CREATION_LOCK_TIMEOUT_S: Final = 5.0
ALTERATION_LOCK_TIMEOUT_S: Final = 0.5
"""For a table that others are writing to: all who come later wait as well, and it is tried again."""
STAGING_TABLES_MAX: Final = 64
"""Staging tables a session keeps between commits; each is emptied at every commit that touches one."""


WRITABLE_KINDS: Final = ("r", "p", "f")
"""Tables, partitioned and foreign ones."""

TEXT: Final = ("text", "character varying")
PAYLOAD_TYPES: Final[Types] = {"json": ("jsonb", "json"), "csv": TEXT, "text": TEXT, "bytes": ("bytea",)}
"""By record format; the first one is what a table of ours gets."""
MADE_TYPES: Final = {
    ColumnType.TEXT: "text",
    ColumnType.BIGINT: "bigint",
    ColumnType.NUMERIC: "numeric",
    ColumnType.DOUBLE: "double precision",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIMESTAMP: "timestamp with time zone",
    ColumnType.DATE: "date",
    ColumnType.JSON: "jsonb",
    ColumnType.BYTES: "bytea",
}


class PostgresCatalog(Catalog):
    """The targets as a session with PostgreSQL sees them. Methods raise `psycopg2.Error`."""

    def __init__(self, session: PostgresSinkSession) -> None:
        super().__init__()
        self._session = session
        self._staging_tables: dict[Target, KeyedCopyPlan] = {}
        self._staging_tables_made = 0

    def ensure_bookkeeping(self) -> None:
        """Create feedq's own tables if they are not there."""
        ((exists,),) = self._session.query(BOOKKEEPING_EXISTS)
        if not exists:
            self._create(CREATE_BOOKKEEPING)

    def why_reserved(self, table: TableName) -> str | None:
        return why_not_in_postgresql(table.schema, table.name)

    def judge(self, target: Target, shape: TableShape | None) -> str | None:
        return problem(target, shape)

    def make_plan(self, target: Target, shape: TableShape) -> CopyPlan:
        return CopyPlan(self._session, target, shape)

    def why_unmakeable(self, target: Target) -> str | None:
        schema = TableName.parse(target.table).schema
        ((allowed,),) = self._session.query(MAY_CREATE, {"schema": schema})
        if allowed:
            return None
        return (
            f"table {target.table!r} does not exist and this role may not create it: create it, or grant CREATE "
            "on its schema"
        )

    def create(self, target: Target) -> str | None:
        try:
            for statement in self._creations(target):
                self._create(statement)
        except psycopg2.Error as error:
            if classify(error) not in (ErrorScope.TARGET, ErrorScope.DATA, ErrorScope.LATER):
                raise
            return (
                f"table {target.table!r} does not exist and cannot be created: {explain(error)}; create it, or "
                "grant CREATE on its schema"
            )
        return None

    def alter(
        self, target: Target, shape: TableShape, columns: Mapping[str, ColumnType], *, dry_run: bool
    ) -> list[str]:
        statements = [
            sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} {}").format(
                identifier_of(shape), sql.Identifier(name), sql.SQL(MADE_TYPES[type_])
            )
            for name, type_ in columns.items()
        ]
        for statement in () if dry_run else statements:
            self._create(statement, lock_timeout_s=ALTERATION_LOCK_TIMEOUT_S)
        return [self._session.text_of(statement) for statement in statements]

    def imagine(self, target: Target) -> tuple[TargetPlan[Any], bool]:
        self._session.begin_for_person()
        for statement in self._creations(target):
            self._session.query(statement)
        if why := self.get_ready([target]).get(target):
            raise InvalidInput(why)
        return self.plan(target), True

    def get_ready(self, targets: Collection[Target]) -> dict[Target, str]:
        """Make sure that targets with a key have their staging tables, too."""
        wrong = super().get_ready(targets)
        keyed = [target for target in targets if target.key and target not in wrong]
        missing = [target for target in keyed if target not in self._staging_tables]
        if missing and len(self._staging_tables) + len(missing) > STAGING_TABLES_MAX:
            for target in self._staging_tables.keys() - set(keyed):
                self.forget(target)
        for target in missing:
            self._staging_tables_made += 1
            plan = KeyedCopyPlan(
                self._session,
                target,
                self._plans[target].shape,
                stage=f"feedq_stage_{self._staging_tables_made}",
            )
            try:
                plan.create_staging_table()
            except psycopg2.Error as error:
                if classify(error) is not ErrorScope.TARGET:
                    raise
                wrong[target] = (
                    f"table {target.table!r}: sink.key needs a temporary table: {explain(error)}; "
                    "GRANT TEMPORARY ON DATABASE to this role, or leave sink.key out"
                )
            else:
                self._plans[target] = self._staging_tables[target] = plan
        return wrong

    def forget(self, target: Target) -> None:
        super().forget(target)
        if plan := self._staging_tables.pop(target, None):
            plan.drop_staging_table()

    def describe(self, targets: Collection[Target]) -> dict[Target, TableShape]:
        numbered = dict(enumerate(targets))
        if not numbered:
            return {}
        names = [TableName.parse(target.table) for target in numbered.values()]
        rows = self._session.query(
            DESCRIBE,
            {
                "numbers": list(numbered),
                "schemas": [name.schema for name in names],
                "names": [name.name for name in names],
            },
        )
        return {
            numbered[n]: TableShape(
                schema,
                name,
                dict(_column(**column) for column in columns or []),
                frozenset(frozenset(key) for key in unique_keys or [] if key),
                why_unfit(numbered[n], schema, name, kind=kind, role=role, may_use=may_use),
                role,
                has_triggers,
            )
            for n, schema, name, kind, may_use, role, has_triggers, columns, unique_keys in rows
        }

    def _creations(self, target: Target) -> Iterator[sql.Composable]:
        schema = TableName.parse(target.table).schema
        if schema is not None:
            ((exists,),) = self._session.query(
                "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)", {"schema": schema}
            )
            if not exists:
                yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
        yield _create_table(target)

    def _create(
        self, statement: str | sql.Composable, *, lock_timeout_s: float = CREATION_LOCK_TIMEOUT_S
    ) -> None:
        self._session.set_lock_timeout(lock_timeout_s)
        self._session.begin()
        try:
            self._session.query(CREATION_LOCK)
            self._session.query(statement)
            self._session.query("COMMIT")
        finally:
            self._session.rollback()


def problem(target: Target, shape: TableShape | None) -> str | None:
    """Why the target cannot work with the table as it is; None when it can. Pure."""
    if why := target_table.problem(target, shape, default_types(target)):
        return why
    assert shape is not None
    for source in target.columns if target.format != "bytes" else ():
        if source.origin is Origin.RECORD and shape.columns[source.column].type == "bytea":
            return (
                f"table {target.table!r}: column {source.column!r} is bytea, and the whole record needs a text, "
                "json or jsonb column, or source.format bytes"
            )
    return None


def why_unfit(target: Target, schema: str, name: str, *, kind: str, role: str, may_use: bool) -> str | None:
    """Why nothing can land in a table whatever its columns; None when something may. Pure."""
    # The search path may have led into a schema that was not named.
    if why := why_not_in_postgresql(schema, name):
        return f"sink.table {target.table!r} leads to {quoted(schema)}.{quoted(name)}, which {why}"
    if kind not in WRITABLE_KINDS:
        return f"{target.table!r} is not a table that records can be copied into: name a table"
    if not may_use:
        return (
            f"role {role!r} may not use schema {schema!r} of table {target.table!r}: "
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
        )
    return None


def default_types(target: Target) -> Types:
    """The types that the columns of a target without ``columns`` may have."""
    types = (TEXT, ("bigint",), ("timestamp with time zone",), PAYLOAD_TYPES[target.format])
    return dict(zip(DEFAULT_COLUMNS, types, strict=True))


def _create_table(target: Target) -> sql.Composed:
    """The statement that makes the table of a target."""
    if target.is_mapped:
        columns = {name: MADE_TYPES[type_] for name, type_ in made_columns(target)}
    else:
        columns = {name: f"{type_} NOT NULL" for name, (type_, *_) in default_types(target).items()}
    parts: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns.items()
    ]
    if target.key:
        parts.append(sql.SQL("UNIQUE ({})").format(sql.SQL(", ").join(map(sql.Identifier, target.key))))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
        identifier_of(TableName.parse(target.table)), sql.SQL(", ").join(parts)
    )


def _column(name: str, **described: Any) -> tuple[str, Column]:
    """A column as `DESCRIBE` gives it."""
    return name, Column(**described)
