"""JSON pointers (RFC 6901) over parsed JSON, compiled once and called per record.

A pointer is ``""`` (the whole document) or a path such as ``/order/lines/0/sku``; in it ``~1`` stands for
``/`` and ``~0`` for ``~``. Looking up never raises: what is not there is `MISSING`, which is not the same
as a ``null`` that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, Literal, TypeAlias

from feedq.model import JSON


class Missing(Enum):
    """Type of `MISSING`."""

    MISSING = "missing"

    def __bool__(self) -> Literal[False]:
        return False


MISSING: Final = Missing.MISSING
"""What a pointer finds where the document has nothing."""

Found: TypeAlias = JSON | Missing
Pointer: TypeAlias = Callable[[JSON], Found]

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
"""An array index has no sign and no leading zero; 18 digits are more than any list has."""
_BAD_ESCAPE = re.compile(r"~(?![01])")


def compile_pointer(text: str) -> Pointer:
    """A function from a parsed document to what ``text`` points at in it.

    Raises:
        ValueError: ``text`` is no JSON pointer; the message says why.
    """
    tokens = parse_pointer(text)
    if not tokens:
        return _whole
    steps = tuple(_step(token) for token in tokens)
    if len(steps) == 1:
        return steps[0]

    def walk(document: JSON) -> Found:
        found: Found = document
        for step in steps:
            if found is MISSING:
                return MISSING
            found = step(found)
        return found

    return walk


def parse_pointer(text: str) -> tuple[str, ...]:
    """The unescaped tokens of a pointer. Raises `ValueError`."""
    if not text:
        return ()
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is no JSON pointer: it must be empty or begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} is no JSON pointer: '~' must be written '~0', and '/' in a name '~1'")
    # ~1 first: the other way round, "~01" would become "/" and not "~1".
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/"))


def array_index(token: str) -> int | None:
    """Which element of an array a token stands for, if it can stand for one."""
    return int(token) if _INDEX.fullmatch(token) else None


def _whole(document: JSON) -> Found:
    return document


def _step(token: str) -> Pointer:
    index = array_index(token)

    def step(value: JSON) -> Found:
        if type(value) is dict:
            return value.get(token, MISSING)
        if index is not None and type(value) is list and index < len(value):
            return value[index]
        return MISSING

    return step
