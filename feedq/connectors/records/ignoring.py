"""Records that are no part of a feed, such as heartbeats and acknowledgements, left out by what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from feedq.connectors.records.framing import LF, Framed
from feedq.connectors.records.pointer import Pointer, compile_pointer
from feedq.model import JSON

Scalar = bool | int | float | str | None
Rule = Mapping[str, Scalar]
"""JSON pointers and the values that a record must have there, all of them."""


class Ignored:
    """Leaves out the records that one of the rules matches. A record that is not JSON is kept."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules: list[list[tuple[Pointer, Scalar]]] = [
            [(compile_pointer(pointer), value) for pointer, value in rule.items()] for rule in rules
        ]

    def take(self, framed: Framed) -> Framed:
        """What is left."""
        if framed.records:
            return replace(framed, records=tuple(r for r in framed.records if not self._matches(r)))
        if not framed.lines:
            return framed
        lines = framed.lines[:-1].split(LF)
        kept = [line for line in lines if not self._matches(line)]
        if len(kept) == len(lines):
            return framed
        return replace(framed, lines=LF.join([*kept, b""]))

    def _matches(self, record: bytes) -> bool:
        try:
            document = orjson.loads(record)
        except orjson.JSONDecodeError:
            return False
        return any(all(_is(find(document), value) for find, value in rule) for rule in self._rules)


def _is(found: object, value: JSON) -> bool:
    # In Python true is 1 and 1 is 1.0; in JSON only the numbers are alike.
    return found == value and isinstance(found, bool) == isinstance(value, bool)
