"""Migrations of the control database: bring it to this release.

Two processes may migrate at once (a release phase and an impatient operator): a lock makes the second wait
and then find nothing to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from feedq.control.store import grants
from feedq.control.store.database import SCHEMA, connect_once
from feedq.control.store.revision import HEAD, schema_status
from feedq.core.passwords import mask_url
from feedq.errors import Conflict

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
