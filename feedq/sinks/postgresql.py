"""The sink for PostgreSQL, and its catalog: rows land by COPY, thousands of checkpoints move in one statement.

Targets are read by `DESCRIBE`, all in one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

import psycopg2
from psycopg2 import sql
from sqlalchemy.schema import CreateSchema, CreateTable

from feedq.errors import InvalidInput
from feedq.sinks import target_table
from feedq.sinks.base import BOOKKEEPING, CONTROL_SCHEMA, OWN, SYSTEM, Target
from feedq.sinks.catalog import Catalog, TargetPlan
from feedq.sinks.copyplan import CopyPlan
from feedq.sinks.mapping import Origin
from feedq.sinks.postgresql_session import PostgresSinkSession, open_engine
from feedq.sinks.session import CREATION_LOCK_TIMEOUT_S, ErrorScope, application_name
from feedq.sinks.stagedcopy import KeyedCopyPlan
from feedq.sinks.statements import (
    CREATION_LOCK,
    DESCRIBE,
    FINGERPRINTS,
    integers,
)
from feedq.sinks.table_definitions import made_table
from feedq.sinks.target_table import DEFAULT_COLUMNS, Column, TableName, TableShape, Types, quoted
from feedq.sinks.transactional import TransactionalSink

STAGING_TABLES_MAX: Final = 64
"""Staging tables a session keeps between commits; each is emptied at every commit that touches one."""


WRITABLE_KINDS: Final = ("r", "p", "f")
"""Tables, partitioned and foreign ones."""

TEXT: Final = ("text", "character varying")
PAYLOAD_TYPES: Final[Types] = {"json": ("jsonb", "json"), "csv": TEXT, "text": TEXT, "bytes": ("bytea",)}
"""By record format; the first one is what a table of ours gets."""


class PostgresCatalog(Catalog):
    """The targets as a session with PostgreSQL sees them. Methods raise the session's errors."""

    _session: PostgresSinkSession

    def __init__(self, session: PostgresSinkSession) -> None:
        super().__init__(session)
        self._staging_tables: dict[Target, KeyedCopyPlan] = {}
        self._staging_tables_made = 0

    def why_reserved(self, table: TableName) -> str | None:
        return why_not_in_postgresql(table.schema, table.name)

    def judge(self, target: Target, shape: TableShape | None) -> str | None:
        return problem(target, shape)

    def make_plan(self, target: Target, shape: TableShape) -> CopyPlan:
        return CopyPlan(self._session, target, shape)

    def create(self, target: Target) -> str | None:
        session = self._session
        session.set_lock_timeout(CREATION_LOCK_TIMEOUT_S)
        try:
            if schema := self._missing_schema(target):
                session.query(
                    sql.SQL(CREATION_LOCK + "CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
                )
            session.make(made_table(target))
        except session.errors as error:
            return self._why_uncreated(target, error)
        return None

    def _why_uncreated(self, target: Target, error: Exception) -> str:
        session = self._session
        session.rollback()
        if session.scope(error) not in (ErrorScope.TARGET, ErrorScope.DATA, ErrorScope.LATER):
            raise error
        wish = " or ".join(filter(None, ["create it", session.remedy(error)]))
        return (
            f"table {target.table!r} does not exist and cannot be created: {session.explain(error)}; {wish}"
        )

    def imagine(self, target: Target) -> tuple[TargetPlan, bool]:
        session = self._session
        session.begin_for_person()
        try:
            if schema := self._missing_schema(target):
                session.execute(CreateSchema(schema))
            session.execute(CreateTable(made_table(target)))
        except session.errors as error:
            raise InvalidInput(self._why_uncreated(target, error)) from error
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
                if self._session.scope(error) is not ErrorScope.TARGET:
                    raise
                why = f"sink.key needs a temporary table: {self._session.explain(error)}"
                wish = " or ".join(filter(None, ["leave sink.key out", self._session.remedy(error)]))
                wrong[target] = f"table {target.table!r}: {why}; {wish}"
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
        names = [TableName.parse(target.table) for target in targets]
        asked = {
            "numbers": list(numbered),
            "schemas": [name.schema for name in names],
            "names": [name.name for name in names],
        }
        rows = self._session.query(DESCRIBE, asked)
        return {
            numbered[n]: TableShape(
                schema,
                name,
                dict(_column(**column) for column in columns or []),
                frozenset(frozenset(key) for key in unique_keys or [] if key),
                why_unfit(numbered[n], schema, name, kind=kind, role=role, shut_by=shut_by),
                role,
                owner,
                fingerprint=(oid, fingerprint),
            )
            for n, oid, fingerprint, schema, name, kind, shut_by, role, owner, columns, unique_keys in rows
        }

    def fingerprints(self, shapes: Sequence[TableShape]) -> Sequence[Any]:
        now = dict(self._session.query(FINGERPRINTS, {"oids": integers(s.fingerprint[0] for s in shapes)}))
        return [(oid, now.get(oid)) for oid, _ in (shape.fingerprint for shape in shapes)]

    def _missing_schema(self, target: Target) -> str | None:
        """The schema that the target names, if there is none of that name."""
        schema = TableName.parse(target.table).schema
        if schema is None:
            return None
        # Asked first: CREATE SCHEMA IF NOT EXISTS takes a right that nobody needs for one that is there.
        ((exists,),) = self._session.query(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)", {"schema": schema}
        )
        return None if exists else schema


class PostgresSink(TransactionalSink):
    """A session with a PostgreSQL database, on behalf of one worker. Belongs to one thread."""

    session_type, catalog_type = PostgresSinkSession, PostgresCatalog

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        super().__init__(url, environment=environment, worker_id=worker_id, role=role)
        self._engine = open_engine(url, application_name(role, worker_id))


def why_not_in_postgresql(schema: str | None, name: str) -> str | None:
    """Why a table of PostgreSQL takes no records; None when it does. ``schema``: as it is, or as it was named."""
    if name in BOOKKEEPING or schema == CONTROL_SCHEMA:
        return OWN
    # It reserves all names of schemas that begin so for itself: also temporary ones.
    if schema is not None and (schema == "information_schema" or schema.startswith("pg_")):
        return SYSTEM
    return None


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


def why_unfit(
    target: Target, schema: str, name: str, *, kind: str, role: str, shut_by: str | None
) -> str | None:
    """Why nothing can land in a table whatever its columns; None when something may. Pure.

    ``shut_by`` owns the schema, if this role may not use that.
    """
    # The search path may have led into a schema that was not named.
    if why := why_not_in_postgresql(schema, name):
        return f"sink.table {target.table!r} leads to {quoted(schema)}.{quoted(name)}, which {why}"
    if kind not in WRITABLE_KINDS:
        return f"{target.table!r} is not a table that records can be copied into: name a table"
    if shut_by is not None:
        return (
            f"role {role!r} may not use schema {schema!r} of table {target.table!r}: "
            f"have {quoted(shut_by)} run GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
        )
    return None


def default_types(target: Target) -> Types:
    """The types that the columns of a target without ``columns`` may have."""
    types = (TEXT, ("bigint",), ("timestamp with time zone",), PAYLOAD_TYPES[target.format])
    return dict(zip(DEFAULT_COLUMNS, types, strict=True))


def _column(name: str, **described: Any) -> tuple[str, Column]:
    """A column as `DESCRIBE` gives it."""
    return name, Column(**described)
