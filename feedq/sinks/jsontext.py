"""Texts of records: which of them are JSON, and what is wrong with those that are not.

msgspec decides what is JSON, and is as strict as the standard library: invalid UTF-8, ``NaN`` and control
characters in strings are refused wherever they stand. It refuses two things that others may take, `BeyondUs`:
nesting deeper than the stack of this interpreter, and half of a surrogate pair, which no UTF-8 can say.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import orjson
from msgspec import Raw

_value: Final = msgspec.json.Decoder(Raw).decode
items: Final = msgspec.json.Decoder(list[Raw]).decode
"""The elements of an array that is part of a record."""


class UnreadableRecord(Exception):
    """A record that cannot even be sent to the database; the message says why."""


class BeyondUs(UnreadableRecord):
    """JSON that the parsers here do not take, though perhaps PostgreSQL's do."""


def check(record: bytes) -> None:
    """Raises `UnreadableRecord` for a record that is no JSON."""
    try:
        _value(record)
        if not record.isascii():
            decode(record)
    except RecursionError:
        decode(record)
        raise BeyondUs("invalid JSON: nested too deeply") from None
    except msgspec.DecodeError:
        raise _unreadable(decode(record)) from None


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
