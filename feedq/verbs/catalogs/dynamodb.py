"""The ``dynamodb`` catalog: the items of a table. Needs the extra ``dynamodb``.

All of the table is read each time, page by page: streams of DynamoDB keep a day, and have to be turned on.
Credentials are looked for where the AWS tools do: environment, shared files, the role of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from time import monotonic
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import Field, field_validator

from feedq.core.values import is_loopback
from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import (
    BYTES_MAX,
    CatalogOptions,
    CatalogReading,
    Mapped,
    plain,
    put_at,
    reading_of_rows,
)
from feedq.verbs.manifest.reader import ENTRIES_MAX

CONNECT_S: Final = 10.0
TRIES: Final = 4
"""Of each page: a table that is short of read capacity refuses some."""
PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    set: lambda members: sorted(map(_number_or_text, members))
}


class DynamoOptions(CatalogOptions):
    """Which items."""

    table: str
    """The table."""
    region: str | None = None
    """Its region; what the AWS tools are set to when left out."""
    endpoint_url: str | None = None
    """Another server that speaks the protocol, such as DynamoDB Local: `http` on this machine only."""
    only: Mapped = Field({})
    """Attributes and the values that they must have, as JSON: `{"enabled": true}`."""
    keys: Mapped = Field({})
    """Which attribute gives which key of a feed, as JSON, with dots for what is nested:
    `{"name": "code", "source.url": "url"}`. Left out, an item is a feed as it stands."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Longest time for all of it."""

    @field_validator("endpoint_url")
    @classmethod
    def _encrypted(cls, url: str | None) -> str | None:
        if url is None or urlsplit(url).scheme == "https":
            return url
        if urlsplit(url).scheme != "http" or not is_loopback(urlsplit(url).hostname or ""):
            raise ValueError("must be https; http is for this machine only")
        return url

    @field_validator("keys")
    @classmethod
    def _texts(cls, keys: dict[str, Any]) -> dict[str, Any]:
        if not all(isinstance(attribute, str) for attribute in keys.values()):
            raise ValueError("must give the name of an attribute for each key")
        return keys


class DynamoCatalog:
    """Reads a table."""

    Options: ClassVar[type[CatalogOptions]] = DynamoOptions

    def __init__(self, options: DynamoOptions, _: Settings) -> None:
        self._options = options

    def read(self, known: str | None) -> CatalogReading | None:
        items = ((f"item {number}", item) for number, item in enumerate(self._items(), 1))
        return reading_of_rows(items, self._entry).unless(known)

    def _entry(self, item: Mapping[str, Any]) -> dict[str, Any]:
        if not self._options.keys:
            whole: dict[str, Any] = plain(dict(item), also=PLAIN)
            return whole
        entry: dict[str, Any] = {}
        for key, attribute in self._options.keys.items():
            value: Any = item
            for part in attribute.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                put_at(entry, key.split("."), plain(value, where=attribute, also=PLAIN))
        return entry

    def _items(self) -> Iterator[dict[str, Any]]:
        options, read = self._options, TypeDeserializer().deserialize
        where, until, left, count = f"table {options.table}", monotonic() + options.timeout_s, BYTES_MAX, 0
        limits = Config(
            connect_timeout=min(CONNECT_S, options.timeout_s),
            read_timeout=options.timeout_s,
            retries={"mode": "standard", "total_max_attempts": TRIES},
        )
        try:
            client = boto3.client(
                "dynamodb", region_name=options.region, endpoint_url=options.endpoint_url, config=limits
            )
            for page in client.get_paginator("scan").paginate(TableName=options.table):
                for raw in page["Items"]:
                    left, count = left - len(repr(raw)), count + 1
                    if left < 0 or count > ENTRIES_MAX:
                        raise CatalogUnavailable(
                            f"{where}: gives more than {ENTRIES_MAX} items or {BYTES_MAX} bytes"
                        )
                    item = {name: read(value) for name, value in raw.items()}
                    if all(item.get(name) == value for name, value in options.only.items()):
                        yield item
                if monotonic() > until:
                    raise CatalogUnavailable(
                        f"{where}: not all items within {options.timeout_s:g} s (timeout_s)"
                    )
        except (BotoCoreError, ClientError) as error:
            raise CatalogUnavailable(f"{where}: {' '.join(str(error).split())}") from None


def _number_or_text(member: Any) -> Any:
    return float(member) if isinstance(member, Decimal) else member
