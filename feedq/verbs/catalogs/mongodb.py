"""The ``mongodb`` catalog: the documents that a pipeline makes of a collection. Needs the extra ``mongodb``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import msgspec
import pymongo
from bson import json_util
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from pydantic import BeforeValidator, Field, SecretStr
from pymongo.errors import PyMongoError

from feedq.settings import Settings
from feedq.verbs.catalogs.base import CatalogOptions, Content, from_text, plain

plain.register(ObjectId, str)
plain.register(Decimal128, lambda number: plain(number.to_decimal()))


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
    errors: ClassVar = (PyMongoError,)

    def __init__(self, options: MongoOptions, _: Settings) -> None:
        self._options = options
        self._pipeline = json_util.loads(msgspec.json.encode(options.pipeline).decode())
        self.where = f"collection {options.database}.{options.collection}"

    def contents(self) -> Iterator[tuple[str, Content]]:
        options = self._options
        waits_ms = round(1000 * options.timeout_s)
        limits: dict[str, Any] = {"serverSelectionTimeoutMS": waits_ms, "connectTimeoutMS": waits_ms}
        url = options.url.get_secret_value()
        with (
            pymongo.timeout(options.timeout_s),
            pymongo.MongoClient[dict[str, Any]](url, appname="feedq-sync", **limits) as client,
        ):
            for document in client[options.database][options.collection].aggregate(self._pipeline):
                yield f"document {document.pop('_id', '')}".rstrip(), document
