"""What is remembered of catalogs: as which version of its content the feeds of each are, and who syncs it now.

Its feeds are marked with its name; `feedq.control.store.feeds` changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg2

from feedq.control.store.channels import CATALOG_LOCK_CLASS
from feedq.control.store.database import (
    Aggregate,
    Connection,
    connect,
    in_statement,
    translate_driver_errors,
)
from feedq.control.store.protocol import call
from feedq.errors import Conflict


class CatalogStore(Aggregate):
    """Remembers how the last sync of each catalog left it."""

    @contextmanager
    def exclusively(self, catalog: str) -> Iterator[None]:
        """Sync a catalog here and nowhere else for the length of the block. Raises `Conflict`."""
        with closing(connect(self._database.url, application_name="feedq-sync")) as session:
            with translate_driver_errors(self._database.url), session.cursor() as cursor:
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
        sql = "SELECT version, owned FROM feedq.catalog WHERE name = %(name)s"
        version, owned = c.execute(sql, {"name": catalog}).one_or_none() or (None, "")
        return version, owned

    @in_statement
    def note(self, c: Connection, catalog: str, version: str | None, owned: str) -> None:
        """Keep how a sync left a catalog, as `last` tells it."""
        call(c, "note_catalog", bool, named=catalog, at_version=version, in_state=owned)

    @in_statement
    def owned_state(self, c: Connection, catalog: str) -> str:
        """How many feeds this catalog has and the sum of their generations: another one after each change of one,
        by whomever. Only a sync adds any."""
        sql = """
            SELECT concat_ws('/', count(*), coalesce(sum(generation), 0))
            FROM feedq.feed WHERE catalog = %(catalog)s AND removed_at IS NULL
        """
        state: str = c.execute(sql, {"catalog": catalog}).scalar_one()
        return state
