"""Feeds that were made from catalogs: marked with its name, read and changed by it, some hundred in a statement.

Every statement that changes a feed looks at the mark again, so that what somebody else declared under a name in
the meantime is left alone. There is no other implementation: the guarantees are the database's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import msgspec
import psycopg2
from sqlalchemy import Connection, text

from feedq.control.store.channels import CATALOG_LOCK_CLASS, wake_reconcile
from feedq.control.store.database import (
    Aggregate,
    Database,
    GivenRows,
    connect,
    in_statement,
    in_transaction,
    translate_driver_errors,
)
from feedq.control.store.feed_rows import (
    FEED_COLUMNS,
    JSON_COLUMNS,
    SPEC_COLUMNS,
    declared_columns,
    feed_from,
)
from feedq.core.model import Feed, FeedSpec
from feedq.errors import Conflict
from feedq.telemetry.event_names import EventKind

FEEDS_AT_ONCE: Final = 500
"""Feeds that one transaction adds, changes or removes: their rows stay locked until it ends."""

_TYPES = {"weight": "float8"} | dict.fromkeys(JSON_COLUMNS, "jsonb")
_DECLARED = ", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in SPEC_COLUMNS)
_ADDED = GivenRows(_DECLARED)
_CHANGED = GivenRows(f"{_DECLARED}, changed jsonb")
_MINE = """
    SELECT id FROM feedq.feed WHERE name = ANY(:names) AND catalog = :catalog AND removed_at IS NULL
    ORDER BY id FOR UPDATE  -- in the order in which passes lock them
