"""``key=value`` on the command line, put into what a manifest has: one way to set anything.

Keys are those of a manifest, with dots into mappings: ``weight=2``, ``expect.max_silence=20s``. Values are read by
`feedq.verbs.documents.read_value`. ``key=`` takes a key out, so that it has its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from feedq.cli.lazily import lazily
from feedq.errors import InvalidInput

with lazily():
    from feedq.core import json_texts, values
    from feedq.verbs import documents


LABELS = ("labels", "selector.required", "selector.preferred")
"""Mappings whose keys may have dots themselves."""


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tells names from assignments, which have an equals sign."""
    given = list(words)
    return [word for word in given if "=" not in word], [word for word in given if "=" in word]


def split_assignment(text: str, *, option: str) -> tuple[str, str]:
    """Splits ``key=value`` in two. Raises `InvalidInput`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"{option} {text!r}: write it as KEY=VALUE".lstrip())
    return key, value


def read_cursor(text: str) -> Any:
    """Reads a cursor: JSON, or else a text."""
    with suppress(ValueError, RecursionError):
        return json_texts.read_exactly(text)
    return text


def assigned(keys: Mapping[str, Any], assignments: Iterable[str], kind: type[values.Entry]) -> dict[str, Any]:
    """An entry of a manifest with ``key=value`` put into it, which is not checked. Raises `InvalidInput`."""
    changed = dict(keys)
    shorthands = {key: below.shorthand for key, below in values.entries_below(kind) if below.shorthand}
    for text in assignments:
        path, value = split_assignment(text, option="")
        *outer, last = _steps(path)
        inner = changed
        for number, key in enumerate(outer):
            below = {} if inner.get(key) is None else inner[key]
            if not isinstance(below, dict) and not number and key in shorthands:
                below = {shorthands[key]: below}
            if not isinstance(below, dict):
                raise InvalidInput(f"{path}: {key!r} is not a mapping")
            inner[key] = dict(below)  # what was given stays as it is
            inner = inner[key]
        if value:
            inner[last] = _value(path, value)
        elif inner.pop(last, None) is None:
            raise InvalidInput(f"{path}: is not set{values.did_you_mean(last, inner)}")
    return changed


def _steps(path: str) -> list[str]:
    for place in LABELS:
        if path.startswith(f"{place}.") and path != f"{place}.":
            return [*place.split("."), path.removeprefix(f"{place}.")]
    return path.split(".")


@cache  # thousands of feeds may be given the same
def _value(path: str, text: str) -> Any:
    try:
        return documents.read_value(text)
    except documents.DocumentError as error:  # without the text: it may hold a secret
        raise InvalidInput(
            f"{path}: {error}; quote a text that begins with a brace, a bracket or a quote"
        ) from None
