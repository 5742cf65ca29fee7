"""One column of a landing with ``columns``: which text its input function gets for what a record has. Pure.

Strings go as what they say, every other JSON value as its text; into a json or jsonb column strings go as JSON,
too. What is missing or null is NULL, unless the rule of the column says otherwise. None stands for NULL.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

import orjson

from feedq.connectors.records.csvtext import CsvReader
from feedq.model import JSON, Batch
from feedq.sinks.base import FeedWrite
from feedq.sinks.cursors import cursor_text
from feedq.sinks.jsontext import PointerToken, UnreadableRecord, decode, steps_of, unquote
from feedq.sinks.landing import Column
from feedq.sinks.mapping import ColumnSource, Origin, Otherwise

NULL: Final = r"\N"
"""As COPY's text format has it."""
_ESCAPED: Final = re.compile(r"[\\\t\n\r]")
_ESCAPES: Final = {ord("\\"): r"\\", ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r"}


def copied(text: str | None) -> str:
    """A text as COPY's text format has it."""
    if text is None:
        return NULL
    return text.translate(_ESCAPES) if _ESCAPED.search(text) else text


class Kind(Enum):
    """What a column's input function takes."""

    TEXT = auto()
    JSON = auto()
    BYTES = auto()

    @classmethod
    def of(cls, column: Column) -> Kind:
        kinds = {"json": cls.JSON, "jsonb": cls.JSON, "bytea": cls.BYTES, "bytes": cls.BYTES}
        return kinds.get(column.type, cls.TEXT)


class Cell:
    """How one column gets its text."""

    __slots__ = ("default", "kind", "paths", "source")

    def __init__(self, source: ColumnSource, kind: Kind) -> None:
        self.source = source
        self.kind = kind
        self.paths: tuple[tuple[PointerToken, ...], ...] = tuple(
            map(steps_of, (source.pointer, *source.alternatives))
        )
        self.default = self.text_of_json(source.default.encode())

    def text_of_json(self, value: bytes) -> str | None:
        """What the column gets for a JSON text."""
        if value == b"null":
            return None
        if self.kind is not Kind.JSON and value.startswith(b'"'):
            return unquote(value)
        return value.decode()

    def place_in(self, reader: CsvReader) -> int:
        """Which field of a CSV record it is."""
        place = reader.place(self.paths[0][0].name)
        assert place is not None, f"{self.source.pointer} was not checked against the fields"
        return place

    def instead_of_nothing(self) -> str | None:
        """What the column gets where the record has nothing. Raises `UnreadableRecord`."""
        return self._otherwise(self.source.missing, "nothing")

    def instead_of_null(self) -> str | None:
        """What the column gets where the record has a null. Raises `UnreadableRecord`."""
        return self._otherwise(self.source.null, "null")

    def text_of_record(self, record: bytes) -> str:
        """Raises `UnreadableRecord`."""
        return "\\x" + record.hex() if self.kind is Kind.BYTES else decode(record)

    def text_of_batch(self, write: FeedWrite, batch: Batch) -> str | None:
        """What is the same for all records of a batch. Raises `UnreadableRecord`."""
        match self.source.origin:
            case Origin.FEED:
                return self._text_of_value(write.feed)
            case Origin.EPOCH:
                return str(write.epoch)
            case Origin.RECEIVED_AT:
                return self._text_of_value(batch.received_at.isoformat())
            case Origin.CURSOR:
                return self._text_of_cursor(batch.cursor)
            case _:
                return self.text_of_json(self.source.constant.encode())

    def _otherwise(self, rule: Otherwise, found: str) -> str | None:
        if rule is Otherwise.REFUSE:
            raise UnreadableRecord(
                f"column {self.source.column!r}: the record has {found} at {self.source.pointer}, "
                "which sink.columns refuses"
            )
        return self.default if rule is Otherwise.DEFAULT else None

    def _text_of_value(self, value: str) -> str:
        return orjson.dumps(value).decode() if self.kind is Kind.JSON else value

    def _text_of_cursor(self, cursor: JSON) -> str | None:
        try:
            text = cursor_text(cursor)
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None
        return cursor if isinstance(cursor, str) and self.kind is not Kind.JSON else text
