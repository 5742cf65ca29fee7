"""Options of ``redis`` feeds, and the ids of entries that their cursors hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, field_validator

from feedq.connectors.messages import MessageOptions
from feedq.connectors.wire.remote import Scheme, parse_location
from feedq.core.model import JSON

PORT: Final = 6379
ID: Final = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
"""How a server writes an id."""
_PATH: Final = re.compile(r"/?|/\d{1,5}")

Id: TypeAlias = tuple[int, int]
"""Of an entry: what it is compared by."""
ZERO: Final[Id] = (0, 0)
"""Before every entry."""


class RedisOptions(MessageOptions):
    """Options of a feed with ``connector: redis``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "redis": Scheme(tls=False, port=PORT),
        "rediss": Scheme(tls=True, port=PORT),
    }

    url: str
    """`redis://host` or `rediss://host` (TLS); default port 6379. A path such as `/2` selects a database."""
    streams: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]
    """Streams to read. One that does not exist is waited for; while none does, the feed is `connecting`."""
    start: Literal["beginning", "now"] = "beginning"
    """Where a stream without a cursor begins. Until an entry has landed, `now` is the latest connection."""
    field: Annotated[str | None, Field(min_length=1)] = None
    """Field whose value is the record. Without it, and for an entry that lacks it, the record is a JSON
    object of all fields, with values as strings."""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Most entries of a stream per XREAD."""

    def check_cursor(self, cursor: JSON) -> None:
        ids = list(cursor.items()) if isinstance(cursor, dict) else [("", None)]
        if any(not isinstance(text, str) or not ID.fullmatch(text.encode()) for _, text in ids):
            raise ValueError('must have an id for each stream, as {"orders": "1764064800000-0"} does')

    def cursor_place(self, cursor: JSON) -> int:
        if len(self.streams) > 1:
            raise ValueError("with several streams, what comes after it is unknown: declare a feed for each")
        self.check_cursor(cursor)
        text = cursor.get(self.streams[0]) if isinstance(cursor, dict) else None
        return place_of(id_of(text) if isinstance(text, str) else ZERO)

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """An id, or the milliseconds that it begins with, of the one stream."""
        if isinstance(said, str | int) and not isinstance(said, bool) and len(self.streams) == 1:
            text = str(said)
            said = {self.streams[0]: text if "-" in text else f"{text}-0"}
        return super().cursor_said(said, like)

    def cursor_at(self, cursor: JSON, at: datetime) -> JSON:
        """An id begins with the milliseconds at which its entry was added."""
        before = (int(at.timestamp() * 1000) - 1, 2**64 - 1)
        known = cursor.items() if isinstance(cursor, dict) else ()
        return {name: id_text(min(before, id_of(text))) for name, text in known if isinstance(text, str)}

    @field_validator("url")
    @classmethod
    def _check_database(cls, url: str) -> str:
        if not _PATH.fullmatch(parse_location(url, cls.SCHEMES).target):
            raise ValueError("has a path that is not a database number; write for instance redis://host/2")
        return url

    @field_validator("streams")
    @classmethod
    def _check_streams(cls, streams: tuple[str, ...]) -> tuple[str, ...]:
        if not all(streams):
            raise ValueError("holds an empty name")
        if len(set(streams)) < len(streams):
            raise ValueError("names a stream twice")
        return streams


def id_of(text: str) -> Id:
    """The id in a cursor."""
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence or 0)


def place_of(entry_id: Id) -> int:
    """An id as one number."""
    return (entry_id[0] << 64) + entry_id[1]


def id_text(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"
