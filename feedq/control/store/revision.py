"""The revision that the control database is at, and the one that this release needs.

Workers ask for it as they start, so it is read without Alembic, which `feedq.control.store.migrate` needs to
change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from feedq.control.store.database import SCHEMA, connect_once
from feedq.errors import SchemaBehind

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
