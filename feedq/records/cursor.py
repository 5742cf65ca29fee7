"""Where to resume: the cursor in the last record that has one.

A cursor resumes *after* its record, so earlier ones do not matter. A record that is not of its format, or has
nothing (or a null) there, is passed over: the sink decides what becomes of it. Nothing but the cursor is parsed
of a record, so that it counts although something else is not UTF-8. A cursor that could not be kept exactly would
resume at the wrong place, so it stops the feed instead.

Sinks keep a cursor as a text, from which it is read back exactly: `cursor_text`, `ascii_text`, `cursor_of`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from feedq.core.json_texts import read_exactly, read_json
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured
from feedq.records.batch import Records
from feedq.records.csvtext import CsvFormat, field_finder
from feedq.records.pointer import MISSING, Missing, TextPointers, parse_pointer, walk
from feedq.records.turns import PIECE_BYTES, STEP_RECORDS, Steps, at_once

CURSOR_BYTES_MAX = 8 * 1024
"""The cursor is written with every commit and sent with every hello: it is a position, not a payload."""
CURSOR_DEPTH_MAX = 200
"""Python reads and writes deeper ones only where its stack has the room, which differs from place to place."""
_TEXT_BYTES_MAX = 8 * CURSOR_BYTES_MAX
"""A longer text is not a cursor, however much of it may be blanks and escapes."""
SMALL_BYTES = 4 * 1024
"""What is parsed as a whole takes a hundredth of a millisecond at most."""
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON text escapes it: after an even number of backslashes."""


def _is_deeper(value: JSON, levels: int) -> bool:
    """Whether more lists and mappings than these lie one in the other. Looks level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for each in inner for one in each if isinstance(one, dict | list)]
    return bool(level)


class CursorReader:
    """Reads the cursor of one feed."""

    def __init__(self, pointer: str, csv: CsvFormat | None = None, *, option: str = "cursor") -> None:
        """Raises `ValueError` for a pointer that is none, or names no field of CSV."""
        self._where = f"source.{option} {pointer}"
        self._pointers = TextPointers([pointer]) if csv is None else None
        self._find = field_finder(pointer, csv) if csv is not None else self._find_json
        self._tokens = parse_pointer(pointer) if csv is None else None

    def after(self, records: Records, previous: JSON) -> JSON:
        """The cursor to resume after these records; ``previous`` if none of them has one.

        Raises:
            FeedMisconfigured: there is one, and it cannot be kept exactly.
        """
        found = self._in_last(records)
        return found if found is not None else at_once(self.search(records, previous))

    def _in_last(self, records: Records) -> JSON:
        """The cursor in the last record, if that is small: then to parse all of it is what costs least (1 us, not
        6). None says nothing."""
        if self._tokens is None:
            return None
        record = records.last
        if len(record) > SMALL_BYTES:
            return None
        try:
            found = walk(read_json(record), self._tokens)
        except ValueError:
            return None
        if found is MISSING:
            return None
        # Where there may be a number that a float changes, its text is looked at.
        return self._in(record) if isinstance(found, float | dict | list) else self._checked(found)

    def search(self, records: Records, previous: JSON) -> Steps[JSON]:
        """`after` in steps, for records that may be many more than one piece of a stream holds."""
        size = 0
        may_find = None if self._pointers is None else self._pointers.may_find
        if may_find is not None and records.lines is not None and not may_find(records.lines):
            return previous
        for number, record in enumerate(records.backwards(), start=1):
            is_worth_it = may_find is None or may_find(record)
            if is_worth_it and (found := self._in(record)) is not None:
                return found
            size += len(record)
            if number % STEP_RECORDS == 0 or size >= PIECE_BYTES:
                size = 0
                yield
        return previous

    def _in(self, record: bytes) -> JSON:
        """The cursor in a record; None if there is none."""
        try:
            text = self._find(record)
            if text is MISSING:
                return None
            found: JSON = read_exactly(text) if len(text) <= _TEXT_BYTES_MAX else None
        except ValueError:  # a record that is not of its format
            return None
        if len(text) > _TEXT_BYTES_MAX:
            raise self._larger(len(text))
        return self._checked(found)

    def _find_json(self, record: bytes) -> bytes | Missing:
        assert self._pointers is not None
        return self._pointers.find(record)[0]

    def _checked(self, cursor: JSON) -> JSON:
        if type(cursor) is int or cursor is None:
            return cursor
        if _is_deeper(cursor, CURSOR_DEPTH_MAX):
            raise FeedMisconfigured(
                f"{self._where}: nested deeper than can be kept ({CURSOR_DEPTH_MAX} levels); point it at a "
                "smaller part of the record"
            )
        text = msgspec.json.encode(cursor)
        if len(text) > CURSOR_BYTES_MAX:
            raise self._larger(len(text))
        if ESCAPED_NUL.search(text):
            raise FeedMisconfigured(f"{self._where}: a NUL character in it cannot be kept in PostgreSQL")
        return cursor

    def _larger(self, size: int) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{self._where}: {size} bytes, at most {CURSOR_BYTES_MAX} are kept; "
            "point it at a smaller part of the record"
        )


# -- cursors as texts ---------------------------------------------------------------------------------


class _AsWritten(Exception):
    """A cursor holds a number that is kept as it was written."""


def _default(value: object) -> Any:
    if isinstance(value, msgspec.Raw):
        raise _AsWritten
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


# The standard library and not msgspec, which writes NaN as null.
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_default).encode
# Escaped down to ASCII: whatever JSON can say comes back as it was, from a text column of any character set.
_encode_ascii: Final = json.JSONEncoder(allow_nan=False, default=_default).encode
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def cursor_text(cursor: JSON) -> str | None:
    """A cursor for a json column; None is NULL.

    Raises:
        ValueError: PostgreSQL could not give it back as it is; the message says why.
    """
    if cursor is None:
        return None
    if type(cursor) is int:  # most of them, and some thousands a second
        return str(cursor)
    try:
        text = _encode(cursor)
        encoded = text.encode()
    except _AsWritten:
        encoded = msgspec.json.encode(cursor)
        text = encoded.decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None
    if b"\\u0000" in encoded and ESCAPED_NUL.search(encoded):
        raise ValueError("the cursor cannot be kept: PostgreSQL has no NUL character")
    return text


def ascii_text(cursor: JSON) -> str | None:
    """A cursor for a text column; None is NULL. Raises `ValueError` for what is not JSON."""
    if cursor is None:
        return None
    try:
        return _encode_ascii(cursor)
    except _AsWritten:
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], msgspec.json.encode(cursor).decode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None


def cursor_of(text: str | None) -> JSON:
    """What `cursor_text` or `ascii_text` was given."""
    if text is None:
        return None
    try:
        cursor: JSON = read_exactly(text)
    except ValueError:
        cursor = json.loads(text)  # half of a surrogate pair, which msgspec does not take
    return cursor
