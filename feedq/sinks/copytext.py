"""Rows of a landing with ``columns``, in the text format of COPY.

Each record is parsed, each column's JSON pointer looked up, and what it finds written as text for the
column's input function to parse: strings as they are, everything else as JSON; what is missing or null is
NULL; the pointer "" is the record's own bytes. Into a json or jsonb column strings go as JSON, too.

Three things make it quick and none of them changes a row:

* a string holds a backslash, tab or newline only if its record holds a backslash, so a chunk without one
  need not be escaped value by value;
* orjson reads numbers as 64 bits; only a record with one that might not fit is read digit by digit;
* values are dispatched on their exact type.

`ColumnRows.record` is the plain reference: `ColumnRows.chunks` must give the same bytes. A record lands the
same whatever its neighbours are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from feedq.connectors.pointer import MISSING, Pointer, compile_pointer
from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.copybinary import split
from feedq.sinks.landing import Column

JSON_TYPES: Final = ("json", "jsonb")
NULL: Final = r"\N"
ESCAPES: Final = {ord("\\"): r"\\", ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r"}

# Classes of bytes: digits and points, exponents, all else. A translation and a search for a fixed string
# go over a record ten times as fast as a regular expression.
_CLASSES: Final = bytes(
    ord("0") if chr(byte) in "0123456789." else ord("e") if chr(byte) in "eE" else ord(" ")
    for byte in range(256)
)
_LONG_NUMBER: Final = b"0" * 17
"""Digits beyond what 64 bits surely hold."""
_LONG_EXPONENT: Final = b"0e000"
"""An exponent beyond what a double surely has."""


class UnreadableRecord(Exception):
    """A record that cannot even be sent to the database; the message says why."""


class Literal:
    """A JSON number as it was written."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Cell(NamedTuple):
    """How one column gets its value."""

    name: str
    find: Pointer | None
    """None takes the whole record."""
    show: Mapping[type, Callable[[Any], str]]
    not_null: bool


class ColumnRows:
    """Encodes batches for one landing with ``columns``."""

    header = b""
    trailer = b""

    def __init__(self, landing: Landing, columns: Mapping[str, Column]) -> None:
        self._cells = tuple(
            Cell(
                name,
                compile_pointer(pointer) if pointer else None,
                _AS_JSON if columns[name].type in JSON_TYPES else _AS_TEXT,
                columns[name].not_null,
            )
            for name, pointer in landing.columns
        )

    def fields(self, record: bytes) -> list[str | None]:
        """What each column gets, unescaped. Raises `UnreadableRecord`."""
        document = parse(record)
        return [_value(cell, document, record) for cell in self._cells]

    def record(self, write: FeedWrite, batch: Batch, record: bytes) -> bytes:
        """One row. Raises `UnreadableRecord`."""
        values = self.fields(record)
        texts = [NULL if value is None else value.translate(ESCAPES) for value in values]
        return encode("\t".join(texts)) + b"\n"

    def chunks(self, write: FeedWrite, batch: Batch) -> Iterator[bytes]:
        """All rows of a batch, some at a time. Raises `UnreadableRecord`."""
        for records in split(batch):
            text = b" ".join(records)
            if _needs_escapes(text) or _has_long_number(text):
                yield b"".join([self.record(write, batch, record) for record in records])
            else:
                yield self._rows(records)

    def _rows(self, records: Sequence[bytes]) -> bytes:
        cells = [(cell.find, cell.show) for cell in self._cells]
        rows = []
        for record in records:
            document = _parse_quickly(record)
            texts = []
            for find, show in cells:
                if find is None:
                    texts.append(record.decode())
                else:
                    found = find(document)
                    texts.append(show[type(found)](found))
            rows.append("\t".join(texts))
        rows.append("")
        return encode("\n".join(rows))

    def null_violation(self, values: Sequence[str | None]) -> str | None:
        """The error that PostgreSQL would raise for a NULL in these fields, if any."""
        for cell, value in zip(self._cells, values, strict=True):
            if value is None and cell.not_null:
                return f'null value in column "{cell.name}" violates not-null constraint (23502)'
        return None


def parse(record: bytes) -> Any:
    """The record as JSON; numbers that 64 bits might not hold are `Literal`. Raises `UnreadableRecord`."""
    return _parse_exactly(record) if _has_long_number(record) else _parse_quickly(record)


def _parse_quickly(record: bytes) -> Any:
    try:
        return orjson.loads(record)
    except orjson.JSONDecodeError:
        # Not the last word: orjson has limits of depth that others do not have.
        return _parse_exactly(record)


def _parse_exactly(record: bytes) -> Any:
    try:
        return json.loads(
            record.decode(), parse_int=Literal, parse_float=Literal, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise UnreadableRecord(f"invalid UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise UnreadableRecord(f"invalid JSON: {error}") from None
    except RecursionError:
        raise UnreadableRecord("invalid JSON: nested too deeply") from None


def encode(text: str) -> bytes:
    """Raises `UnreadableRecord` for half of a surrogate pair, which JSON can say and UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableRecord(f"no valid text: {error.reason}") from None


def _needs_escapes(text: bytes) -> bool:
    return b"\\" in text or b"\t" in text or b"\r" in text or b"\n" in text


def _has_long_number(text: bytes) -> bool:
    classes = text.translate(_CLASSES, b"+-")
    return _LONG_NUMBER in classes or _LONG_EXPONENT in classes


def _value(cell: Cell, document: Any, record: bytes) -> str | None:
    if cell.find is None:
        return record.decode()
    found = cell.find(document)
    return None if found is None or found is MISSING else cell.show[type(found)](found)


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is no JSON", name, 0)


def _fragment(value: object) -> orjson.Fragment:
    assert isinstance(value, Literal)
    return orjson.Fragment(value.text)


def _dump(value: object) -> str:
    try:
        return orjson.dumps(value, default=_fragment).decode()
    except TypeError as error:
        # Half of a surrogate pair again, or a tree deeper than orjson writes.
        raise UnreadableRecord(f"no valid text: {error}") from None


_AS_JSON: Final[Mapping[type, Callable[[Any], str]]] = {
    str: _dump,
    int: str,
    float: repr,
    bool: lambda value: "true" if value else "false",
    dict: _dump,
    list: _dump,
    Literal: lambda number: number.text,
    type(None): lambda _: NULL,
    type(MISSING): lambda _: NULL,
}
_AS_TEXT: Final = {**_AS_JSON, str: lambda text: text}
