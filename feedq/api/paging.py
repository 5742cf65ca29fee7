"""Cursors of lists: where the next page begins, as text that only this module reads.

A page goes on behind what the one before has shown, whatever was added or removed since; an offset would leave
out or repeat what has moved.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import orjson
from fastapi import Query

from feedq.errors import InvalidInput

LIMIT_USUAL = 100
LIMIT_MAX = 500
"""One more is asked for, and the store has 1,000 at most."""
CURSOR_CHARS_MAX = 2_000

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many of them at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=CURSOR_CHARS_MAX, description="`next` of the page before; left out, the first."),
]


def cursor_of(*place: str | int) -> str:
    """The cursor of the page that begins behind this place."""
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def place_of(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """The place that a cursor stands for, None for the first page. Raises `InvalidInput`."""
    if cursor is None:
        return None
    try:
        found = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, binascii.Error):
        found = None
    if not isinstance(found, list) or [type(one) for one in found] != list(kinds):
        raise InvalidInput("cursor: is none of this list; give `next` of the page before, or leave it out")
    return tuple(found)
