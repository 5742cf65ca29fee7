"""Records that are no part of a feed, such as heartbeats and acknowledgements, left out by what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from feedq.connectors.records.framing import LF, Framed
from feedq.connectors.records.pointer import MISSING, Missing, TextPointers
from feedq.connectors.records.turns import SLICE_BYTES, Steps
from feedq.model import JSON

Scalar = bool | int | float | str | None
Rule = Mapping[str, Scalar]
"""JSON pointers and the values that a record must have there, all of them."""
STEP_RECORDS = 64
VALUE_BYTES_MAX = 64 * 1024
"""A longer text is not compared: no heartbeat is told by so much."""


class Ignored:
    """Leaves out the records that one of the rules matches. A record that is not JSON is kept."""

    __slots__ = ("_find", "_rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        places: dict[str, int] = {}
        self._rules: list[list[tuple[int, Scalar]]] = [
            [(places.setdefault(pointer, len(places)), value) for pointer, value in rule.items()]
            for rule in rules
        ]
        self._find = TextPointers(tuple(places)).find

    def take(self, framed: Framed) -> Steps[Framed]:
        """What is left."""
        if framed.records:
            return replace(framed, records=tuple((yield from self._kept(framed.records))))
        if not framed.lines:
            return framed
        lines = framed.lines[:-1].split(LF)
        kept = yield from self._kept(lines)
        if len(kept) == len(lines):
            return framed
        return replace(framed, lines=LF.join([*kept, b""]))

    def _kept(self, records: Sequence[bytes]) -> Steps[list[bytes]]:
        kept, size = [], 0
        for number, record in enumerate(records, start=1):
            if not self._matches(record):
                kept.append(record)
            size += len(record)
            if number % STEP_RECORDS == 0 or size >= SLICE_BYTES:
                size = 0
                yield
        return kept

    def _matches(self, record: bytes) -> bool:
        try:
            found = [_scalar(text) for text in self._find(record)]
        except ValueError:
            return False
        return any(all(_is(found[place], value) for place, value in rule) for rule in self._rules)


def _scalar(text: bytes | Missing) -> object:
    """What a text of JSON stands for if that may be a scalar."""
    if text is MISSING or len(text) > VALUE_BYTES_MAX or text[:1] in (b"{", b"["):
        return MISSING
    return orjson.loads(text)


def _is(found: object, value: JSON) -> bool:
    # In Python true is 1 and 1 is 1.0; in JSON only the numbers are alike.
    return found == value and isinstance(found, bool) == isinstance(value, bool)
