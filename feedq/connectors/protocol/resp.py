"""Answers of a Redis server, read as they come and within limits: the second version of its protocol, RESP.

A number at the beginning of a value says how large it is, and a server may write any number there. So nothing is
made room for before it has arrived, an array is read element by element, and a text is only kept where the reader
has said how much of it it wants.

`RespParser` stands in the place of redis-py's own parser, which holds an answer as a whole, whatever its size.
"""

from __future__ import annotations

import asyncio
import builtins
import re
from typing import Any, Final, NamedTuple

from redis._parsers.base import AsyncBaseParser
from redis.exceptions import ConnectionError, InvalidResponse, RedisError, ResponseError, TimeoutError

READ_BYTES: Final = 64 * 1024
"""Read at once; after each piece other feeds have their turn."""
LINE_BYTES_MAX: Final = 4 * 1024
"""Of a line that begins a value; errors are no longer either."""
TEXT_BYTES_MAX: Final = 512 * 2**20
"""No server sends a longer text, unless it is configured to."""
DEPTH_MAX: Final = 8
VALUES_MAX: Final = 10_000
"""Of an answer that is read as a whole."""
KEPT_BYTES_MAX: Final = 64 * 1024
"""Of each text of such an answer."""
_END: Final = b"\r\n"
_INTEGER: Final = re.compile(rb":[+-]?[0-9]{1,19}")


class LeftOut(NamedTuple):
    """A text that is larger than what is kept."""

    size: int


class RespParser(AsyncBaseParser):
    """Reads one connection."""

    def __init__(self, socket_read_size: int) -> None:
        super().__init__(socket_read_size)
        self._stream: asyncio.StreamReader | None = None
        self._buffer = b""
        self._at = 0
        self.idle_timeout_s = 0.0
        """How long a part of an answer is waited for; 0 is for ever. Then redis-py's `TimeoutError` is raised."""

    # -- what redis-py asks of it ----------------------------------------------------------------------

    def on_connect(self, connection: Any) -> None:
        self._stream = connection._reader
        self._buffer, self._at = b"", 0

    def on_disconnect(self) -> None:
        self._stream = None

    async def can_read(self) -> bool:
        return self._at < len(self._buffer)

    async def can_read_destructive(self) -> bool:
        return await self.can_read()

    async def read_response(self, disable_decoding: bool = False) -> Any:
        """An answer as a whole; that of a server that refuses is its error, which is returned."""
        try:
            return await self._value(DEPTH_MAX, [VALUES_MAX])
        except ResponseError as error:
            return error

    # -- piece by piece --------------------------------------------------------------------------------

    async def array(self, *, at_most: int) -> int:
        """How many elements the array has that begins here; none for a nil.

        Raises:
            RedisError: it is an error; `InvalidResponse` if it is no array, or one of more elements.
        """
        count = _number(await self._header(b"*"))
        if count > at_most:
            raise InvalidResponse(f"an array of {count} elements where at most {at_most} can be")
        return max(count, 0)

    async def text(self, *, at_most: int) -> bytes | LeftOut:
        """The text that begins here, unless it is larger: then the stream stands before it."""
        size = _number(await self._header(b"$"))
        if size < 0:
            raise InvalidResponse("a nil where a text must be")
        return LeftOut(size) if size > at_most else await self._take(size)

    async def skip(self, left_out: LeftOut) -> None:
        """Go on behind a text that was left out."""
        left = left_out.size + len(_END)
        while left > len(self._buffer) - self._at:
            left -= len(self._buffer) - self._at
            self._buffer, self._at = b"", 0
            await self._read()
        self._at += left

    async def _value(self, depth: int, budget: list[int]) -> Any:
        budget[0] -= 1
        if depth < 0 or budget[0] < 0:
            raise InvalidResponse(
                f"an answer of more than {VALUES_MAX} values, or nested deeper than {DEPTH_MAX}"
            )
        line = await self._line()
        match line[:1]:
            case b"+":
                return line[1:]
            case b":" if _INTEGER.fullmatch(line):
                return int(line[1:])
            case b"-":
                raise self._error(line)
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
        raise InvalidResponse("what it answered is not Redis's protocol")

    async def _header(self, kind: bytes) -> bytes:
        line = await self._line()
        if line[:1] == kind:
            return line[1:]
        if line[:1] == b"-":
            raise self._error(line)
        raise InvalidResponse("its answer has another form than Redis gives it")

    def _error(self, line: bytes) -> RedisError:
        error: RedisError = self.parse_error(line[1:].decode("utf-8", "replace"))  # type: ignore[no-untyped-call] # redis-py's
        return error

    # -- bytes -----------------------------------------------------------------------------------------

    async def _line(self) -> bytes:
        while (end := self._buffer.find(_END, self._at)) < 0:
            if len(self._buffer) - self._at > LINE_BYTES_MAX:
                raise InvalidResponse(f"a line of more than {LINE_BYTES_MAX} bytes; is it a Redis server?")
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
            raise InvalidResponse("a text that is not as long as it says")
        self._at = end + len(_END)
        return text

    async def _read(self) -> None:
        if self._stream is None:
            raise ConnectionError("not connected")
        # A reader that has something gives it without a pause.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self.idle_timeout_s or None):
                data = await self._stream.read(READ_BYTES)
        except builtins.TimeoutError:
            raise TimeoutError("no answer") from None
        except OSError as error:
            raise ConnectionError(str(error)) from error
        if not data:
            raise ConnectionError("Connection closed by server.")
        self._buffer, self._at = self._buffer[self._at :] + data, 0


def _number(text: bytes) -> int:
    if text == b"-1":
        return -1
    if not text.isdigit() or len(text) > 18:
        raise InvalidResponse("a length that is none")
    number = int(text)
    if number > TEXT_BYTES_MAX:
        raise InvalidResponse(f"a text or an array of {number}, at most {TEXT_BYTES_MAX} are read")
    return number
