"""JSON pointers (RFC 6901) over JSON that is still text.

A pointer is ``""`` (the whole document) or a path such as ``/order/lines/0/sku``; in it ``~1`` stands for
``/`` and ``~0`` for ``~``. What is not there is `MISSING`, which is not the same as a ``null`` that is.

`TextPointers` builds nothing of a document but what is pointed at: to parse one of 16 MiB takes seconds, to pass
over it hundredths of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import astuple

from feedq.core.model import JSON


class Missing(Enum):
    """Type of `MISSING`."""

    MISSING = "missing"

    def __bool__(self) -> Literal[False]:
        return False


MISSING: Final = Missing.MISSING
"""What a pointer finds where the document has nothing."""

Found: TypeAlias = JSON | Missing

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
"""An array index has no sign and no leading zero; 18 digits are more than any list has."""
_BAD_ESCAPE = re.compile(r"~(?![01])")
PLACES_MAX: Final = 256
"""Elements of an array that are told apart while it is passed over; one further behind has the array cut up."""
_BLANKS: Final = b" \t\r\n"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_EMPTY: Final = b"{}"
LEVELS_MAX: Final = 16
"""Of a document that are read in one pass."""
NOTHING: Final = msgspec.Raw(b"\0")
"""Stands in a column of JSON texts where a document has nothing: no JSON text holds a NUL."""


def parse_pointer(text: str) -> tuple[str, ...]:
    """The unescaped tokens of a pointer. Raises `ValueError`."""
    if not text:
        return ()
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON pointer: it must be empty or begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} is not a JSON pointer: '~' must be written '~0', and '/' in a name '~1'")
    # ~1 first: the other way round, "~01" would become "/" and not "~1".
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/"))


def array_index(token: str) -> int | None:
    """Which element of an array a token stands for, if it can stand for one."""
    return int(token) if _INDEX.fullmatch(token) else None


def walk(value: JSON, tokens: Sequence[str]) -> Found:
    """What the tokens of a pointer lead to in a value."""
    for token in tokens:
        if type(value) is dict and token in value:
            value = value[token]
        elif type(value) is list and (index := array_index(token)) is not None and index < len(value):
            value = value[index]
        else:
            return MISSING
    return value


Text: TypeAlias = bytes | bytearray | memoryview
Row: TypeAlias = tuple[msgspec.Raw, ...]


class TextPointers:
    """Finds the targets of several pointers in JSON texts, one text or many at once, in a pass for each level.

    What is passed over is looked at as JSON, though not as UTF-8.
    """

    def __init__(self, pointers: Sequence[str]) -> None:
        """Raises `ValueError` for a pointer that is none."""
        self._count = len(pointers)
        self._root = _Node()
        names: set[bytes] | None = set()
        for place, pointer in enumerate(pointers):
            node = self._root
            for token in parse_pointer(pointer):
                node = node.children.setdefault(token, _Node())
            node.places.append(place)
            # Longest first, as others may be in any text.
            named = sorted((t for t in parse_pointer(pointer) if array_index(t) is None), key=len)
            names = (
                names | {named[-1].encode("utf-8", "surrogatepass")} if named and names is not None else None
            )
        self._names = names
        """Of each pointer a name that a text must hold for it to find something; None if one has no names."""

    def may_find(self, text: bytes) -> bool:
        """Whether it is worth looking. False is certain: nothing is there."""
        if self._names is None or b"\\" in text:  # where a name may be written with escapes
            return True
        for name in self._names:  # noqa: SIM110 - asked of each record, and twice as fast
            if name in text:
                return True
        return False

    def find(self, text: Text) -> list[bytes | Missing]:
        """What each of the pointers points at, as JSON text.

        Raises:
            ValueError: it is not JSON, or nested deeper than can be read (about a thousand levels).
        """
        found: list[bytes | Missing] = [MISSING] * self._count
        try:
            # Said beforehand, since an exception for each of many small texts would take longer than all else.
            self._root.search(text, found, is_object=text[:1] == b"{")
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        return found

    def rows(self, texts: Sequence[bytes]) -> list[Row]:
        """What each of many texts has at the first tokens of the pointers, each once, in order of appearance.

        Raises `msgspec.DecodeError`, `RecursionError`.
        """
        return self._root.rows(texts)

    def columns(self, rows: Sequence[Row]) -> list[Sequence[msgspec.Raw]]:
        """What each pointer, none of them empty, finds in each text that `rows` has read; or `NOTHING`."""
        found: list[Sequence[msgspec.Raw]] = [()] * self._count
        self._root.search_rows(rows, found)
        return found


def is_json(text: bytes) -> bool:
    """Whether a text is one value of JSON, of at most about a thousand levels."""
    try:
        _ANY.decode(text)
        return text.isascii() or bool(text.decode())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


@dataclass
class _Node:
    """A token of some pointers, and those that follow it."""

    places: list[int] = field(default_factory=list)
    """Of the pointers that end here."""
    children: dict[str, _Node] = field(default_factory=dict)

    def search(self, text: Any, found: list[bytes | Missing], *, is_object: bool = True) -> None:
        """Find what is pointed at from here on in a text, which stands for the value here: perhaps an object."""
        if self.places:
            whole = bytes(text).strip(_BLANKS)
            for place in self.places:
                found[place] = whole
        if self.children:
            members = self._members(text) if is_object else self._members_of_any(text)
            self._search_members(members, found)

    def _search_members(self, values: Sequence[Any], found: list[bytes | Missing]) -> None:
        for child, value in zip(self.children.values(), values):  # noqa: B905 - as many
            if isinstance(value, msgspec.Raw):
                if value is not NOTHING:
                    child.search(value, found)
            elif value is not None:
                child._search_members(astuple(value), found)

    def search_rows(self, rows: Sequence[Row], found: list[Sequence[msgspec.Raw]]) -> None:
        """Find what is pointed at from here on in many texts, of which these are the `members`."""
        for child, column in zip(self.children.values(), zip(*rows, strict=True), strict=False):
            for place in child.places:
                found[place] = column
            if child.children:
                texts = [_EMPTY if value is NOTHING else value for value in column]
                child.search_rows(child.rows(texts), found)

    def rows(self, texts: Sequence[Any]) -> list[Row]:
        """The `members` of many texts."""
        if self._decoder is not None:
            try:
                return list(map(astuple, map(self._decoder.decode, texts)))
            except msgspec.ValidationError:
                pass  # one is not an object
        return list(map(self._members_of_any, texts))

    def _members(self, text: Any) -> Sequence[Any]:
        """What a JSON text of any kind has for each of the children; `NOTHING` where it has nothing.

        Where pointers only pass through a child, its own members are read with it: of a large text, each level
        would cost a pass.
        """
        if self._deep_decoder is not None:
            try:
                return astuple(self._deep_decoder.decode(text))
            except msgspec.ValidationError:
                pass  # no object, or one of those within is none
        return self._members_of_any(text)

    def _members_of_any(self, text: Any) -> Row:
        first = _first(text)
        if first == 0x7B:
            if self._decoder is not None:
                return astuple(self._decoder.decode(text))
            named = _OBJECT.decode(text)
            return tuple(named.get(name, NOTHING) for name in self.children)
        if first == 0x5B and self._last_index >= 0:
            elements = self._elements(text)
            count = len(elements)
            return tuple(
                [NOTHING if index is None or index >= count else elements[index] for index in self._indices]
            )
        _ANY.decode(text)
        return (NOTHING,) * len(self.children)

    def _elements(self, text: Any) -> Sequence[msgspec.Raw]:
        if self._last_index >= PLACES_MAX:
            return _ARRAY.decode(text)
        # Whatever comes behind the last one is passed over.
        return astuple(self._first_elements.decode(text))

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any] | None:
        struct = self._struct(levels=1)
        return None if struct is None else msgspec.json.Decoder(struct)

    @cached_property
    def _deep_decoder(self) -> msgspec.json.Decoder[Any] | None:
        struct = self._struct(levels=LEVELS_MAX)
        return None if struct is None else msgspec.json.Decoder(struct)

    def _struct(self, *, levels: int) -> Any:
        """Reads the members of an object that are pointed at; None if one has a name that no field can have: with
        a quote or a backslash."""
        fields = [
            (f"m{place}", child._kind(levels=levels - 1), NOTHING)
            for place, child in enumerate(self.children.values())
        ]
        names = {f"m{place}": name for place, name in enumerate(self.children)}
        try:
            # Unknown to the cycle collector: it refers to bytes only, and lives for a moment.
            return msgspec.defstruct("Members", fields, rename=names, gc=False)
        except ValueError:
            return None

    def _kind(self, *, levels: int) -> Any:
        """As what the value here is read: an object whose members are pointed at, or else its text."""
        may_be_array = any(index is not None for index in self._indices)
        if not levels or self.places or may_be_array:
            return msgspec.Raw
        struct = self._struct(levels=levels)
        return msgspec.Raw if struct is None else struct | None

    @cached_property
    def _first_elements(self) -> msgspec.json.Decoder[Any]:
        fields = [(f"m{place}", msgspec.Raw, NOTHING) for place in range(self._last_index + 1)]
        return msgspec.json.Decoder(msgspec.defstruct("Elements", fields, array_like=True, gc=False))

    @cached_property
    def _indices(self) -> list[int | None]:
        return list(map(array_index, self.children))

    @cached_property
    def _last_index(self) -> int:
        return max((index for index in self._indices if index is not None), default=-1)


def _first(text: Text | msgspec.Raw) -> int:
    """The first byte that is no blank; 0 if there is none."""
    with memoryview(text) as view:
        first = view[0] if view else 0
        if first not in _BLANKS:
            return first
    # Decoders of libraries give values without the blanks around them: this is a whole document.
    stripped = bytes(text).lstrip(_BLANKS)
    return stripped[0] if stripped else 0
