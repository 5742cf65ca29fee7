"""The catalog of PostgreSQL: feedq's own tables, and landings as `DESCRIBE` reads them, all in one statement."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import psycopg2
from psycopg2 import sql

from feedq.errors import InvalidInput
from feedq.sinks import landing as landings_of_all
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.catalog import Catalog, LandingPlan
from feedq.sinks.copyplan import CopyPlan, KeyedCopyPlan
from feedq.sinks.cursors import cursor_text
from feedq.sinks.landing import DEFAULT_COLUMNS, Column, TableName, TableShape, Types, quoted
from feedq.sinks.mapping import Origin
from feedq.sinks.postgresql_session import PostgresSinkSession, identifier_of
from feedq.sinks.reserved import why_not_in_postgresql
from feedq.sinks.sqlstate import ErrorScope, classify, explain
from feedq.sinks.statements import (
    BOOKKEEPING_EXISTS,
    CREATE_BOOKKEEPING,
    CREATION_LOCK,
    DESCRIBE,
    MAY_CREATE,
)

CREATION_LOCK_TIMEOUT_S: Final = 5.0
STAGES_MAX: Final = 64
"""Staging tables a session keeps between commits; each is emptied at every commit that touches one."""


WRITABLE_KINDS: Final = ("r", "p", "f")
"""Tables, partitioned and foreign ones."""

TEXT: Final = ("text", "character varying")
PAYLOAD_TYPES: Final[Types] = {"json": ("jsonb", "json"), "csv": TEXT, "text": TEXT, "bytes": ("bytea",)}
"""By record format; the first one is what a table of ours gets."""


class PostgresCatalog(Catalog):
    """Landings as a session with PostgreSQL sees them. Methods raise `psycopg2.Error`."""

    def __init__(self, session: PostgresSinkSession) -> None:
        super().__init__()
        self._session = session
        self._stages: dict[Landing, KeyedCopyPlan] = {}
        self._stages_made = 0

    def ensure_bookkeeping(self) -> None:
        """Create feedq's own tables if they are not there."""
        ((exists,),) = self._session.query(BOOKKEEPING_EXISTS)
        if not exists:
            self._create(CREATE_BOOKKEEPING)

    def why_reserved(self, table: TableName) -> str | None:
        return why_not_in_postgresql(table.schema, table.name)

    def unkeepable(self, write: FeedWrite) -> str | None:
        try:
            cursor_text(write.cursor)
        except ValueError as error:
            return str(error)
        return None

    def judge(self, landing: Landing, shape: TableShape | None) -> str | None:
        return problem(landing, shape)

    def make_plan(self, landing: Landing, shape: TableShape) -> CopyPlan:
        return CopyPlan(self._session, landing, shape)

    def why_unmakeable(self, landing: Landing) -> str | None:
        schema = TableName.parse(landing.table).schema
        ((allowed,),) = self._session.query(MAY_CREATE, {"schema": schema})
        if allowed:
            return None
        return (
            f"table {landing.table!r} does not exist and this role may not create it: create it, or grant CREATE "
            "on its schema"
        )

    def create(self, landing: Landing) -> str | None:
        try:
            for statement in self._creations(landing):
                self._create(statement)
        except psycopg2.Error as error:
            if classify(error) not in (ErrorScope.LANDING, ErrorScope.DATA, ErrorScope.LATER):
                raise
            return (
                f"table {landing.table!r} does not exist and cannot be created: {explain(error)}; create it, or "
                "grant CREATE on its schema"
            )
        return None

    def imagine(self, landing: Landing) -> tuple[LandingPlan[Any], bool]:
        self._session.begin_for_person()
        for statement in self._creations(landing):
            self._session.query(statement)
        if why := self.get_ready([landing]).get(landing):
            raise InvalidInput(why)
        return self.plan(landing), True

    def get_ready(self, landings: Collection[Landing]) -> dict[Landing, str]:
        """Make sure that landings with a key have their staging tables, too."""
        wrong = super().get_ready(landings)
        keyed = [landing for landing in landings if landing.key and landing not in wrong]
        missing = [landing for landing in keyed if landing not in self._stages]
        if missing and len(self._stages) + len(missing) > STAGES_MAX:
            for landing in self._stages.keys() - set(keyed):
                self.forget(landing)
        for landing in missing:
            self._stages_made += 1
            plan = KeyedCopyPlan(
                self._session, landing, self._plans[landing].shape, stage=f"feedq_stage_{self._stages_made}"
            )
            try:
                plan.create_stage()
            except psycopg2.Error as error:
                if classify(error) is not ErrorScope.LANDING:
                    raise
                wrong[landing] = (
                    f"table {landing.table!r}: sink.key needs a temporary table: {explain(error)}; "
                    "GRANT TEMPORARY ON DATABASE to this role, or leave sink.key out"
                )
            else:
                self._plans[landing] = self._stages[landing] = plan
        return wrong

    def forget(self, landing: Landing) -> None:
        super().forget(landing)
        if plan := self._stages.pop(landing, None):
            plan.drop_stage()

    def describe(self, landings: Collection[Landing]) -> dict[Landing, TableShape]:
        numbered = dict(enumerate(landings))
        if not numbered:
            return {}
        names = [TableName.parse(landing.table) for landing in numbered.values()]
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

    def _creations(self, landing: Landing) -> Iterator[sql.Composable]:
        schema = TableName.parse(landing.table).schema
        if schema is not None:
            ((exists,),) = self._session.query(
                "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)", {"schema": schema}
            )
            if not exists:
                yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
        yield _create_table(landing)

    def _create(self, statement: str | sql.Composable) -> None:
        self._session.set_lock_timeout(CREATION_LOCK_TIMEOUT_S)
        self._session.begin()
        try:
            self._session.query(CREATION_LOCK)
            self._session.query(statement)
            self._session.query("COMMIT")
        finally:
            self._session.rollback()


