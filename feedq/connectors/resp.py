"""Commands to a Redis server, and its answers: RESP, version 2, read as it comes and within limits.

A number at the beginning of a value says how large it is, and a server may write any number there. So nothing is
made room for before it has arrived, an array is read element by element, and a text is only kept where the reader
has said how much of it it wants. redis-py, which holds an answer as a whole, whatever its size, cannot do that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from feedq.connectors.wire.connection import SourceConnection
from feedq.errors import SourceSilent, SourceUnavailable

LINE_BYTES_MAX: Final = 4 * 1024
"""Of a line that begins a value; errors are no longer either."""
TEXT_BYTES_MAX: Final = 512 * 2**20
"""No server sends a longer text, unless it is configured to."""
DEPTH_MAX: Final = 8
VALUES_MAX: Final = 50_000
"""Of an answer that is read as a whole. That to XINFO has the first and the last entry of a stream in it."""
KEPT_BYTES_MAX: Final = 64
"""Of each text of such an answer: names and ids are no longer."""
_END: Final = b"\r\n"
_INTEGER: Final = re.compile(rb":[+-]?[0-9]{1,19}")


class RedisRefusal(Exception):
    """The server's refusal of a command."""


class BrokenAnswer(Exception):
    """An answer that no Redis server gives."""


class LeftOut(NamedTuple):
    """A text too large to be kept."""

    size: int


class RedisLink:
    """Reads one connection to a server. Methods raise `SourceUnavailable` when it has ended."""

    def __init__(self, connection: SourceConnection, *, where: object) -> None:
        self._connection = connection
        self._where = where
        self._buffer = b""
        self._at = 0
        self.idle_timeout_s = 0.0
        """How long a part of an answer is waited for; 0 is for ever."""

    def send(self, *commands: Sequence[str | bytes | int]) -> None:
        """All of them in one packet."""
        self._connection.send(b"".join(map(_packed, commands)))

    async def answer(self, *, unless: str | None = None) -> Any:
        """An answer as a whole; None for a refusal that holds the text ``unless``, which is expected."""
        try:
            return await self._value(DEPTH_MAX, [VALUES_MAX])
        except RedisRefusal as refusal:
            if unless is None or unless not in str(refusal):
                raise
            return None

    def close(self) -> None:
        """Close it at once: nothing of ours is on its way. May be repeated."""
        self._connection.close()

    # -- piece by piece --------------------------------------------------------------------------------

    async def array(self, *, at_most: int) -> int:
        """How many elements the array has that begins here; none for a nil.

        Raises:
            RedisRefusal: it is an error; `BrokenAnswer` if it is not an array, or one of more elements.
        """
        count = _number(await self._header(b"*"))
        if count > at_most:
            raise BrokenAnswer(f"an array of {count} elements; at most {at_most} are expected")
        return max(count, 0)

    async def text(self, *, at_most: int) -> bytes | LeftOut:
        """The text that begins here, unless it is larger: then the stream stands before it."""
        size = _number(await self._header(b"$"))
        if size < 0:
            raise BrokenAnswer("a nil instead of a text")
        return LeftOut(size) if size > at_most else await self._take(size)

    async def skip(self, left_out: LeftOut) -> None:
        """Skip a text that was left out."""
        left = left_out.size + len(_END)
        while left > len(self._buffer) - self._at:
            left -= len(self._buffer) - self._at
            self._buffer, self._at = b"", 0
            await self._read()
        self._at += left

    async def _value(self, depth: int, budget: list[int]) -> Any:
        budget[0] -= 1
        if depth < 0 or budget[0] < 0:
            raise BrokenAnswer(
                f"an answer of more than {VALUES_MAX} values, or nested deeper than {DEPTH_MAX}"
            )
        line = await self._line()
        match line[:1]:
            case b"+":
                return line[1:]
            case b":" if _INTEGER.fullmatch(line):
                return int(line[1:])
            case b"-":
                raise _refusal(line)
            case b"$":
                size = _number(line[1:])
                if size <= KEPT_BYTES_MAX:
                    return None if size < 0 else await self._take(size)
                left_out = LeftOut(size)
                await self.skip(left_out)
                return left_out
            case b"*":
                count = _number(line[1:])
                # One after the other: what an array says of its length costs nothing before it is there.
                return None if count < 0 else [await self._value(depth - 1, budget) for _ in range(count)]
        raise BrokenAnswer("its answer is not in Redis's protocol")

    async def _header(self, kind: bytes) -> bytes:
        line = await self._line()
        if line[:1] == kind:
            return line[1:]
        if line[:1] == b"-":
            raise _refusal(line)
        raise BrokenAnswer("its answer does not have the form that Redis gives it")

    # -- bytes -----------------------------------------------------------------------------------------

    async def _line(self) -> bytes:
        while (end := self._buffer.find(_END, self._at)) < 0:
            if len(self._buffer) - self._at > LINE_BYTES_MAX:
                raise BrokenAnswer(f"a line of more than {LINE_BYTES_MAX} bytes; is it a Redis server?")
            await self._read()
        line, self._at = self._buffer[self._at : end], end + len(_END)
        return line

    async def _take(self, size: int) -> bytes:
        end = self._at + size
        if end + len(_END) <= len(self._buffer):
            text = self._buffer[self._at : end]
        else:
            pieces = [self._buffer[self._at :]]
            left = size + len(_END) - len(pieces[0])
            while left > 0:
                self._buffer, self._at = b"", 0
                await self._read()
                pieces.append(self._buffer)
                left -= len(self._buffer)
            whole = b"".join(pieces)
            text, self._buffer, end = whole[:size], whole[size:], 0
        if self._buffer[end : end + len(_END)] != _END:
            raise BrokenAnswer("a text that is not as long as declared")
        self._at = end + len(_END)
        return text

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self.idle_timeout_s or None):
                piece = await self._connection.receive()
        except TimeoutError:
            raise SourceSilent(
                f"{self._where}: connected, but no answer for {self.idle_timeout_s:g} s (source.idle_timeout_s)"
            ) from None
        if not piece:
            raise SourceUnavailable(f"{self._where}: closed by the server")
        self._buffer, self._at = self._buffer[self._at :] + piece, 0


def _packed(command: Sequence[str | bytes | int]) -> bytes:
    words = [
        word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape") for word in command
    ]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _refusal(line: bytes) -> RedisRefusal:
    return RedisRefusal(line[1:].decode("utf-8", "replace"))


def _number(text: bytes) -> int:
    if text == b"-1":
        return -1
    if not text.isdigit() or len(text) > 18:
        raise BrokenAnswer("an invalid length")
    number = int(text)
    if number > TEXT_BYTES_MAX:
        raise BrokenAnswer(f"a text or an array of {number}; at most {TEXT_BYTES_MAX} is read")
    return number
