r"""Records that are no part of a feed: pings and what is left out by what is in it.

A ping is a record that asks for an answer, such as ``PING 17``.

A record is a ping when the pattern matches the whole of it, so that data which merely contains one stays
data. Looking at each record would cost more than landing it: the text that a pattern begins with is searched
for in all of them at once, and only records that begin so are looked at. A pattern that begins with anything
else, or holds a ``|``, has every record looked at.

The patterns are a user's and the records a source's, so they meet in RE2, which takes a time that grows with both
but never doubles with each byte, as backtracking engines do: one such pattern would stop the worker for good. RE2
has no back references and no look-around; a feed that asks for them is refused when it is declared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final

import orjson
import re2
from pydantic import Field, ValidationInfo, field_validator

from feedq.model import JSON
from feedq.records.framing import LF, Framed
from feedq.records.pointer import MISSING, Missing, TextPointers
from feedq.records.template import unescape
from feedq.records.turns import Steps
from feedq.values import StrictModel

PING_BYTES_MAX: Final = 4 * 1024
"""A longer record is no ping. With `PATTERN_MEMORY_BYTES` it bounds the time that one of them can take."""
PATTERN_MEMORY_BYTES: Final = 256 * 1024
"""What a compiled pattern may take: enough for some thousand steps."""
_LITERAL = re.compile(r"\\(?P<escaped>[^A-Za-z0-9])|(?P<plain>[^\\.^$*+?()\[|])", re.DOTALL)
_REPEAT = re.compile(r"[*+?]|\{[0-9]*,?[0-9]*\}")
_GROUP = re.compile(r"\{([0-9]+)\}")
_WORD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPEN_REPEAT = re.compile(r"(?:^|[^\\])(?P<repeat>\{,(?P<most>[0-9]+)\})")
"""Python's engine reads it as from none to so many, RE2 as the text that it is."""
Scalar = bool | int | float | str | None
Rule = Mapping[str, Scalar]
"""JSON pointers and the values that a record must have there, all of them."""
VALUE_BYTES_MAX = 64 * 1024
"""A longer text is not compared: no heartbeat is told by so much."""


class Ping(StrictModel):
    """How a source asks whether we are there, and what to say."""

    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    """Regular expression that a ping matches as a whole; costs least if it begins with plain text. In the
    syntax of RE2: without back references and look-around."""
    answer: Annotated[str, Field(min_length=1)]
    r"""Sent for each ping; `{1}` is what the first group matched, `{0}` the whole ping. Escapes: `\n \r \t \0
    \\ \xNN`."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        if open_repeat := _OPEN_REPEAT.search(pattern):
            raise ValueError(
                f"{open_repeat['repeat']} is taken for plain text; write {{0,{open_repeat['most']}}}"
            )
        _compiled(pattern)
        return pattern

    @field_validator("answer")
    @classmethod
    def _check_answer(cls, answer: str, info: ValidationInfo) -> str:
        unescape(answer)
        if word := _WORD.search(answer):
            raise ValueError(
                f"{word.group()} is no placeholder; known are {{0}} for the ping, {{1}} and so on"
            )
        if "pattern" in info.data:
            groups = _compiled(info.data["pattern"]).groups
            if beyond := [n for n in _GROUP.findall(answer) if int(n) > groups]:
                raise ValueError(f"{{{beyond[0]}}} is beyond the {groups} groups of source.ping.pattern")
        return answer


class Pinged:
    """Takes the pings out of the records of one connection."""

    def __init__(self, ping: Ping) -> None:
        self._fullmatch = _compiled(ping.pattern).fullmatch
        self._start = literal_start(ping.pattern).encode()
        pieces = _GROUP.split(ping.answer)
        self._answer = tuple(unescape(p) if i % 2 == 0 else int(p) for i, p in enumerate(pieces))
        self._groups = {piece for piece in self._answer if isinstance(piece, int)}

    def take(self, framed: Framed) -> Steps[tuple[Framed, bytes]]:
        """What is left, and the answers to send."""
        start, answers = self._start, []
        if framed.lines and not framed.lines.startswith(start) and LF + start not in framed.lines:
            return framed, b""

        def is_ping(record: bytes) -> bool:
            match = self._match(record) if record.startswith(start) else None
            if match:
                answers.append(self._answer_to(match))
            return bool(match)

        left = yield from framed.without(is_ping)
        return left, b"".join(answers)

    def _match(self, record: bytes) -> Any:
        return self._fullmatch(record) if len(record) <= PING_BYTES_MAX else None

    def _answer_to(self, ping: Any) -> bytes:
        # A group that took no part in the match stands for nothing. To ask for one takes microseconds.
        groups = {number: ping[number] or b"" for number in self._groups}
        return b"".join(p if isinstance(p, bytes) else groups[p] for p in self._answer)


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


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """A pattern over bytes. Raises `ValueError` for one that is none, or is none of RE2's."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern.encode(), options=options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if error.args else "unknown"
        raise ValueError(
            f"is no regular expression of RE2, whose patterns take linear time: {said}; it has no back "
            "references, no look-around and no possessive repeats"
        ) from None


def literal_start(pattern: str) -> str:
    """Text that whatever a regular expression matches begins with; perhaps shorter than it could be."""
    if "|" in pattern:
        return ""
    pattern = pattern.removeprefix("^")
    literal: list[str] = []
    end = 0
    while match := _LITERAL.match(pattern, end):
        # What may be repeated may be missing altogether.
        if _REPEAT.match(pattern, match.end()):
            break
        literal.append(match["escaped"] or match["plain"])
        end = match.end()
    return "".join(literal)


def _scalar(text: bytes | Missing) -> object:
    """What a text of JSON stands for if that may be a scalar."""
    if text is MISSING or len(text) > VALUE_BYTES_MAX or text[:1] in (b"{", b"["):
        return MISSING
    return orjson.loads(text)


def _is(found: object, value: JSON) -> bool:
    # In Python true is 1 and 1 is 1.0; in JSON only the numbers are alike.
    return found == value and isinstance(found, bool) == isinstance(value, bool)
