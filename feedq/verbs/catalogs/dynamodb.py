"""The ``dynamodb`` catalog: the items of a table. Needs the extra ``dynamodb``.

All of the table is read each time, page by page: streams of DynamoDB keep a day, and have to be turned on.
Credentials are looked for where the AWS tools do: environment, shared files, the role of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BeforeValidator, Field, field_validator

from feedq.core.permission import is_loopback
from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import Content, FeedCatalog, Mapped, from_text, plain

CONNECT_S: Final = 10.0
TRIES: Final = 4
"""Of each page: a table that is short of read capacity refuses some."""

plain.register(set, sorted)


class DynamoCatalog(FeedCatalog):
    """Items of a table."""

    errors: ClassVar = (BotoCoreError, ClientError)

    table: str
    """The table."""
    region: str | None = None
    """Its region; by default that of the AWS tools."""
    endpoint_url: str | None = None
    """Another server, such as DynamoDB Local; `http` on this machine only."""
    only: Mapped = Field({})
    """Attributes and values that items must have: `{"enabled": true}`."""
    keys: Annotated[dict[str, str], BeforeValidator(from_text)] = Field({})
    """Attributes by key of a feed, with dots for nested ones: `{"name": "code", "source.url": "url"}`.
    Without it, an item is a feed."""

    @field_validator("endpoint_url")
    @classmethod
    def _encrypted(cls, url: str | None) -> str | None:
        where = urlsplit(url or "https:")
        if where.scheme != "https" and not (where.scheme == "http" and is_loopback(where.hostname or "")):
            raise ValueError("must be https; http is for this machine only")
        return url

    @property
    def where(self) -> str:
        return f"table {self.table}"

    def contents(self, settings: Settings) -> Iterator[tuple[str, Content]]:
        read = TypeDeserializer().deserialize
        limits = Config(
            connect_timeout=min(CONNECT_S, self.timeout_s),
            read_timeout=self.timeout_s,
            retries={"mode": "standard", "total_max_attempts": TRIES},
        )
        client = boto3.client(
            "dynamodb", region_name=self.region, endpoint_url=self.endpoint_url, config=limits
        )
        until = monotonic() + self.timeout_s
        for page in client.get_paginator("scan").paginate(TableName=self.table):
            if monotonic() > until:  # of a table of which nothing is wanted, nobody else would notice
                raise CatalogUnavailable(f"{self.where}: not read completely in time (timeout_s)")
            for raw in page["Items"]:
                item = {name: read(value) for name, value in raw.items()}
                if all(item.get(name) == value for name, value in self.only.items()):
                    yield "item", self._feed(item)

    def _feed(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.keys:
            return item
        feed: dict[str, Any] = {}
        for key, attribute in self.keys.items():
            value: Any = item
            for part in attribute.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            feed[key] = value
        return feed
