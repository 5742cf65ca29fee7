"""The ``sql`` catalog: rows of a query, in any database that SQLAlchemy speaks to.

A row is a feed: one column with all of it as JSON, or a column a key. A column named ``source.url`` is the key
``url`` below ``source``. What is NULL is not said. Nothing is written: the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from pydantic import SecretStr
from sqlalchemy import Engine, NullPool, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from feedq.core.json_texts import read_json
from feedq.core.passwords import mask_url
from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import Content, FeedCatalog

ROWS_AT_ONCE: Final = 1_000
JSON_KEYS: Final = frozenset(("source", "sink", "labels", "selector"))
"""Keys whose text is JSON."""


class QueryCatalog(FeedCatalog):
    """Rows of a query."""

    errors: ClassVar = (SQLAlchemyError, OSError)

    url: SecretStr
    """The database, such as `postgresql://user:password@host/name`."""
    query: str
    """The query."""

    @property
    def where(self) -> str:
        return f"database {mask_url(self.url.get_secret_value())}"

    def contents(self, settings: Settings) -> Iterator[tuple[str, Content]]:
        engine = self._engine()
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            # As it stands: to SQLAlchemy a colon before a word is a parameter.
            asked = connection.execution_options(yield_per=ROWS_AT_ONCE)
            for number, row in enumerate(asked.exec_driver_sql(self.query).mappings(), 1):
                yield f"row {number}", _content(dict(row))
            connection.rollback()

    def _engine(self) -> Engine:
        try:
            url = make_url(self.url.get_secret_value())
            if url.drivername in ("postgresql", "postgres"):
                # The driver that is installed with feedq; SQLAlchemy's own choice is another one.
                url = url.set(drivername="postgresql+psycopg2")
            limits = _connect_args(url.get_backend_name(), self.timeout_s)
            return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=limits)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
            is_driver = isinstance(error, ModuleNotFoundError)
            what = mask_url(str(error)) if is_driver else "the URL cannot be used"
            raise CatalogUnavailable(f"{self.where}: {what}; is its driver installed?") from None


def _content(row: dict[str, Any]) -> Content:
    try:
        if len(row) == 1:
            (value,) = row.values()
            if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip()[:1] == "{"):
                whole: dict[str, Any] = _json("the document", value)
                return whole
        return {name: _json(name, value) if name in JSON_KEYS else value for name, value in row.items()}
    except ValueError as error:
        return error


def _json(column: str, value: Any) -> Any:
    try:
        return read_json(value) if isinstance(value, str | bytes) else value
    except ValueError:
        raise ValueError(f"{column}: is not JSON") from None


def _connect_args(backend: str, timeout_s: float) -> dict[str, Any]:
    whole = max(1, round(timeout_s))
    if backend == "postgresql":
        return {"connect_timeout": whole, "options": f"-c statement_timeout={round(1000 * timeout_s)}"}
    if backend in ("mysql", "mariadb"):
        return {"connect_timeout": whole, "read_timeout": whole}
    return {"timeout": timeout_s} if backend == "sqlite" else {}
