"""The revision that the control database is at, the one that this release needs, and how it gets there.

Workers ask for it as they start, so Alembic is imported only where something is changed. Two processes may migrate
at once (a release phase and an impatient operator): a lock makes the second wait and then find nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from feedq.control.store import grants
from feedq.control.store.database import SCHEMA, connect_once
from feedq.core.passwords import mask_url
from feedq.errors import Conflict, SchemaBehind

MIGRATION_LOCK = 0x_FEED_0001
"""Key of the advisory lock that serialises migrations."""
LOCK_PATIENCE_S: Final = 600.0
"""For another process that migrates: an index of a large table takes its time."""
LOCK_NOT_AVAILABLE: Final = "55P03"


def upgrade(url: str, *, role_prefix: str = grants.PREFIX) -> int:
    """Apply what is pending, as one transaction, and return how many migrations that were.

    Roles that `feedq.control.store.grants` has made get their rights on what is new. Raises `Unavailable`, and
    `Conflict` when another process migrates for too long."""
    with connect_once(url) as connection:
        _lock(connection, url)
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        _keep_the_users_tables_apart(connection)
        pending = schema_status(connection).pending
        if pending:
            from alembic import command
            from alembic.config import Config

            config = Config()
            config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
            config.attributes["connection"] = connection
            command.upgrade(config, HEAD)
        grants.renew(connection, role_prefix)
    return pending


def _lock(connection: Connection, url: str) -> None:
    """Lock migrations to the end of the transaction: whoever comes second finds nothing to do then."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text(f"SET LOCAL lock_timeout = {round(1000 * LOCK_PATIENCE_S)}"))
    try:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    except OperationalError as error:
        if getattr(error.orig, "pgcode", None) != LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            f"control database {mask_url(url)}: another process has been migrating it for "
            f"{LOCK_PATIENCE_S:g} s; run `feedq db upgrade` again when that has ended"
        ) from error


def _keep_the_users_tables_apart(connection: Connection) -> None:
    """A user called like our schema goes on creating and finding tables in ``public``.

    PostgreSQL's default search path begins with the schema named like the user; by making a schema of that
    name we would silently move where this user's own tables go.
    """
    user, database = connection.execute(text("SELECT current_user, current_database()")).one()
    if user == SCHEMA:
        quoted = connection.dialect.identifier_preparer.quote_identifier(database)
        connection.execute(text(f"ALTER ROLE CURRENT_USER IN DATABASE {quoted} SET search_path = public"))


HEAD: Final = "0001"
"""The last of `feedq.control.store.migrations`, which are numbered from 0001 on."""


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The revision that a database stands at; None when it was never migrated."""

    current: str | None

    @property
    def pending(self) -> int:
        """How many migrations it lacks."""
        return max(0, int(HEAD) - int(self.current or 0))

    @property
    def is_ahead(self) -> bool:
        """Whether a newer release has migrated it. This one may go on while a rollout is under way."""
        return self.current is not None and int(self.current) > int(HEAD)

    @property
    def summary(self) -> str:
        """Where the database stands, in words."""
        if self.is_ahead:
            return f"at {self.current}, which this release of feedq does not know: its latest is {HEAD}"
        if self.pending:
            return f"at {self.current or 'none'}, {self.pending} pending up to {HEAD}"
        return f"at {self.current}"


def schema_status(connection: Connection) -> SchemaStatus:
    """Read the revision within a transaction."""
    table = f"{SCHEMA}.alembic_version"
    if not connection.scalar(text("SELECT to_regclass(:table) IS NOT NULL"), {"table": table}):
        return SchemaStatus(None)
    return SchemaStatus(connection.scalar(text(f"SELECT version_num FROM {table}")))


def status(url: str) -> SchemaStatus:
    """Raises `Unavailable`."""
    with connect_once(url) as connection:
        return schema_status(connection)


def require_current(url: str) -> None:
    """Raises `SchemaBehind` when migrations are pending, or `Unavailable`."""
    found = status(url)
    if found.pending:
        raise SchemaBehind(
            f"the control database is at revision {found.current or 'none'}, "
            f"this release needs {HEAD}: run `feedq db upgrade`"
        )
