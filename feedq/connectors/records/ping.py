r"""Pings: records that ask for an answer, such as ``PING 17``, and are no part of the feed.

A record is a ping when the pattern matches the whole of it, so that data which merely contains one stays
data. Looking at each record would cost more than landing it: the text that a pattern begins with is searched
for in all of them at once, and only records that begin so are looked at. A pattern that begins with anything
else, or holds a ``|``, has every record looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from feedq.connectors.records.framing import LF, Framed
from feedq.connectors.wire.template import unescape

_LITERAL = re.compile(r"\\(?P<escaped>[^A-Za-z0-9])|(?P<plain>[^\\.^$*+?()\[|])", re.DOTALL)
_REPEAT = re.compile(r"[*+?]|\{[0-9]*,?[0-9]*\}")
_GROUP = re.compile(r"\{([0-9]+)\}")
_WORD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Ping(BaseModel):
    """How a source asks whether we are there, and what to say."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    pattern: str = Field(
        min_length=1,
        description="Regular expression that a ping matches as a whole; costs least if it begins with plain text.",
    )
    answer: str = Field(
        min_length=1,
        description=r"Sent for each ping; `{1}` is what the first group matched, `{0}` the whole ping. "
        r"Escapes: `\n \r \t \0 \\ \xNN`.",
    )

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern.encode())
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
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
            groups = re.compile(info.data["pattern"].encode()).groups
            if beyond := [n for n in _GROUP.findall(answer) if int(n) > groups]:
                raise ValueError(f"{{{beyond[0]}}} is beyond the {groups} groups of source.ping.pattern")
        return answer


class Pinged:
    """Takes the pings out of the records of one connection."""

    __slots__ = ("_answer", "_fullmatch", "_start")

    def __init__(self, ping: Ping) -> None:
        self._fullmatch = re.compile(ping.pattern.encode()).fullmatch
        self._start = literal_start(ping.pattern).encode()
        pieces = _GROUP.split(ping.answer)
        self._answer = tuple(unescape(p) if i % 2 == 0 else int(p) for i, p in enumerate(pieces))

    def take(self, framed: Framed) -> tuple[Framed, bytes]:
        """The records that are no pings, and the answers to those that are."""
        if framed.records:
            return self._take_records(framed)
        lines = framed.lines
        kept: list[bytes] = []
        answers: list[bytes] = []
        end = 0
        for start, stop in self._candidates(lines):
            # Cut out, since `^` would not match at the beginning of a part.
            if match := self._fullmatch(lines[start:stop]):
                answers.append(self._answer_to(match))
                kept.append(lines[end:start])
                end = stop + 1
        if not answers:
            return framed, b""
        kept.append(lines[end:])
        return replace(framed, lines=b"".join(kept)), b"".join(answers)

    def _candidates(self, lines: bytes) -> Iterator[tuple[int, int]]:
        """Where lines that may be pings begin and end."""
        start = 0 if lines.startswith(self._start) else lines.find(LF + self._start) + 1
        while lines.startswith(self._start, start) and start < len(lines):
            stop = lines.find(LF, start)
            yield start, stop
            start = lines.find(LF + self._start, stop) + 1
            if not start:
                return

    def _take_records(self, framed: Framed) -> tuple[Framed, bytes]:
        matches = [self._fullmatch(record) for record in framed.records]
        answers = b"".join(self._answer_to(match) for match in matches if match)
        kept = tuple(r for r, match in zip(framed.records, matches, strict=True) if not match)
        return replace(framed, records=kept), answers

    def _answer_to(self, ping: re.Match[bytes]) -> bytes:
        # A group that took no part in the match stands for nothing.
        return b"".join(p if isinstance(p, bytes) else ping[p] or b"" for p in self._answer)


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
