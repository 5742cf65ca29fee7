"""The ``mongodb`` catalog: the documents that a pipeline makes of a collection. Needs the extra ``mongodb``.

Where the server has change streams (a replica set has), the version of a reading is a position in one: it was
taken before the documents were read, so that what happens meanwhile is seen by the next sync, and a sync to which
the stream gives nothing reads no document. Elsewhere the documents themselves are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Final

import orjson
import pymongo
from bson import json_util
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from pydantic import BeforeValidator, Field, SecretStr
from pymongo.collection import Collection
from pymongo.errors import OperationFailure, PyMongoError

from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text
from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import CatalogContent, CatalogOptions, from_text, plainer

STREAM: Final = "stream:"
"""How the versions begin that are positions in a change stream."""
AWAIT_MS: Final = 100
"""How long the server waits for news before it says that there are none."""
OTHERS: Final = ("$lookup", "$graphLookup", "$unionWith")
"""Stages that read other collections, of whose changes the stream of this one does not tell."""

plainer.register(ObjectId)(str)
plainer.register(Decimal128)(Decimal128.to_decimal)


class MongoOptions(CatalogOptions):
    """Which documents."""

    url: SecretStr
    """The server or replica set: `mongodb://user:password@host/?replicaSet=name`."""
    database: str
    """Its database."""
    collection: str
    """The collection in it."""
    pipeline: Annotated[list[dict[str, Any]], BeforeValidator(from_text)] = Field([])
    """What makes feeds of its documents, as JSON (extended where needed): `[{"$match": {"enabled": true}},
    {"$project": {"name": "$code", "source": {"url": "$url"}}}]`. `_id` is left out of the result."""


class MongoCatalog:
    """Reads a collection."""

    Options: ClassVar[type[CatalogOptions]] = MongoOptions

    def __init__(self, options: MongoOptions, _: Settings) -> None:
        self._options = options
        text = orjson.dumps(options.pipeline).decode()
        self._pipeline = json_util.loads(text)
        self._can_follow = not any(f'"{stage}"' in text for stage in OTHERS)

    def read(self, known: str | None) -> CatalogContent | None:
        is_position = known is not None and known.startswith(STREAM)
        with self._opened() as collection:
            if is_position and not has_changed(collection, str(known).removeprefix(STREAM)):
                return None
            position = position_in(collection) if self._can_follow else None
        return CatalogContent(self._documents(), position and STREAM + position)

    @contextmanager
    def _opened(self) -> Iterator[Collection[dict[str, Any]]]:
        options = self._options
        where = f"collection {options.database}.{options.collection}"
        waits_ms = round(1000 * options.timeout_s)
        try:
            with (
                pymongo.timeout(options.timeout_s),
                pymongo.MongoClient[dict[str, Any]](
                    options.url.get_secret_value(),
                    appname="feedq-sync",
                    serverSelectionTimeoutMS=waits_ms,
                    connectTimeoutMS=waits_ms,
                ) as client,
            ):
                yield client[options.database][options.collection]
        except PyMongoError as error:
            raise CatalogUnavailable(f"{where}: {mask_url(driver_text(error))}") from None

    def _documents(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with self._opened() as collection:
            for document in collection.aggregate(self._pipeline):
                where = f"document {document.pop('_id', '')}".rstrip()
                yield where, document


def position_in(collection: Collection[dict[str, Any]]) -> str | None:
    """Where the change stream of a collection stands now; None where there is none."""
    try:
        with collection.watch(max_await_time_ms=AWAIT_MS) as stream:
            stream.try_next()
            token = stream.resume_token
    except OperationFailure:
        return None
    return None if token is None else json_util.dumps(token)


def has_changed(collection: Collection[dict[str, Any]], position: str) -> bool:
    """Whether anything has happened in a collection since; also when nobody can tell any more."""
    try:
        with collection.watch(resume_after=json_util.loads(position), max_await_time_ms=AWAIT_MS) as stream:
            while True:
                before = stream.resume_token
                if stream.try_next() is not None:
                    return True
                if stream.resume_token == before:
                    return False
    except OperationFailure:
        # What happened since is not kept any more, or there are no streams any more.
        return True
