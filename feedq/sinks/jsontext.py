"""JSON records as they are read here: exactly, and with an error that says what is wrong.

orjson reads them, ten times as fast as anything else, but holds numbers in 64 bits. A record with a number
that might need more, and one that orjson refuses, is read by the standard library, each number kept as it
was written (`Literal`). What neither can read, PostgreSQL cannot either.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

# Classes of bytes: digits and points, exponents, all else. A translation and a search for a fixed string
# go over a record ten times as fast as a regular expression.
_CLASSES: Final = bytes(
    ord("0") if chr(byte) in "0123456789." else ord("e") if chr(byte) in "eE" else ord(" ")
    for byte in range(256)
)
_LONG_NUMBER: Final = b"0" * 17
"""Digits beyond what 64 bits surely hold."""
_INEXACT: Final = (b"0" * 16 + b"e", b"0e000")
"""An exponent behind more digits than a double surely has, or beyond what it surely has itself."""
_LONG_RUN: Final = re.compile(rb"[0-9][0-9.]{16,}(?:[eE][-+]?[0-9]+)?")


class UnreadableRecord(Exception):
    """A record that cannot even be sent to the database; the message says why."""


class NestedTooDeeply(UnreadableRecord):
    """Too deep for the parsers here, though perhaps not for PostgreSQL's."""


class Literal:
    """A JSON number as it was written."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def parse(record: bytes) -> Any:
    """The record, numbers that 64 bits might not hold as `Literal`. Raises `UnreadableRecord`."""
    return parse_exactly(record) if may_lose_digits(record) else parse_quickly(record)


def parse_quickly(record: bytes) -> Any:
    """The record, unless `may_lose_digits`. Raises `UnreadableRecord`."""
    try:
        return orjson.loads(record)
    except orjson.JSONDecodeError:
        # Not the last word: orjson has limits of depth that others do not have.
        return parse_exactly(record)


def parse_exactly(record: bytes) -> Any:
    """The record with every number as `Literal`. Raises `UnreadableRecord`."""
    try:
        return json.loads(
            decode(record), parse_int=Literal, parse_float=Literal, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise UnreadableRecord(f"invalid JSON: {error}") from None
    except RecursionError:
        raise NestedTooDeeply("invalid JSON: nested too deeply") from None


def may_lose_digits(text: bytes) -> bool:
    """Whether some number in it might not come back out of 64 bits as it is; may err on the side of yes."""
    classes = text.translate(_CLASSES, b"+-")
    if any(map(classes.__contains__, _INEXACT)):
        return True
    return _LONG_NUMBER in classes and not all(map(_is_exact, _LONG_RUN.findall(text)))


def dump(value: object) -> str:
    """JSON text of something parsed here. Raises `UnreadableRecord`."""
    try:
        return orjson.dumps(value, default=_fragment).decode()
    except TypeError as error:
        # Half of a surrogate pair, or a tree deeper than orjson writes.
        raise UnreadableRecord(f"cannot be written as JSON: {error}") from None


def decode(record: bytes) -> str:
    """Raises `UnreadableRecord`."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecord(f"invalid UTF-8: {error.reason} at byte {error.start}") from None


def encode(text: str) -> bytes:
    """Raises `UnreadableRecord` for half of a surrogate pair, which JSON can say and UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableRecord(f"invalid text: {error.reason}") from None


def _is_exact(number: bytes) -> bool:
    """Whether 64 bits hold it; most long numbers are doubles, written with the digits that tell them apart."""
    try:
        return int(number) < 2**63 if number.isdigit() else repr(float(number)) == number.decode()
    except ValueError:
        return False


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


def _fragment(value: object) -> orjson.Fragment:
    assert isinstance(value, Literal)
    return orjson.Fragment(value.text)
