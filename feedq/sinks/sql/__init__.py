"""The sink for MariaDB, MySQL and SQLite: ``mariadb://``, ``mysql://``, ``sqlite://``.

It keeps the promises of the PostgreSQL sink with plain means: rows go in by ``INSERT``, many at a time, and values
are converted here to what the types of their columns want, so that no database bends one silently.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession, parsed_url
from feedq.sinks.sql.sqlite import SqliteSession
from feedq.sinks.transactional import TransactionalSink

SESSIONS: Final[dict[str, type[SqlSession]]] = {
    "mysql": MySqlSession,
    "mariadb": MySqlSession,
    "sqlite": SqliteSession,
}
"""By the scheme of the URL."""


class SqlSink(TransactionalSink):
    """The sink for these databases."""

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        """Raises `InvalidInput` for a URL that leads to no database, or to one without a driver here."""
        self.session_type = SESSIONS[parsed_url(url).get_backend_name()]
        super().__init__(url, environment=environment, worker_id=worker_id, role=role)