"""


class CatalogStore(Aggregate):
    """Reads and changes the feeds of catalogs."""

    def __init__(self, database: Database, url: str) -> None:
        super().__init__(database)
        self._url = url

    @contextmanager
    def exclusively(self, catalog: str) -> Iterator[None]:
        """Sync a catalog here and nowhere else for the length of the block. Raises `Conflict`."""
        with closing(connect(self._url, application_name="feedq-sync")) as session:
            with translate_driver_errors(self._url), session.cursor() as cursor:
                lock = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
                cursor.execute(lock, (CATALOG_LOCK_CLASS, catalog))
                found = cursor.fetchone()
            if found != (True,):
                raise Conflict(
                    f"catalog {catalog!r} is being synced elsewhere; try again when that has ended"
                )
            try:
                yield
            finally:
                # The server notices the end of a session a moment later, and the next sync may come at once.
                with suppress(psycopg2.Error), session.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_unlock_all()")

    @in_statement
    def last(self, c: Connection, catalog: str) -> tuple[str | None, str]:
        """As which version of its content the feeds of a catalog are, and their state right after that, see
        `owned_state`. No version: something was left out, or it was never synced."""
        sql = "SELECT version, owned FROM feedq.catalog WHERE name = :name"
        version, owned = c.execute(text(sql), {"name": catalog}).one_or_none() or (None, "")
        return version, owned

    @in_statement
    def note(self, c: Connection, catalog: str, version: str | None, owned: str) -> None:
        """Keep how a sync left a catalog, as `last` tells it."""
        sql = """
            INSERT INTO feedq.catalog (name, version, owned) VALUES (:name, :version, :owned)
            ON CONFLICT (name) DO UPDATE SET version = excluded.version, owned = excluded.owned
        """
        c.execute(text(sql), {"name": catalog, "version": version, "owned": owned})

    @in_statement
    def owned_state(self, c: Connection, catalog: str) -> str:
        """How many feeds this catalog has and the sum of their generations: another one after each change of one,
        by whomever. Only a sync adds any."""
        sql = """
            SELECT concat_ws('/', count(*), coalesce(sum(generation), 0))
            FROM feedq.feed WHERE catalog = :catalog AND removed_at IS NULL
        """
        state: str = c.execute(text(sql), {"catalog": catalog}).scalar_one()
        return state

    @in_statement
    def owned(self, c: Connection, catalog: str) -> list[Feed]:
        """The feeds that were made from this catalog."""
        sql = f"SELECT {FEED_COLUMNS} FROM feedq.feed f WHERE f.catalog = :catalog AND f.removed_at IS NULL"
        return [feed_from(row) for row in c.execute(text(sql), {"catalog": catalog})]

    @in_statement
    def others(self, c: Connection, catalog: str, names: Collection[str]) -> list[Feed]:
        """The feeds of these names that were not made from this catalog."""
        sql = f"""
            SELECT {FEED_COLUMNS} FROM feedq.feed f
            WHERE f.name = ANY(:names) AND f.removed_at IS NULL AND f.catalog IS DISTINCT FROM :catalog
        """
        return [feed_from(row) for row in c.execute(text(sql), {"names": list(names), "catalog": catalog})]

    @in_transaction
    def take_over(self, c: Connection, catalog: str, names: Collection[str]) -> None:
        """Mark feeds of others with this catalog; they run on as they do."""
        sql = """
            WITH taken AS (
                UPDATE feedq.feed SET catalog = :catalog
                WHERE name = ANY(:names) AND removed_at IS NULL AND catalog IS DISTINCT FROM :catalog
                RETURNING id, generation
            )
            INSERT INTO feedq.event (kind, feed_id, detail)
            SELECT :kind, id, jsonb_build_object('generation', generation, 'changed',
                jsonb_build_array('catalog'), 'catalog', CAST(:catalog AS text)) FROM taken
        """
        kind = EventKind.FEED_EDITED.value
        c.execute(text(sql), {"names": list(names), "catalog": catalog, "kind": kind})

    @in_transaction
    def add(self, c: Connection, catalog: str, specs: Sequence[FeedSpec]) -> set[str]:
        """Declare feeds of this catalog. Returns the names that were free."""
        sql = f"""
            WITH added AS (
                INSERT INTO feedq.feed ({", ".join(SPEC_COLUMNS)}, catalog, dirty)
                SELECT {", ".join(SPEC_COLUMNS)}, :catalog, false FROM {_ADDED}
                ON CONFLICT (name) WHERE removed_at IS NULL DO NOTHING
                RETURNING id, name, target_state, generation
            ), leased AS (
                INSERT INTO feedq.lease (feed_id, reason)
                SELECT id, CASE target_state WHEN 'paused' THEN 'paused' ELSE 'new' END FROM added
            ), told AS (
                INSERT INTO feedq.event (kind, feed_id, detail)
                SELECT :kind, id, jsonb_build_object('generation', generation, 'catalog', :catalog) FROM added
            )
            SELECT name FROM added
        """
        given = _ADDED.of([list(declared_columns(spec).values()) for spec in specs])
        return _names(c, sql, {**given, "catalog": catalog, "kind": EventKind.FEED_ADDED.value})

    @in_transaction
    def change(
        self, c: Connection, catalog: str, changes: Sequence[tuple[FeedSpec, Sequence[str]]]
    ) -> set[str]:
        """Declare feeds of this catalog anew, each with the names of the columns that change. Returns the names
        that are still this catalog's."""
        assigned = ", ".join(f"{name} = given.{name}" for name in SPEC_COLUMNS)
        sql = f"""
            WITH mine AS MATERIALIZED ({_MINE}), edited AS (
                UPDATE feedq.feed f
                SET {assigned}, generation = f.generation + 1, dirty = true, updated_at = clock_timestamp()
                FROM mine, {_CHANGED} WHERE f.id = mine.id AND f.name = given.name
                RETURNING f.id, f.name, f.generation, given.changed
            ), told AS (
                INSERT INTO feedq.event (kind, feed_id, detail)
                SELECT :kind, id,
                    jsonb_build_object('generation', generation, 'changed', changed, 'catalog', :catalog)
                FROM edited
            )
            SELECT name FROM edited
        """
        rows = [
            (*declared_columns(spec).values(), msgspec.json.encode(list(changed)).decode())
            for spec, changed in changes
        ]
        names = [spec.name for spec, _ in changes]
        parameters = {"names": names, "catalog": catalog, "kind": EventKind.FEED_EDITED.value}
        return _names(c, sql, {**_CHANGED.of(rows), **parameters})

    @in_transaction
    def remove(self, c: Connection, catalog: str, names: Sequence[str]) -> set[str]:
        """Remove feeds of this catalog. Returns the names that were still its."""
        sql = f"""
            WITH mine AS MATERIALIZED ({_MINE}), removed AS (
                UPDATE feedq.feed f
                SET removed_at = clock_timestamp(), dirty = true, updated_at = clock_timestamp()
                FROM mine WHERE f.id = mine.id RETURNING f.id, f.name, f.generation
            ), told AS (
                INSERT INTO feedq.event (kind, feed_id, detail)
                SELECT :kind, id, jsonb_build_object('generation', generation, 'catalog', :catalog) FROM removed
            )
            SELECT name FROM removed
        """
        kind = EventKind.FEED_REMOVED.value
        return _names(c, sql, {"names": list(names), "catalog": catalog, "kind": kind})


def _names(c: Connection, sql: str, parameters: Mapping[str, Any]) -> set[str]:
    found = set(c.execute(text(sql), parameters).scalars())
    if found:
        wake_reconcile(c)
    return found
