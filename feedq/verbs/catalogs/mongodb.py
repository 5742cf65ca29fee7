"""The ``mongodb`` catalog: the documents that a pipeline makes of a collection. Needs the extra ``mongodb``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import pymongo
from bson import json_util
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from pydantic import BeforeValidator, Field, SecretStr
from pymongo.errors import PyMongoError

from feedq.settings import Settings
from feedq.verbs.catalogs.base import Content, FeedCatalog, from_text, plain

plain.register(ObjectId, str)
plain.register(Decimal128, lambda number: number.to_decimal())


class MongoCatalog(FeedCatalog):
    """Documents of a collection."""

    errors: ClassVar = (PyMongoError,)

    url: SecretStr
    """Server or replica set: `mongodb://user:password@host/?replicaSet=name`."""
    database: str
    """The database."""
    collection: str
    """The collection."""
    pipeline: Annotated[list[dict[str, Any]], BeforeValidator(from_text)] = Field([])
    """Makes feeds of its documents, in (extended) JSON: `[{"$match": {"enabled": true}}, {"$project":
    {"name": "$code", "source": {"url": "$url"}}}]`."""

    @property
    def where(self) -> str:
        return f"collection {self.database}.{self.collection}"

    def contents(self, settings: Settings) -> Iterator[tuple[str, Content]]:
        waits_ms = round(1000 * self.timeout_s)
        limits: dict[str, Any] = {"serverSelectionTimeoutMS": waits_ms, "connectTimeoutMS": waits_ms}
        url, pipeline = self.url.get_secret_value(), json_util.loads(json.dumps(self.pipeline))
        with (
            pymongo.timeout(self.timeout_s),
            pymongo.MongoClient[dict[str, Any]](url, appname="feedq-sync", **limits) as client,
        ):
            for document in client[self.database][self.collection].aggregate(pipeline):
                yield f"document {document.pop('_id', '')}".rstrip(), document
