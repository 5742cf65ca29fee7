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
_ABSENT: Final = msgspec.Raw(b"")


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


Text: TypeAlias = bytes | bytearray | memoryview


class TextPointers:
    """Finds what some pointers point at in JSON texts, in one pass for each level.

    What is passed over is looked at as JSON, though not as UTF-8.
    """

    def __init__(self, pointers: Sequence[str]) -> None:
        """Raises `ValueError` for a pointer that is none."""
        self._count = len(pointers)
        self._root = _Node()
        for place, pointer in enumerate(pointers):
            node = self._root
            for token in parse_pointer(pointer):
                node = node.children.setdefault(token, _Node())
            node.places.append(place)

    def find(self, text: Text) -> list[bytes | Missing]:
        """What each of the pointers points at, as JSON text.

        Raises:
            ValueError: it is no JSON, or nested deeper than can be read (about a thousand levels).
        """
        found: list[bytes | Missing] = [MISSING] * self._count
        root = self._root
        try:
            if text[:1] == b"{" and root.children and not root.places:
                root.search_object(text, found)  # nearly always
            else:
                root.search(text, found)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
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

    def search(self, text: Any, found: list[bytes | Missing]) -> None:
        """Find what is pointed at from here on in a text, which stands for the value here."""
        if self.places:
            whole = bytes(text).strip(_BLANKS)
            for place in self.places:
                found[place] = whole
        if not self.children:
            return
        match _first(text):
            case 0x7B:
                self.search_object(text, found)
            case 0x5B:
                self._search_array(text, found)
            case _:
                _ANY.decode(text)

    def search_object(self, text: Any, found: list[bytes | Missing]) -> None:
        passing = self._passing
        if passing is not None:
            try:
                self._collect(passing.decode(text), found)
            except msgspec.ValidationError:
                pass  # further down there is something else than an object: perhaps a member that is there twice
            else:
                return
        named = _OBJECT.decode(text)
        for name, child in self.children.items():
            if name in named:
                child.search(named[name], found)

    def _collect(self, read: msgspec.Struct, found: list[bytes | Missing]) -> None:
        for name, child in self._kids:
            value = getattr(read, name)
            if value is _ABSENT or value is None:
                continue
            if not child.children:
                text = bytes(value)
                for place in child.places:
                    found[place] = text
            elif isinstance(value, msgspec.Struct):
                child._collect(value, found)
            else:
                child.search(value, found)

    def _search_array(self, text: Any, found: list[bytes | Missing]) -> None:
        if self._last_index >= PLACES_MAX:
            elements = _ARRAY.decode(text)
        else:
            # Whatever comes behind the last one is passed over.
            read = self._elements.decode(text)
            elements = [getattr(read, name) for name in read.__struct_fields__]
        for index, child in self._indices:
            if index < len(elements) and elements[index] is not _ABSENT:
                child.search(elements[index], found)

    @cached_property
    def _kids(self) -> list[tuple[str, _Node]]:
        """The children by the names of their fields in `_object`."""
        return [(f"m{place}", child) for place, child in enumerate(self.children.values())]

    @cached_property
    def _passing(self) -> msgspec.json.Decoder[Any] | None:
        """Reads the members of an object that are pointed at, and theirs, in one pass."""
        return None if self._object is None else msgspec.json.Decoder(self._object)

    @cached_property
    def _object(self) -> Any:
        """The type of an object with what is pointed at in it; None if a member has a name that no field can."""
        fields = []
        for (field_name, child), name in zip(self._kids, self.children, strict=True):
            kind = child._type
            # A null is passed through as well as an object; nothing is pointed at in it.
            kind, nothing = (kind, _ABSENT) if kind is msgspec.Raw else (kind | None, None)
            fields.append((field_name, kind, msgspec.field(name=name, default=nothing)))
        try:
            return msgspec.defstruct("Members", fields)
        except ValueError:
            return None

    @property
    def _type(self) -> Any:
        """What to read a value as: text, unless it is passed through on the way to its members."""
        is_passed = self.children and not self.places and not self._indices
        return self._object if is_passed and self._object is not None else msgspec.Raw

    @cached_property
    def _elements(self) -> msgspec.json.Decoder[Any]:
        nothing = msgspec.field(default=_ABSENT)
        fields = [(f"m{place}", msgspec.Raw, nothing) for place in range(self._last_index + 1)]
        return msgspec.json.Decoder(msgspec.defstruct("Elements", fields, array_like=True))

    @cached_property
    def _indices(self) -> list[tuple[int, _Node]]:
        found = [(array_index(token), child) for token, child in self.children.items()]
        return [(index, child) for index, child in found if index is not None]

    @cached_property
    def _last_index(self) -> int:
        return max((index for index, _ in self._indices), default=-1)


def _first(text: Text | msgspec.Raw) -> int:
    """The first byte that is no blank; 0 if there is none."""
    with memoryview(text) as view:
        first = view[0] if view else 0
        if first not in _BLANKS:
            return first
    # Decoders of libraries give values without the blanks around them: this is a whole document.
    stripped = bytes(text).lstrip(_BLANKS)
    return stripped[0] if stripped else 0
