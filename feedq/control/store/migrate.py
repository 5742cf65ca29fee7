"""What the control database has been brought to, what this release needs, and how it gets there.

Workers ask for it as they start, so Alembic and SQLAlchemy are imported only where something is changed. Two
processes may migrate at once (a release phase and an impatient operator): a lock makes the second wait and then
find nothing to do.

Migrations change tables. The functions of the protocol are beside them in a schema for each version, and the
version before stays, so that two releases run side by side: docs/adr/0035-two-releases-side-by-side.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from psycopg2.errors import LockNotAvailable

from feedq.control.store import grants, protocol
from feedq.control.store.database import (
    ADMIN,
    SCHEMA,
    Connection,
    connect_once,
    make_engine,
    translate_errors,
)
from feedq.core.passwords import mask_url
from feedq.errors import Conflict, SchemaBehind

MIGRATION_LOCK = 0x_FEED_0001
"""Key of the advisory lock that serialises migrations."""
LOCK_PATIENCE_S: Final = 600.0
"""For another process that migrates: an index of a large table takes its time."""


def upgrade(url: str, *, role_prefix: str = grants.PREFIX) -> int:
    """Apply what is pending, as one transaction, and return how many migrations that were.

    Roles that `feedq.control.store.grants` has made get their rights on what is new. Raises `Unavailable`, and
    `Conflict` when a newer release has migrated the database, or another process migrates for too long."""
    with _migrating(url) as for_alembic:
        connection = Connection(for_alembic.connection.driver_connection)
        _lock(connection, url)
        found = schema_status(connection)
        if found.is_ahead:
            raise Conflict(
                f"control database {mask_url(url)} is {found.summary}; nothing was changed. Migrate with the "
                "newest release that uses the database; to go back to an older one, only start its processes"
            )
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        if found.pending:
            # First, because a migration may take away what only they use.
            for version in found.outdated:
                connection.execute(f"DROP SCHEMA feedq_{version} CASCADE")
            _migrate_tables(for_alembic)
            connection.session.cursor().execute(protocol.definition())
        grants.renew(connection, role_prefix)
    return found.pending


def _migrate_tables(connection: Any) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


@contextmanager
def _migrating(url: str) -> Iterator[Any]:
    """Makes the block one transaction, on a connection as Alembic wants it: SQLAlchemy's."""
    from sqlalchemy.exc import DBAPIError

    engine = make_engine(url, application_name=ADMIN)
    with translate_errors(url):
        try:
            with engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise error.orig or error from error


def _lock(connection: Connection, url: str) -> None:
    """Lock migrations to the end of the transaction: whoever comes second finds nothing to do then."""
    connection.execute("SET LOCAL statement_timeout = 0")
    connection.execute(f"SET LOCAL lock_timeout = {round(1000 * LOCK_PATIENCE_S)}")
    try:
        connection.execute("SELECT pg_advisory_xact_lock(%(key)s)", {"key": MIGRATION_LOCK})
    except LockNotAvailable as error:
        raise Conflict(
            f"control database {mask_url(url)}: another process has been migrating it for "
            f"{LOCK_PATIENCE_S:g} s; run `feedq db upgrade` again when that has ended"
        ) from error


HEAD: Final = "0001"
"""The last of `feedq.control.store.migrations`, which are numbered from 0001 on."""


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The version that a database has been migrated to."""

    current: str | None
    """The revision of the tables; None when it was never migrated."""
    protocols: tuple[int, ...] = ()
    """The versions of the protocol whose functions are there, in their order."""

    @property
    def pending(self) -> int:
        """How many migrations it lacks. The functions of a protocol that is not there come with the last, or are
        one by themselves."""
        if self.is_ahead:
            return 0
        return max(int(HEAD) - int(self.current or 0), int(not self.has_protocol))

    @property
    def is_ahead(self) -> bool:
        """Whether a newer release has migrated it. This one may go on while a rollout is under way."""
        return int(self.current or 0) > int(HEAD) or max(self.protocols, default=0) > protocol.VERSION

    @property
    def has_protocol(self) -> bool:
        """Whether the functions are there that this release calls."""
        return protocol.VERSION in self.protocols

    @property
    def outdated(self) -> tuple[int, ...]:
        """The protocols of releases before the one that ran last: nobody calls them any more."""
        return tuple(version for version in self.protocols if version < protocol.VERSION)[:-1]

    @property
    def summary(self) -> str:
        """Where the database stands, in words."""
        protocols = ", ".join(f"feedq_{version}" for version in self.protocols)
        if self.is_ahead:
            return (
                f"at {self.current} with {protocols}, made by a newer release of feedq than this one, "
                f"which knows {HEAD} and needs {protocol.SCHEMA}"
            )
        if self.pending:
            return f"at {self.current or 'none'}, {self.pending} pending up to {HEAD} with {protocol.SCHEMA}"
        return f"at {self.current} with {protocols}"


def schema_status(connection: Connection) -> SchemaStatus:
    """Read it within a transaction."""
    table = f"{SCHEMA}.alembic_version"
    if not connection.execute("SELECT to_regclass(%(table)s) IS NOT NULL", {"table": table}).scalar_one():
        return SchemaStatus(None)
    current = connection.execute(f"SELECT version_num FROM {table}").scalar_one_or_none()
    return SchemaStatus(current, tuple(protocol.installed(connection)))


def status(url: str) -> SchemaStatus:
    """Raises `Unavailable`."""
    with connect_once(url) as connection:
        return schema_status(connection)


def require_current(url: str) -> None:
    """Raises `SchemaBehind` when migrations are pending or the protocol of this release is not there any more, or
    `Unavailable`."""
    found = status(url)
    if found.pending or not found.has_protocol:
        remedy = "run `feedq db upgrade`" if found.pending else "start the newer release here as well"
        raise SchemaBehind(f"the control database is {found.summary}: {remedy}")
