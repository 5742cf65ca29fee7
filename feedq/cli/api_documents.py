"""Documents of the API, read as the values that the database would have given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final, TypeVar, get_type_hints
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from feedq.cli.api_connection import ApiConnection
from feedq.core.model import Identity, Load, Worker, WorkerView

ROWS_AT_ONCE: Final = 500
"""What the API has on a page at most."""
ONE_BY_ONE_MAX: Final = 20
"""Feeds that are asked for one by one; more are looked for in the list of all."""
NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""Stands for a moment that the API does not tell."""
NOBODY: Final = Identity(UUID(int=0), UUID(int=0))
"""Stands for the identity of a feed, which the API does not tell."""
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


class ApiPart:
    """Base of what asks an API for one kind of thing."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    def _read(self, reader: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
        return read(self._api, reader, row)

    def _read_all(
        self, reader: Callable[[Mapping[str, Any]], T], rows: Iterable[Mapping[str, Any]]
    ) -> list[T]:
        return [read(self._api, reader, row) for row in rows]


def read(api: ApiConnection, reader: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
    """Raises `Unavailable` when the document lacks something."""
    try:
        return reader(row)
    except (KeyError, TypeError, ValidationError) as error:
        raise api.skewed() from error


def value_of(kind: type[T], row: Mapping[str, Any], **given: Any) -> T:
    """The value whose columns a document has under their own names, but for those that are ``given``."""
    of: Any = kind
    shared = [one.name for one in fields(of) if one.name in row and one.name not in given]
    return kind(**{name: _adapter(of, name).validate_python(row[name]) for name in shared}, **given)


def reader_of(kind: type[T], **given: Any) -> Callable[[Mapping[str, Any]], T]:
    return partial(value_of, kind, **given)


@cache
def _adapter(kind: Any, name: str) -> TypeAdapter[Any]:
    (declared,) = (one.type for one in fields(kind) if one.name == name)
    # What may be any JSON is taken as it is: its type is endless.
    return TypeAdapter(Any if declared == "JSON" else get_type_hints(kind)[name])


def timed(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A row with its times as times."""
    return {**row, **{key: row[key] and datetime.fromisoformat(row[key]) for key in keys}}


def worker_view(row: Mapping[str, Any]) -> WorkerView:
    load = value_of(Load, row, feeds=row["feeds_reported"])
    worker = value_of(Worker, row, load=load, lock_key=0)
    return WorkerView(worker, row["feeds"], row["heartbeat_age_s"], load=row["load"])
