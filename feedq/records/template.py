r"""Templates: texts of a feed that are filled in when it connects, such as the ``hello`` of `tcp`.

``'{"feed": {name}, "from": {cursor}}\n'`` becomes ``{"feed": "acme/orders", "from": 17}`` and a newline.

* ``{name}`` and ``{cursor}`` become JSON texts: a quoted string, and whatever the cursor is (``null`` at
  first). ``{token}`` becomes the secret named ``token`` as it stands, without quotes or escaping.
* Braces that hold no bare word are literal, so JSON needs no doubling of them. A word that is no
  placeholder is refused: it is a slip of the pen more often than it is meant. ``\x7b`` writes a brace
  that never begins a placeholder.
* Escapes: ``\n \r \t \0 \\ \xNN``. A backslash before anything else is refused, so that none is lost.

What is filled in is never looked at again: a secret or a cursor may hold braces and backslashes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from feedq.core.model import JSON, known_as

NAME = "name"
CURSOR = "cursor"
RESERVED = frozenset({NAME, CURSOR})
"""Placeholders that every template knows, hence no names for secrets."""

TEMPLATES_MAX = 1_024
"""Different ones kept compiled: the feeds of one provider have the same, and fill it in with every connection."""

_ESCAPE = re.compile(r"\\(?:(?P<letter>[nrt0\\])|x(?P<hex>[0-9A-Fa-f]{2})|(?P<wrong>.?))", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LETTERS = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


@dataclass(frozen=True, slots=True)
class Template:
    """Literal bytes with named gaps: ``literals[0] names[0] literals[1] … literals[-1]``."""

    literals: tuple[bytes, ...]
    names: tuple[str, ...]

    def render(self, values: Mapping[str, bytes]) -> bytes:
        filled = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            filled += (values[name], literal)
        return b"".join(filled)


def compile_template(
    text: str, *, secrets: Collection[str] = (), known: frozenset[str] = RESERVED
) -> Template:
    """Raises `ValueError` for an unknown placeholder or escape; the message says what would be right."""
    return _compile(text, known.union(secrets))


@lru_cache(TEMPLATES_MAX)
def _compile(text: str, known: frozenset[str]) -> Template:
    # Split with one group: literals at the even places, names at the odd ones.
    pieces = _PLACEHOLDER.split(text)
    for name in pieces[1::2]:
        if name not in known:
            raise ValueError(
                f"{{{name}}} is not a placeholder; known are {', '.join(sorted(known))} "
                f"(write \\x7b{name}}} to send it as it is)"
            )
    return Template(tuple(map(unescape, pieces[::2])), tuple(pieces[1::2]))


def unescape(text: str) -> bytes:
    """The bytes that a text with backslash escapes stands for, in UTF-8. Raises `ValueError`."""
    filled: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        filled.append(_encode(text[end : match.start()]))
        end = match.end()
        if match["letter"]:
            filled.append(_LETTERS[match["letter"]])
        elif match["hex"]:
            filled.append(bytes.fromhex(match["hex"]))
        else:
            raise ValueError(
                f"unknown escape {match.group()!r}: known are \\n \\r \\t \\0 \\\\ \\xNN; "
                "write \\\\ for a backslash"
            )
    filled.append(_encode(text[end:]))
    return b"".join(filled)


def fill_in(text: str, *, feed: str, cursor: JSON, secrets: Mapping[str, str]) -> bytes:
    """A template filled in for a socket. Raises what `compile_template` does."""
    values = {name: _encode(value) for name, value in secrets.items()}
    values |= {NAME: msgspec.json.encode(known_as(feed)), CURSOR: msgspec.json.encode(cursor)}
    return compile_template(text, secrets=secrets).render(values)


def _encode(text: str) -> bytes:
    # An environment variable that is not UTF-8 reaches Python with its odd bytes as lone surrogates.
    return text.encode("utf-8", "surrogateescape")
