"""JSON pointers over parsed JSON: what finding the same in text is held against."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from feedq.core.model import JSON
from feedq.records.pointer import MISSING, Found, array_index, parse_pointer

Pointer: TypeAlias = Callable[[JSON], Found]


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


def _whole(document: JSON) -> Found:
    return document


def _step(token: str) -> Pointer:
    index = array_index(token)

    def step(value: JSON) -> Found:
        if type(value) is dict:
            return value.get(token, MISSING)  # type: ignore[no-any-return] # JSON holds JSON
        if index is not None and type(value) is list and index < len(value):
            return value[index]  # type: ignore[no-any-return] # JSON holds JSON
        return MISSING

    return step
