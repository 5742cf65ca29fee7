"""The ``sql`` catalog: rows of a query, in any database that SQLAlchemy speaks to.

A row is a feed: one column with all of it as JSON, or a column a key. A column named ``source.url`` is the key
``url`` below ``source``. What is NULL is not said. Nothing is written: the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from pydantic import SecretStr
from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text
from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import CatalogContent, CatalogOptions

ROWS_AT_ONCE: Final = 1_000
"""Rows that are fetched together."""


class QueryOptions(CatalogOptions):
    """What is asked, and where."""

    url: SecretStr
    """The database, such as `postgresql://user:password@host/name`; its driver must be installed."""
    query: str
    """What gives the feeds: `SELECT name, url AS "source.url" FROM ...`, or one column with a JSON object."""


class QueryCatalog:
    """Asks a database."""

    Options: ClassVar[type[CatalogOptions]] = QueryOptions

    def __init__(self, options: QueryOptions, _: Settings) -> None:
        self._options = options

    def read(self, known: str | None) -> CatalogContent:
        return CatalogContent((f"row {number}", row) for number, row in enumerate(self._rows(), 1))

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        text = self._options.url.get_secret_value()
        where = f"database {mask_url(text)}"
        try:
            url = make_url(text)
            engine = create_engine(
                url,
                poolclass=NullPool,
                hide_parameters=True,
                connect_args=_connect_args(url.get_backend_name(), self._options.timeout_s),
            )
            with engine.connect() as connection:
                if engine.dialect.name == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                # As it stands: to SQLAlchemy a colon before a word is a parameter.
                asked = connection.execution_options(yield_per=ROWS_AT_ONCE).exec_driver_sql(
                    self._options.query
                )
                yield from map(dict, asked.mappings())
                connection.rollback()
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
            is_driver = isinstance(error, ModuleNotFoundError)
            what = mask_url(str(error)) if is_driver else "the URL cannot be used"
            raise CatalogUnavailable(f"{where}: {what}; is its driver installed?") from None
        except (SQLAlchemyError, OSError) as error:
            raise CatalogUnavailable(f"{where}: {mask_url(driver_text(error))}") from None


def _connect_args(backend: str, timeout_s: float) -> dict[str, Any]:
    whole = max(1, round(timeout_s))
    if backend == "postgresql":
        return {"connect_timeout": whole, "options": f"-c statement_timeout={round(1000 * timeout_s)}"}
    if backend in ("mysql", "mariadb"):
        return {"connect_timeout": whole, "read_timeout": whole}
    return {"timeout": timeout_s} if backend == "sqlite" else {}
