"""Cursors as text: what can be kept, and what cannot."""

from __future__ import annotations

import json
import re
from typing import Final

from feedq.connectors.base import ConnectorOptions
from feedq.core.model import JSON
from feedq.errors import InvalidInput
from feedq.records.framing import CURSOR_BYTES_MAX

# The standard library and not orjson: a cursor may be an integer of more than 64 bits.
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
# Escaped down to ASCII: whatever JSON can say comes back as it was, from a text column of any character set.
_encode_ascii: Final = json.JSONEncoder(allow_nan=False).encode
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def cursor_text(cursor: JSON) -> str | None:
    """A cursor for a jsonb column; None is NULL.

    Raises:
        ValueError: PostgreSQL could not give it back as it is; the message says why.
    """
    if cursor is None:
        return None
    if type(cursor) is int:  # most of them, and some thousands a second
        return str(cursor)
    try:
        text = _encode(cursor)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("the cursor cannot be kept: PostgreSQL has no NUL character in jsonb")
    return text


def ascii_text(cursor: JSON) -> str | None:
    """A cursor for a text column; None is NULL. Raises `ValueError` for what is not JSON."""
    if cursor is None:
        return None
    try:
        return _encode_ascii(cursor)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None


def cursor_of(text: str | None) -> JSON:
    """What `ascii_text` was given."""
    return None if text is None else json.loads(text)


def check_cursor(options: ConnectorOptions, cursor: JSON) -> None:
    """Raises `InvalidInput` for a cursor that a person gives to a feed with these options, and cannot."""
    try:
        size = len(cursor_text(cursor) or "")
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    if size > CURSOR_BYTES_MAX:
        raise InvalidInput(f"the cursor has {size} bytes, and at most {CURSOR_BYTES_MAX} are kept")
    try:
        if cursor is not None:
            options.check_cursor(cursor)
    except ValueError as error:
        raise InvalidInput(f"the cursor {error}") from None
