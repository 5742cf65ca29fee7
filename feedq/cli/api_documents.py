"""Documents of the API, read as the values that the database would have given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from feedq.cli.api_connection import ApiConnection
from feedq.model import Load, Worker, WorkerView
from feedq.report.rows import LOAD_FIELDS, WORKER_FIELDS

ROWS_AT_ONCE: Final = 500
"""What the API has on a page at most."""
ONE_BY_ONE_MAX: Final = 20
"""Feeds that are asked for one by one; more are looked for in the list of all."""
NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""Stands for a moment that the API does not tell."""
T = TypeVar("T")


def pages(
    api: ApiConnection, key: str, *, under: str | Sequence[str] = (), most: int | None = None, **asked: Any
) -> list[Mapping[str, Any]]:
    """The rows of all pages of a list, or the first so many."""
    found: list[Mapping[str, Any]] = []
    for page in whole_pages(api, key, under=under, most=most, **asked):
        found += page[key]
    return found


def whole_pages(
    api: ApiConnection, key: str, *, under: str | Sequence[str] = (), most: int | None = None, **asked: Any
) -> Iterator[Mapping[str, Any]]:
    """The pages of a list, up to so many rows."""
    path = [under] if isinstance(under, str) else [*under]
    count, cursor = 0, None
    while True:
        left = ROWS_AT_ONCE if most is None else min(ROWS_AT_ONCE, most - count)
        page = api.get(*path, key, limit=left, cursor=cursor, **asked)
        yield page
        count, cursor = count + len(page[key]), page["next"]
        if cursor is None or count == most:
            return


def read(api: ApiConnection, reader: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
    """Raises `Unavailable` when the document lacks something."""
    try:
        return reader(row)
    except (KeyError, TypeError, ValidationError) as error:
        raise api.skewed() from error


def fields_of(kind: type, names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that a document has under their own names."""
    return {name: one.validate_python(row[name]) for name, one in _adapters(kind, tuple(names)).items()}


@cache
def _adapters(kind: type, names: tuple[str, ...]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind)
    return {name: TypeAdapter(hints[name]) for name in names}


def worker_view(row: Mapping[str, Any]) -> WorkerView:
    load = Load(feeds=row["feeds_reported"], **fields_of(Load, LOAD_FIELDS, row))
    fields = fields_of(Worker, (*WORKER_FIELDS, "labels"), row)
    worker = Worker(**fields, load=load, lock_key=0)
    return WorkerView(worker, row["feeds"], row["heartbeat_age_s"], load=row["load"])
