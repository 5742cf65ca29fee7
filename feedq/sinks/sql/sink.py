"""`SqlSink`: the sink for any database with transactions that SQLAlchemy speaks."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import Engine, NullPool, create_engine, make_url, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from feedq.errors import InvalidInput
from feedq.sinks.sql.inspection import SqlCatalog
from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import SqliteSession
from feedq.sinks.table_definitions import checkpoint
from feedq.sinks.transactional import TransactionalSink
from feedq.telemetry import mask_url

SESSIONS: Final[dict[str, type[SqlSession]]] = {
    "mysql": MySqlSession,
    "mariadb": MySqlSession,
    "sqlite": SqliteSession,
}
"""By the name of SQLAlchemy's dialect."""
PACKAGES: Final = {
    "MySQLdb": "mysqlclient (or `pip install pymysql` and write mysql+pymysql:// or mariadb+pymysql://)",
    "mysql": "mysql-connector-python",
    "psycopg": "'psycopg[binary]'",
    "pyodbc": "pyodbc",
    "sqlalchemy_cockroachdb": "sqlalchemy-cockroachdb",
}
"""Of the modules that are not called like the package that has them."""


class SqlSink(TransactionalSink):
    """One session with a database, on behalf of one worker. Belongs to one thread."""

    session_type: type[SqlSession]

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        """Raises `InvalidInput` for a URL that leads to no database, or to one without a driver here."""
        super().__init__(url, environment=environment, worker_id=worker_id, role=role)
        self.session_type, self._engine = _database_of(url)

    def _open(self) -> tuple[SqlSession, SqlCatalog]:
        try:
            session = self.session_type(
                self._engine, environment=self._environment, worker_id=self._worker_id, role=self._role
            )
        except (OSError, RuntimeError) as error:
            # Not all that a driver raises when it cannot connect is wrapped.
            raise self._unavailable(error) from error
        return session, SqlCatalog(session)


def _database_of(url: str) -> tuple[type[SqlSession], Engine]:
    """What a URL leads to; no connection is made. Raises `InvalidInput`."""
    sink = f"sink {mask_url(url)}"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
        raise InvalidInput(
            f"{sink}: SQLAlchemy cannot read this URL; special characters in user name and password must be "
            "percent-encoded"
        ) from None
    kind = SESSIONS.get(parsed.get_backend_name(), SqlSession)
    try:
        arguments = kind.connect_args(parsed, parsed.get_dialect().driver)
        options = {"isolation_level": kind.isolation} if kind.isolation else {}
        engine = create_engine(
            parsed, poolclass=NullPool, connect_args=arguments, hide_parameters=True, **options
        )
    except NoSuchModuleError:
        raise InvalidInput(
            f"{sink}: SQLAlchemy knows no {parsed.drivername}:// databases; correct the URL, or install the "
            "package that adds them"
        ) from None
    except ModuleNotFoundError as missing:
        name = (missing.name or parsed.drivername).partition(".")[0]
        raise InvalidInput(
            f"{sink}: the driver is not installed: pip install {PACKAGES.get(name, name)}"
        ) from None
    except ArgumentError as error:
        raise InvalidInput(f"{sink}: {mask_url(str(error))}") from None
    dialect = engine.dialect
    if dialect.is_async:
        raise InvalidInput(f"{sink}: the driver {dialect.driver} is for asyncio; name another one")
    locked = str(select(checkpoint.c.feed_id).with_for_update().compile(dialect=dialect))
    if kind is SqlSession and "FOR UPDATE" not in locked:
        raise InvalidInput(
            f"{sink}: {dialect.name} has no SELECT … FOR UPDATE, by which this sink keeps stale owners out"
        )
    return kind, engine
