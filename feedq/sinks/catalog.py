"""What a session knows of its database: feedq's own tables, and the landings it has looked at.

Landings are read in one statement however many there are, judged by `feedq.sinks.landing`, and remembered
until `Catalog.look_again` finds them changed. Only a fence creates tables: what disappears while a feed
is being written was taken away by a person, who should be asked and not overruled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import psycopg2
from psycopg2 import sql

from feedq.sinks.base import Landing
from feedq.sinks.landing import Column, TableName, TableShape, create_table, misdeclared, problem
from feedq.sinks.plan import CopyPlan
from feedq.sinks.session import SinkSession
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


class Catalog:
    """Landings as this session sees them. Methods raise `psycopg2.Error`."""

    def __init__(self, session: SinkSession) -> None:
        self._session = session
        self._plans: dict[Landing, CopyPlan] = {}
        self._stages: dict[Landing, CopyPlan] = {}
        self._stages_made = 0

    def ensure_bookkeeping(self) -> None:
        """Create feedq's own tables if they are not there."""
        ((exists,),) = self._session.execute(BOOKKEEPING_EXISTS)
        if not exists:
            self._create(CREATE_BOOKKEEPING)

    def plan(self, landing: Landing) -> CopyPlan:
        """How to write to a landing that `problems` found nothing wrong with."""
        return self._plans[landing]

    def problems(self, landings: Iterable[Landing], *, create: bool) -> dict[Landing, str]:
        """Those that cannot work, and why. With ``create``, default landing tables that are missing are made."""
        unknown = {landing for landing in landings if landing not in self._plans}
        wrong = {landing: why for landing in unknown if (why := misdeclared(landing))}
        unknown -= wrong.keys()
        shapes = self._describe(unknown)
        if create:
            missing = [landing for landing in unknown if landing not in shapes and not landing.is_mapped]
            wrong |= self._create_landings(missing)
            shapes |= self._describe(missing)
        for landing in unknown - wrong.keys():
            shape = shapes.get(landing)
            if why := problem(landing, shape):
                wrong[landing] = why
            elif shape is not None:
                self._plans[landing] = CopyPlan(landing, shape)
        return wrong

    def exists(self, landing: Landing) -> bool:
        return bool(self._describe([landing]))

    def may_create(self, landing: Landing) -> bool:
        """Whether a fence could make the table of this default landing."""
        schema = TableName.parse(landing.table).schema
        ((allowed,),) = self._session.execute(MAY_CREATE, {"schema": schema})
        return bool(allowed)

    def create_within(self, landing: Landing) -> None:
        """Create the table of a default landing in the transaction that is open, to go with it."""
        for statement in self._creations(landing):
            self._session.execute(statement)

    def look_again(self, landings: Iterable[Landing]) -> None:
        """Forget those whose tables have changed since they were looked at."""
        known = [landing for landing in landings if landing in self._plans]
        shapes = self._describe(known)
        for landing in known:
            if shapes.get(landing) != self._plans[landing].shape:
                self._forget(landing)

    def open_stages(self, landings: Collection[Landing]) -> dict[Landing, str]:
        """Make sure that landings with a key have their staging tables; outside any transaction.

        Returns those for which that is not possible, and why.
        """
        keyed = [landing for landing in landings if landing.key]
        missing = [landing for landing in keyed if landing not in self._stages]
        if missing and len(self._stages) + len(missing) > STAGES_MAX:
            for landing in self._stages.keys() - set(keyed):
                self._forget(landing)
        wrong = {}
        for landing in missing:
            self._stages_made += 1
            plan = self._plans[landing].with_stage(f"feedq_stage_{self._stages_made}")
            try:
                plan.create_stage(self._session)
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

    def _forget(self, landing: Landing) -> None:
        """Look at the landing again before it is next used."""
        self._plans.pop(landing, None)
        if stage := self._stages.pop(landing, None):
            stage.drop_stage(self._session)

    def _describe(self, landings: Collection[Landing]) -> dict[Landing, TableShape]:
        numbered = dict(enumerate(landings))
        if not numbered:
            return {}
        names = [TableName.parse(landing.table) for landing in numbered.values()]
        rows = self._session.execute(
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
                kind,
                usable_schema=usable,
                role=role,
                has_triggers=triggers,
                columns=_columns(columns or []),
                unique_keys=_keys(unique_keys or []),
            )
            for n, schema, name, kind, usable, role, triggers, columns, unique_keys in rows
        }

    def _create_landings(self, landings: Iterable[Landing]) -> dict[Landing, str]:
        wrong = {}
        for landing in landings:
            try:
                self._create_landing(landing)
            except psycopg2.Error as error:
                if classify(error) not in (ErrorScope.LANDING, ErrorScope.DATA, ErrorScope.LATER):
                    raise
                wrong[landing] = (
                    f"table {landing.table!r} does not exist and cannot be created: {explain(error)}; "
                    "create it, or grant CREATE on its schema"
                )
        return wrong

    def _create_landing(self, landing: Landing) -> None:
        for statement in self._creations(landing):
            self._create(statement)

    def _creations(self, landing: Landing) -> Iterator[sql.Composable]:
        schema = TableName.parse(landing.table).schema
        if schema is not None:
            ((exists,),) = self._session.execute(
                "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)", {"schema": schema}
            )
            if not exists:
                yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
        yield create_table(landing)

    def _create(self, statement: str | sql.Composable) -> None:
        self._session.set_lock_timeout(CREATION_LOCK_TIMEOUT_S)
        self._session.begin()
        try:
            self._session.execute(CREATION_LOCK)
            self._session.execute(statement)
            self._session.execute("COMMIT")
        finally:
            self._session.rollback()


def _columns(described: Iterable[Mapping[str, object]]) -> dict[str, Column]:
    columns = {}
    for column in described:
        facts = dict(column)
        name = str(facts.pop("name"))
        columns[name] = Column(**facts)  # type: ignore[arg-type] # as DESCRIBE builds it
    return columns


def _keys(described: Iterable[Iterable[str] | None]) -> frozenset[frozenset[str]]:
    return frozenset(frozenset(key) for key in described if key)
