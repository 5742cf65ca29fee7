"""Migrations of the control database: bring it to this release, and say how far it is.

Two processes may migrate at once (a release phase and an impatient operator): a lock makes the second wait
and then find nothing to do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, text

from feedq.errors import Conflict
from feedq.passwords import mask_url
from feedq.store import grants
from feedq.store.database import SCHEMA, connect_once, session_once

MIGRATION_LOCK = 0x_FEED_0001
"""Key of the advisory lock that serialises migrations."""
LOCK_PATIENCE_S: Final = 3600.0
"""For another process that migrates: an index of a large table takes its time."""
LOCK_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The revision that a database stands at: `pending` revisions lie between `current` and `head`."""

    current: str | None
    head: str
    pending: int

    @property
    def is_current(self) -> bool:
        return self.pending == 0


def upgrade(url: str, *, role_prefix: str = grants.PREFIX) -> list[str]:
    """Apply what is pending and return the revisions applied. Raises `Unavailable`.

    Each revision is a transaction of its own, or several: none may keep a live fleet waiting for all of them.
    Roles that `feedq.store.grants` has made get their rights on what is new.
    """
    with session_once(url) as connection:
        _lock(connection, url)
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        _keep_the_users_tables_apart(connection)
        before = _current(connection)
        connection.commit()
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        grants.renew(connection, role_prefix)
        return [r.revision for r in _between(before)]


def _lock(connection: Connection, url: str) -> None:
    """Lock migrations for the session: whoever comes second waits here, then reads the first one's result.

    It asks again and again, between transactions: an index that is made CONCURRENTLY waits for every transaction
    that is open, and would wait for one that waits for this lock.
    """
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": MIGRATION_LOCK}):
        connection.rollback()
        if time.monotonic() >= deadline:
            raise Conflict(
                f"control database {mask_url(url)}: another process has been migrating it for "
                f"{LOCK_PATIENCE_S:g} s; `feedq db upgrade` can go on when that has ended"
            )
        time.sleep(LOCK_POLL_S)


def status(url: str) -> MigrationStatus:
    """Raises `Unavailable`."""
    with connect_once(url) as connection:
        current = _current(connection)
    return MigrationStatus(current, _script().get_current_head() or "", len(_between(current)))


def _keep_the_users_tables_apart(connection: Connection) -> None:
    """A user called like our schema goes on creating and finding tables in ``public``.

    PostgreSQL's default search path begins with the schema named like the user; by making a schema of that
    name we would silently move where this user's own tables go.
    """
    user, database = connection.execute(text("SELECT current_user, current_database()")).one()
    if user == SCHEMA:
        quoted = connection.dialect.identifier_preparer.quote_identifier(database)
        connection.execute(text(f"ALTER ROLE CURRENT_USER IN DATABASE {quoted} SET search_path = public"))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(
        connection, opts={"version_table_schema": SCHEMA}
    ).get_current_revision()


def _between(current: str | None) -> list[Script]:
    script = _script()
    if current is not None and current not in {r.revision for r in script.walk_revisions()}:
        # Newer than this release: an older worker may go on beside it while a deploy rolls.
        return []
    return list(reversed(list(script.iterate_revisions("head", current or "base"))))
