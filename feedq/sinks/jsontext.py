"""JSON records, read for where a value stands and not for what it is.

`JsonRecord.find` gives the value at a pointer as the record has it, byte for byte: a number keeps its digits,
however many, and an object its spaces and the order of its members. So nothing can be lost on the way to a column,
and nothing has to be made only to be written out again.

What is JSON is decided by `read`, once for a record, and by msgspec, which reads as strictly as the standard
library does: invalid UTF-8, ``NaN`` and control characters in strings are refused wherever they stand. It
refuses two things that others may take, `BeyondUs`: nesting deeper than the stack of this interpreter, and
half of a surrogate pair, which no UTF-8 can say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from msgspec import Raw

from feedq.connectors.records.pointer import array_index, parse_pointer

_value: Final = msgspec.json.Decoder(Raw).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_items: Final = msgspec.json.Decoder(list[Raw]).decode


class UnreadableRecord(Exception):
    """A record that cannot even be sent to the database; the message says why."""


class BeyondUs(UnreadableRecord):
    """JSON that the parsers here do not take, though perhaps PostgreSQL's do."""


class PointerToken(NamedTuple):
    """One token of a pointer: a member's name, and the place in an array if it can be one."""

    name: str
    place: int | None


def steps_of(pointer: str) -> tuple[PointerToken, ...]:
    """Raises `ValueError` for what is no pointer."""
    return tuple(PointerToken(token, array_index(token)) for token in parse_pointer(pointer))


class JsonRecord:
    """A record that is JSON, taken apart no deeper than it is asked for."""

    __slots__ = ("_parts", "text")

    def __init__(self, text: bytes) -> None:
        """``text`` is JSON and nothing else: `read` is what makes sure of that."""
        self.text = text
        self._parts: dict[str, Raw] | list[Raw] | None = None

    def find(self, steps: Sequence[PointerToken]) -> bytes | None:
        """What a pointer points at; None where there is nothing."""
        if not steps:
            return self.text
        found = self._part(steps[0])
        if found is None or len(steps) == 1:
            return found
        return JsonRecord(found).find(steps[1:])

    def _part(self, step: PointerToken) -> bytes | None:
        if self._parts is None:
            self._parts = _parts(self.text)
        if isinstance(self._parts, dict):
            found = self._parts.get(step.name)
        elif step.place is not None and step.place < len(self._parts):
            found = self._parts[step.place]
        else:
            found = None
        return None if found is None else bytes(found)


def read(record: bytes) -> JsonRecord:
    """Raises `UnreadableRecord` for a record that is no JSON."""
    try:
        text = bytes(_value(record))
        if not text.isascii():
            decode(record)
    except RecursionError:
        decode(record)
        raise BeyondUs("invalid JSON: nested too deeply") from None
    except msgspec.DecodeError:
        raise _unreadable(decode(record)) from None
    return JsonRecord(text)


def items(array: bytes) -> list[Raw]:
    """The elements of an array that is part of a `JsonRecord`."""
    return _items(array)


def unquote(string: bytes) -> str:
    """What a JSON string says."""
    said: str = orjson.loads(string)
    return said


def decode(record: bytes) -> str:
    """Raises `UnreadableRecord`."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecord(f"invalid UTF-8: {error.reason} at byte {error.start}") from None


def encode(text: str) -> bytes:
    """Raises `UnreadableRecord` for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableRecord(f"invalid text: {error.reason}") from None


def _parts(text: bytes) -> dict[str, Raw] | list[Raw]:
    if text.startswith(b"{"):
        return _members(text)
    return _items(text) if text.startswith(b"[") else []


def _unreadable(text: str) -> UnreadableRecord:
    """Why msgspec does not take it, in the words of the standard library, which says where and what."""
    try:
        json.loads(text, parse_int=_ignore, parse_float=_ignore, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return UnreadableRecord(f"invalid JSON: {error}")
    except RecursionError:
        return BeyondUs("invalid JSON: nested too deeply")
    return BeyondUs("invalid JSON: half of a surrogate pair; surrogates not allowed")


def _ignore(_number: str) -> None:
    """Numbers of thousands of digits are fine here, and slow to make."""


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)
