"""Records that are no part of a feed: pings and what is ignored because of its values.

A ping is a record that begins with a given text and asks for an answer, such as ``PING 17``. Looking at each
record would cost more than landing it, so the text is searched for in all of them at once, and records are looked
at one by one only where it is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import orjson
from pydantic import Field, field_validator

from feedq.core.model import JSON
from feedq.core.values import StrictModel
from feedq.records.framing import LF, Framed
from feedq.records.pointer import MISSING, Missing, TextPointers
from feedq.records.template import compile_template, unescape
from feedq.records.turns import Steps

PING_BYTES_MAX: Final = 4 * 1024
"""A longer record is no ping: it would be repeated in the answer."""
REST: Final = "rest"
"""The placeholder in an answer."""
Scalar = bool | int | float | str | None
Rule = Mapping[str, Scalar]
"""JSON pointers and the values that a record must have there, all of them."""
VALUE_BYTES_MAX = 64 * 1024
"""A longer text is not compared: no heartbeat is told by so much."""


class Ping(StrictModel):
    """How a source asks whether we are there, and what to say."""

    prefix: Annotated[str, Field(min_length=1, max_length=1000)]
    r"""A record of at most 4 KiB that begins with this text is a ping. Escapes: `\n \r \t \0 \\ \xNN`."""
    answer: Annotated[str, Field(min_length=1)]
    r"""Sent for each ping; `{rest}` is what follows the prefix in it. Escapes as in `prefix`."""

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        unescape(prefix)
        return prefix

    @field_validator("answer")
    @classmethod
    def _check_answer(cls, answer: str) -> str:
        compile_template(answer, known=frozenset({REST}))
        return answer


class Pinged:
    """Takes the pings out of the records of one connection."""

    def __init__(self, ping: Ping) -> None:
        self._prefix = unescape(ping.prefix)
        self._answer = compile_template(ping.answer, known=frozenset({REST}))

    def take(self, framed: Framed) -> Steps[tuple[Framed, bytes]]:
        """What is left, and the answers to send."""
        prefix, answers = self._prefix, []
        if framed.lines and not framed.lines.startswith(prefix) and LF + prefix not in framed.lines:
            return framed, b""

        def is_ping(record: bytes) -> bool:
            if not record.startswith(prefix) or len(record) > PING_BYTES_MAX:
                return False
            answers.append(self._answer.render({REST: record[len(prefix) :]}))
            return True

        left = yield from framed.without(is_ping)
        return left, b"".join(answers)


class Ignored:
    """Leaves out the records that one of the rules matches. A record that is not JSON is kept."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        places: dict[str, int] = {}
        self._rules: list[list[tuple[int, Scalar]]] = [
            [(places.setdefault(pointer, len(places)), value) for pointer, value in rule.items()]
            for rule in rules
        ]
        self._find = TextPointers(tuple(places)).find

    def take(self, framed: Framed) -> Steps[Framed]:
        """What is left."""
        return framed.without(self._matches)

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
