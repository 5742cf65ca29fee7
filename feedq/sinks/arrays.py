"""Lists of thousands of values as parameters of a statement.

psycopg2 makes an object for each element of a list and asks it for its text, all with the interpreter's lock held:
for a statement about 2,500 feeds that is ten milliseconds in which no stream is read. Here a list becomes
PostgreSQL's own notation of an array, in a few calls into C.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_BETWEEN: Final = "\0"
"""No text that PostgreSQL takes holds one."""


def integers(values: Iterable[int]) -> str:
    """For a parameter that the statement casts to ``bigint[]``."""
    return f"{{{','.join(map(str, values))}}}"


def texts(values: Sequence[str | None]) -> str:
    """For a parameter that the statement casts to ``text[]``. Raises `ValueError` for a text with a NUL."""
    if None in values:
        return f"{{{','.join('NULL' if value is None else _quoted(value) for value in values)}}}"
    joined = _BETWEEN.join(values)  # type: ignore[arg-type]  # none of them is None
    if joined.count(_BETWEEN) != max(0, len(values) - 1):
        raise ValueError("a text with a NUL character cannot be a parameter")
    between = '","'
    return f"{{{_quoted(joined).replace(_BETWEEN, between)}}}" if values else "{}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
