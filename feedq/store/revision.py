"""The revision of the control database that this release needs. Asked by each worker as it starts.

What a database that is behind lacks is for `feedq.store.migrate` to say. That imports Alembic, which no worker
needs whose database is up to date.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from feedq.errors import SchemaBehind
from feedq.store.database import SCHEMA, connect_once

HEAD: Final = "0020"
"""The last of `feedq.store.migrations`."""


def require_current(url: str) -> None:
    """Raises `SchemaBehind` unless the database is at this release's revision, or `Unavailable`."""
    if _current(url) == HEAD:
        return
    from feedq.store.migrate import status

    found = status(url)
    if not found.is_current:
        raise SchemaBehind(
            f"the control database is at revision {found.current or 'none'}, "
            f"this release needs {found.head}: run `feedq db upgrade`"
        )


def _current(url: str) -> str | None:
    """Return the revision that the database is at; None when it says none."""
    with connect_once(url) as connection:
        found = connection.scalar(
            text("SELECT to_regclass(:table) IS NOT NULL"), {"table": f"{SCHEMA}.alembic_version"}
        )
        return connection.scalar(text(f"SELECT version_num FROM {SCHEMA}.alembic_version")) if found else None