def problem(landing: Landing, shape: TableShape | None) -> str | None:
    """Why the landing cannot work with the table as it is; None when it can. Pure."""
    if why := landings_of_all.problem(landing, shape, default_types(landing)):
        return why
    assert shape is not None
    for source in landing.columns if landing.format != "bytes" else ():
        if source.origin is Origin.RECORD and shape.columns[source.column].type == "bytea":
            return (
                f"table {landing.table!r}: column {source.column!r} is bytea, and the whole record needs a text, "
                "json or jsonb column, or source.format bytes"
            )
    return None


def why_unfit(landing: Landing, schema: str, name: str, *, kind: str, role: str, may_use: bool) -> str | None:
    """Why nothing can land in a table whatever its columns; None when something may. Pure."""
    # The search path may have led into a schema that was not named.
    if why := why_not_in_postgresql(schema, name):
        return f"sink.table {landing.table!r} leads to {quoted(schema)}.{quoted(name)}, which {why}"
    if kind not in WRITABLE_KINDS:
        return f"{landing.table!r} is not a table that records can be copied into: name a table"
    if not may_use:
        return (
            f"role {role!r} may not use schema {schema!r} of table {landing.table!r}: "
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
        )
    return None


def default_types(landing: Landing) -> Types:
    """The types that the columns of a landing without ``columns`` may have."""
    types = (TEXT, ("bigint",), ("timestamp with time zone",), PAYLOAD_TYPES[landing.format])
    return dict(zip(DEFAULT_COLUMNS, types, strict=True))


def _create_table(landing: Landing) -> sql.Composed:
    """The default landing table."""
    parts = [
        sql.SQL("{} {} NOT NULL").format(sql.Identifier(name), sql.SQL(type_))
        for name, (type_, *_) in default_types(landing).items()
    ]
    if landing.key:
        parts.append(sql.SQL("UNIQUE ({})").format(sql.SQL(", ").join(map(sql.Identifier, landing.key))))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
        identifier_of(TableName.parse(landing.table)), sql.SQL(", ").join(parts)
    )


def _column(name: str, **described: Any) -> tuple[str, Column]:
    """A column as `DESCRIBE` gives it."""
    return name, Column(**described)
