"""Cursors read out of records: where to resume after, as the records themselves say it.

Only the last record of a batch that has one is parsed: a cursor resumes *after* it, so earlier ones do not
matter. A record that is not JSON, or has nothing (or ``null``) there, is passed over: the sink decides what
becomes of it, and the cursor stays with the record before it.

A cursor that could not be kept exactly would resume at the wrong place, so it stops the feed instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from feedq.connectors.framing import LF, Framed
from feedq.connectors.pointer import MISSING, compile_pointer
from feedq.errors import FeedMisconfigured
from feedq.model import JSON

CURSOR_BYTES_MAX = 8 * 1024
"""The cursor is written with every commit and sent with every hello: it is a position, not a payload."""
_EXACT_BELOW = 2.0**63
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON text escapes it: after an even number of backslashes."""


class CursorReader:
    """Reads the cursor of one feed."""

    __slots__ = ("_find", "_text")

    def __init__(self, pointer: str) -> None:
        self._text = pointer
        self._find = compile_pointer(pointer)

    def after(self, framed: Framed, previous: JSON) -> JSON:
        """The cursor to resume after these records; ``previous`` if none of them has one.

        Raises:
            FeedMisconfigured: there is one, and it cannot be kept exactly.
        """
        for record in _backwards(framed):
            try:
                found = self._find(orjson.loads(record))
            except orjson.JSONDecodeError:
                continue
            if found is not MISSING and found is not None:
                if type(found) is not int:
                    self._check(found)
                return found
        return previous

    def _check(self, cursor: JSON) -> None:
        if isinstance(cursor, float) and abs(cursor) >= _EXACT_BELOW and cursor.is_integer():
            raise FeedMisconfigured(
                f"source.cursor {self._text}: a number beyond 64 bits ({cursor!r}) cannot be kept exactly; "
                "have the source send it as a string"
            )
        text = orjson.dumps(cursor)
        if _NUL.search(text):
            raise FeedMisconfigured(
                f"source.cursor {self._text}: a NUL character in it cannot be kept in PostgreSQL"
            )
        size = len(text)
        if size > CURSOR_BYTES_MAX:
            raise FeedMisconfigured(
                f"source.cursor {self._text}: {size} bytes, at most {CURSOR_BYTES_MAX} are kept; "
                "point it at a smaller part of the record"
            )


def show_cursor(cursor: JSON, *, width: int = 200) -> str:
    """A cursor for a message."""
    text = orjson.dumps(cursor).decode()
    return text if len(text) <= width else text[: width - 1] + "…"


def _backwards(framed: Framed) -> Iterator[bytes]:
    """The records from the last to the first, none cut out before it is asked for."""
    if framed.records:
        yield from reversed(framed.records)
        return
    lines = framed.lines
    end = len(lines) - 1
    while end > 0:
        start = lines.rfind(LF, 0, end) + 1
        yield lines[start:end]
        end = start - 1
