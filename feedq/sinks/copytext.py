"""Rows of a landing with ``columns``, in the text format of COPY.

Each record is parsed, each column's JSON pointer looked up, and what it finds written as text for the
column's input function to parse: strings as they are, everything else as JSON; what is missing or null is
NULL; the pointer "" is the record's own bytes. Into a json or jsonb column strings go as JSON, too.

Three things make it quick, and none of them changes a row:

* a value holds a backslash, tab or newline only if its record holds a backslash, tab or newline, so a
  chunk without any need not be escaped value by value;
* numbers are read as 64 bits unless some number in the chunk might not fit;
* values are dispatched on their exact type.

`ColumnRows.record` is the plain reference: `ColumnRows.chunks` must give the same bytes. A record lands the
same whatever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from feedq.connectors.pointer import MISSING, Pointer, compile_pointer
from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.copybinary import split
from feedq.sinks.jsontext import (
    Literal,
    decode,
    dump,
    encode,
    may_lose_digits,
    parse,
    parse_quickly,
)
from feedq.sinks.landing import Column

Show = Callable[[Any], str]

JSON_TYPES: Final = ("json", "jsonb")
NULL: Final = r"\N"
ESCAPES: Final = {ord("\\"): r"\\", ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r"}


class Cell(NamedTuple):
    """How one column gets its value."""

    find: Pointer | None
    """None takes the whole record."""
    show: Mapping[type, Show]


class ColumnRows:
    """Encodes batches for one landing with ``columns``."""

    header = b""
    trailer = b""

    def __init__(self, landing: Landing, columns: Mapping[str, Column]) -> None:
        self._cells = tuple(
            Cell(
                compile_pointer(pointer) if pointer else None,
                AS_JSON if columns[name].type in JSON_TYPES else AS_TEXT,
            )
            for name, pointer in landing.columns
        )

    def fields(self, record: bytes) -> list[str | None]:
        """What each column gets, unescaped. Raises `UnreadableRecord`."""
        document = parse(record)
        return [_value(cell, document, record) for cell in self._cells]

    def record(self, write: FeedWrite, batch: Batch, record: bytes) -> bytes:
        """One row. Raises `UnreadableRecord`."""
        texts = [NULL if value is None else value.translate(ESCAPES) for value in self.fields(record)]
        return encode("\t".join(texts)) + b"\n"

    def chunks(self, write: FeedWrite, batch: Batch) -> Iterator[bytes]:
        """All rows of a batch, some at a time. Raises `UnreadableRecord`."""
        for records in split(batch):
            text = b" ".join(records)
            if _needs_escapes(text) or may_lose_digits(text):
                yield b"".join([self.record(write, batch, record) for record in records])
            else:
                yield self._rows(records)

    def _rows(self, records: Sequence[bytes]) -> bytes:
        cells = self._cells
        rows = []
        for record in records:
            document = parse_quickly(record)
            texts = []
            for find, show in cells:
                if find is None:
                    texts.append(decode(record))
                else:
                    found = find(document)
                    texts.append(show[type(found)](found))
            rows.append("\t".join(texts))
        rows.append("")
        return encode("\n".join(rows))


def _value(cell: Cell, document: Any, record: bytes) -> str | None:
    if cell.find is None:
        return decode(record)
    found = cell.find(document)
    return None if found is None or found is MISSING else cell.show[type(found)](found)


def _needs_escapes(text: bytes) -> bool:
    return b"\\" in text or b"\t" in text or b"\n" in text or b"\r" in text


AS_JSON: Final[Mapping[type, Show]] = {
    str: dump,
    int: str,
    float: repr,
    bool: lambda value: "true" if value else "false",
    dict: dump,
    list: dump,
    Literal: lambda number: number.text,
    type(None): lambda _: NULL,
    type(MISSING): lambda _: NULL,
}
AS_TEXT: Final[Mapping[type, Show]] = {**AS_JSON, str: lambda text: text}
