"""A database that a URL leads to: its engine, and the flavor that knows its ways. No connection is made here."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import Engine, NullPool, create_engine, make_url, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from feedq.errors import InvalidInput
from feedq.sinks.sql.flavor import Flavor
from feedq.sinks.sql.mysql import MySql
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import Sqlite
from feedq.sinks.sql.table_definitions import checkpoint
from feedq.telemetry import mask_url

FLAVORS: Final[dict[str, type[Flavor]]] = {"mysql": MySql, "mariadb": MySql, "sqlite": Sqlite}
"""By the name of SQLAlchemy's dialect."""
PACKAGES: Final = {
    "MySQLdb": "mysqlclient (or `pip install pymysql` and write mysql+pymysql:// or mariadb+pymysql://)",
    "mysql": "mysql-connector-python",
    "psycopg": "'psycopg[binary]'",
    "pyodbc": "pyodbc",
    "sqlalchemy_cockroachdb": "sqlalchemy-cockroachdb",
}
"""Of the modules that are not called like the package that has them."""


class SqlDatabase:
    """What it takes to open sessions."""

    def __init__(self, url: str) -> None:
        """Raises `InvalidInput`."""
        shown = mask_url(url)
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
            raise InvalidInput(
                f"sink {shown}: SQLAlchemy cannot read this URL; special characters in user name and password "
                "must be percent-encoded"
            ) from None
        self.flavor: Flavor = FLAVORS.get(parsed.get_backend_name(), Flavor)()
        try:
            dialect = parsed.get_dialect()
            arguments = self.flavor.connect_args(parsed, dialect.driver)
            options = {"isolation_level": self.flavor.isolation} if self.flavor.isolation else {}
            self._engine: Engine = create_engine(
                parsed, poolclass=NullPool, connect_args=arguments, hide_parameters=True, **options
            )
        except NoSuchModuleError:
            raise InvalidInput(
                f"sink {shown}: SQLAlchemy knows no {parsed.drivername}:// databases; correct the URL, or install "
                "the package that adds them"
            ) from None
        except ModuleNotFoundError as missing:
            name = (missing.name or parsed.drivername).partition(".")[0]
            raise InvalidInput(
                f"sink {shown}: the driver is not installed: pip install {PACKAGES.get(name, name)}"
            ) from None
        except ArgumentError as error:
            raise InvalidInput(f"sink {shown}: {mask_url(str(error))}") from None
        self._refuse_unfit(shown)

    def open(self, *, role: str, worker_id: UUID) -> SqlSession:
        """Raises `SQLAlchemyError`."""
        return SqlSession(self._engine, self.flavor, role=role, worker_id=worker_id)

    def _refuse_unfit(self, shown: str) -> None:
        dialect = self._engine.dialect
        if dialect.is_async:
            raise InvalidInput(f"sink {shown}: the driver {dialect.driver} is for asyncio; name another one")
        locked = str(select(checkpoint.c.feed_id).with_for_update().compile(dialect=dialect))
        if type(self.flavor) is Flavor and "FOR UPDATE" not in locked:
            raise InvalidInput(
                f"sink {shown}: {dialect.name} has no SELECT … FOR UPDATE, by which this sink keeps stale "
                "owners out"
            )
