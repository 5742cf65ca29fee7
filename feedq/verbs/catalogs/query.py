"""The ``sql`` catalog: rows of a query, in any database that SQLAlchemy speaks to.

A row is a feed: one column with all of it as JSON, or a column a key. A column named ``source.url`` is the key
``url`` below ``source``. What is NULL is not said. Nothing is written: the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Annotated, Any, ClassVar, Final

import orjson
from pydantic import Field, SecretStr
from sqlalchemy import Connection, NullPool, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from feedq.core.passwords import mask_url
from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import (
    BYTES_MAX,
    CatalogOptions,
    CatalogReading,
    plain,
    put_at,
    reading_of_rows,
)
from feedq.verbs.manifest.reader import ENTRIES_MAX

ROWS_AT_ONCE: Final = 1_000
"""Rows that are fetched together: the time is looked at between them."""
JSON_KEYS: Final = frozenset(("source", "sink", "labels", "selector"))
"""Keys whose text is JSON."""
NESTED_MAX: Final = 8
"""Dots in the name of a column."""


class QueryOptions(CatalogOptions):
    """What is asked, and where."""

    url: SecretStr
    """The database, such as `postgresql://user:password@host/name`; its driver must be installed."""
    query: str
    """What gives the feeds: `SELECT name, url AS "source.url" FROM ...`, or one column with a JSON object."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Longest time for connecting, and for all rows; of a query that gives none, PostgreSQL, MariaDB and MySQL
    keep to it."""


class QueryCatalog:
    """Asks a database."""

    Options: ClassVar[type[CatalogOptions]] = QueryOptions

    def __init__(self, options: QueryOptions, _: Settings) -> None:
        self._options = options

    @property
    def _where(self) -> str:
        return f"database {mask_url(self._options.url.get_secret_value())}"

    def read(self, known: str | None) -> CatalogReading | None:
        with self._connected() as connection:
            rows = self._rows(connection)
        return reading_of_rows(((f"row {n}", row) for n, row in enumerate(rows, 1)), entry_of).unless(known)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            url = make_url(self._options.url.get_secret_value())
            engine = create_engine(
                url,
                poolclass=NullPool,
                hide_parameters=True,
                connect_args=_connect_args(url.get_backend_name(), self._options.timeout_s),
            )
            with engine.connect() as connection:
                if engine.dialect.name == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                yield connection
                connection.rollback()
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            # From None: what SQLAlchemy says of a URL that it cannot read may quote the password.
            what = (
                mask_url(str(error)) if isinstance(error, ModuleNotFoundError) else "the URL cannot be used"
            )
            raise CatalogUnavailable(f"{self._where}: {what}; is its driver installed?") from None
        except (SQLAlchemyError, OSError) as error:
            said = " ".join(str(getattr(error, "orig", None) or error).split())
            raise CatalogUnavailable(f"{self._where}: {mask_url(said)}") from None

    def _rows(self, connection: Connection) -> list[Mapping[str, Any]]:
        until = monotonic() + self._options.timeout_s
        rows: list[Mapping[str, Any]] = []
        size = 0
        # As it stands: to SQLAlchemy a colon before a word is a parameter.
        asked = connection.execution_options(yield_per=ROWS_AT_ONCE).exec_driver_sql(self._options.query)
        for part in asked.mappings().partitions(ROWS_AT_ONCE):
            rows += map(dict, part)
            size += sum(
                len(value) for row in part for value in row.values() if isinstance(value, str | bytes)
            )
            if monotonic() > until:
                raise CatalogUnavailable(
                    f"{self._where}: not all rows within {self._options.timeout_s:g} s (timeout_s)"
                )
            if size > BYTES_MAX or len(rows) > ENTRIES_MAX:
                raise CatalogUnavailable(
                    f"{self._where}: the query gives more than {ENTRIES_MAX} rows or {BYTES_MAX} bytes"
                )
        return rows


def entry_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it would stand in a manifest. Raises `ValueError`."""
    if len(row) == 1:
        (value,) = row.values()
        if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip()[:1] == "{"):
            found = _json("the document", value)
            if not isinstance(found, dict):
                raise ValueError("the document is no JSON object")
            return found
    entry: dict[str, Any] = {}
    for column, value in row.items():
        if value is not None:
            put_at(
                entry,
                str(column).split(".", NESTED_MAX),
                _json(str(column), value) if column in JSON_KEYS else plain(value, where=str(column)),
            )
    return entry


def _json(column: str, value: Any) -> Any:
    try:
        return orjson.loads(value if isinstance(value, str | bytes) else orjson.dumps(value))
    except (orjson.JSONDecodeError, TypeError):
        raise ValueError(f"{column}: is no JSON") from None


def _connect_args(backend: str, timeout_s: float) -> dict[str, Any]:
    whole = max(1, round(timeout_s))
    if backend == "postgresql":
        return {"connect_timeout": whole, "options": f"-c statement_timeout={round(1000 * timeout_s)}"}
    if backend in ("mysql", "mariadb"):
        return {"connect_timeout": whole, "read_timeout": whole}
    return {"timeout": timeout_s} if backend == "sqlite" else {}
