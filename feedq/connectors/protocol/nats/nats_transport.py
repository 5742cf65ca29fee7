"""nats-py's transport over streams that we opened: see `nats.aio.transport.Transport`, whose words these are.

It upholds what the URL says about TLS, which the library leaves to the server: with ``tls://`` nothing, and no
password, is sent in the clear, and with ``nats://`` a server that demands TLS is told apart from one that fails.

What the library reads goes past a `MessageFilter` first: the library gathers a line or a message however large it
says that it is, learns each server that an INFO names, and answers each PING.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import orjson
from nats.aio.transport import Transport

from feedq.connectors.wire.streams import READ_AHEAD_BYTES, Streams
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable

INFO_BYTES_MAX: Final = 64 * 1024
"""It names the servers of a cluster, hundreds of them perhaps."""
LINE_BYTES_MAX: Final = 8 * 1024
"""Of any other line; servers themselves take 4 KiB."""
SAID_BYTES_MAX: Final = 300
HEADERS_BYTES_MAX: Final = 32 * 1024
"""Of a message."""
HEADERS_BYTES_MIN: Final = len(b"NATS/1.0\r\n\r\n")
ANSWER_BYTES_MAX: Final = 256 * 1024
"""Of a message that is no record, but an answer of JetStream: the library parses it in one go."""
READ_BYTES: Final = 32 * 1024
_INFO_KEPT: Final = ("server_id", "proto", "headers", "jetstream", "nonce")
_INFO_FLAGS: Final = ("auth_required", "tls_required", "tls_available")
_END: Final = b"\r\n"
_VERSION: Final = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}")
_ERROR: Final = re.compile(rb"-ERR\s+'(?P<said>[^']+)'\s*")


class MessageFilter:
    """What a server sends, as far as the client may see it: whole lines, and messages of a bounded size.

    A message that is larger is cut to one byte over its limit, and is the last that comes through. Who looks at
    it finds it too large, and `left_out` says by how much. Raises `ValueError` for what breaks the rules.
    """

    __slots__ = ("_held", "_is_over", "_left", "_max", "left_out", "records_sid")

    def __init__(self, *, payload_bytes_max: int) -> None:
        self._max = payload_bytes_max
        self._held = bytearray()
        """The beginning of a line."""
        self._left = 0
        """Bytes of a message to come, the end of its line included."""
        self._is_over = False
        self.records_sid: bytes | None = None
        """Of the subscription whose messages are records."""
        self.left_out: int | None = None
        """The size of the message that was cut."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes through."""
        return self._is_over and not self._left

    @property
    def is_empty(self) -> bool:
        return not self._held

    def line(self, data: bytes) -> bytes | None:
        """The next line, for as long as there are no messages; None until it has come."""
        self._held += data
        end = self._held.find(_END)
        self._check_line(self._held, end)
        if end < 0:
            return None
        line = bytes(self._held[:end])
        del self._held[: end + len(_END)]
        return (_checked_info(line) if line.startswith(b"INFO") else line) + _END

    def passed(self, data: bytes) -> bytes:
        """What of the next piece may be seen."""
        if self._is_over and not self._left:
            return b""
        stream = bytes(self._held) + data
        self._held.clear()
        out: list[bytes] = []
        at, was_pinged = 0, False
        while at < len(stream) and not self.is_over:
            if self._left:
                piece = stream[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                out.append(piece)
                if self._is_over and not self._left:
                    out.append(_END)
                continue
            end = stream.find(_END, at)
            self._check_line(memoryview(stream)[at:], end - at if end >= 0 else -1)
            if end < 0:
                self._held += stream[at:]
                break
            line = stream[at:end]
            at = end + len(_END)
            match line[:4].upper():
                case b"MSG " | b"MSG\t" | b"HMSG":
                    out.append(self._message(line))
                case b"PING":
                    # One answer is enough to however many have come at once.
                    if not was_pinged:
                        out.append(b"PING\r\n")
                    was_pinged = True
                case b"PONG":
                    out.append(b"PONG\r\n")
                case b"+OK" | b"INFO":
                    pass  # where else one could connect is of no use: the runner reconnects
                case _:
                    out.append(_error(line))
        return b"".join(out)

    def _check_line(self, held: bytearray | memoryview, end: int) -> None:
        is_info = bytes(held[:4]) in b"INFO"
        most = INFO_BYTES_MAX if is_info else LINE_BYTES_MAX
        if (len(held) if end < 0 else end) > most:
            raise ValueError(f"a line of more than {most} bytes")

    def _message(self, line: bytes) -> bytes:
        kind, *fields = line.split()
        numbers = 1 if kind.upper() == b"MSG" else 2
        sizes = fields[-numbers:]
        if len(fields) - numbers not in (2, 3) or not all(
            size.isdigit() and len(size) <= 12 for size in sizes
        ):
            raise ValueError("a message whose line makes no sense")
        total = int(sizes[-1])
        headers = int(sizes[0]) if numbers == 2 else 0
        if numbers == 2 and not HEADERS_BYTES_MIN <= headers <= total:
            raise ValueError("a message with headers of an impossible size")
        most = max(self._max, ANSWER_BYTES_MAX) if fields[1] == self.records_sid else ANSWER_BYTES_MAX
        if total - headers > most or headers > HEADERS_BYTES_MAX:
            self.left_out, self._is_over, self._left = total, True, most + 1
            return b"MSG %b %d\r\n" % (b" ".join(fields[:-numbers]), most + 1)
        self._left = total + len(_END)
        return line + _END


def _checked_info(line: bytes) -> bytes:
    """The server's description of itself, without what is of no use and with what is of the right kind."""
    try:
        info = orjson.loads(line[len(b"INFO") :])
    except orjson.JSONDecodeError:
        info = None
    if not isinstance(info, dict):
        raise ValueError("an INFO that is no JSON")
    version = _VERSION.match(str(info.get("version", ""))[:100])
    max_payload = info.get("max_payload", 2**20)
    if version is None or not isinstance(max_payload, int) or not 0 < max_payload <= 2**40:
        raise ValueError("an INFO without a version and a largest payload")
    kept = {
        name: info[name] for name in ("server_id", "proto", "headers", "jetstream", "nonce") if name in info
    }
    kept |= {
        name: info[name] is True
        for name in ("auth_required", "tls_required", "tls_available")
        if name in info
    }
    return b"INFO " + orjson.dumps(kept | {"version": version[0], "max_payload": max_payload})


def _error(line: bytes) -> bytes:
    error = _ERROR.fullmatch(line)
    if error is None:
        raise ValueError("a line that is none of NATS's protocol")
    return b"-ERR '%b'\r\n" % error["said"][:SAID_BYTES_MAX].decode("utf-8", "replace").encode()


class DialedTransport(Transport):
    """One connection; it is not made anew."""

    def __init__(
        self,
        streams: Streams,
        *,
        where: object,
        wants_tls: bool,
        payload_bytes_max: int,
        fail: Callable[[FeedqError], None],
    ) -> None:
        """``fail`` gets why the connection is of no more use when the library reads what it cannot."""
        self.gate = MessageFilter(payload_bytes_max=payload_bytes_max)
        self._fail = fail
        self._streams = streams
        self._reader, self._writer = streams.reader, streams.writer
        self._where = where
        self._wants_tls = wants_tls
        self._has_tls = False

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """It is connected."""

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Go on with TLS on the same connection; ``uri`` is the name that the certificate must bear."""
        if not self._wants_tls:
            raise FeedMisconfigured(f"{self._where}: the server demands TLS; write tls:// in source.url")
        if not self.gate.is_empty:
            raise SourceUnavailable(f"{self._where}: the server went on in the clear where TLS must begin")
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=READ_AHEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        transport = await loop.start_tls(
            self._writer.transport, protocol, ssl_context, server_hostname=str(uri)
        )
        assert transport is not None
        self._reader.set_transport(transport)
        self._plain_writer, self._writer = (
            self._writer,
            asyncio.StreamWriter(transport, protocol, self._reader, loop),
        )
        self._has_tls = True

    def write(self, payload: bytes) -> None:
        self.writelines([payload])

    def writelines(self, payload: Iterable[bytes]) -> None:
        if self._wants_tls and not self._has_tls:
            raise FeedMisconfigured(
                f"{self._where}: the server offers no TLS; write nats:// in source.url to do without"
            )
        # What ended the connection is for the reader to find: the library writes while it closes, too, and does
        # not expect an error then.
        if not self._writer.transport.is_closing():
            self._writer.writelines(payload)

    async def read(self, buffer_size: int) -> bytes:
        data = b""
        while not data:
            # What is there already may be passed on; a reader that has something gives it without a pause.
            await asyncio.sleep(0)
            received = b"" if self._reader.at_eof() else await self._reader.read(READ_BYTES)
            if not received:
                return b""
            try:
                data = self.gate.passed(received)
            except ValueError as error:
                self._fail(self._broken(error))
                await asyncio.get_running_loop().create_future()  # until it is closed
            if not data and self.gate.is_over:
                await asyncio.get_running_loop().create_future()
        return data

    async def readline(self) -> bytes:
        received = b""
        try:
            while (line := self.gate.line(received)) is None:
                received = await self._reader.read(READ_BYTES)
                if not received:
                    return b""
        except ValueError as error:
            raise self._broken(error) from None
        return line

    def _broken(self, error: ValueError) -> SourceUnavailable:
        return SourceUnavailable(f"{self._where}: the server sent {error}; is it a NATS server?")

    async def drain(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()

    async def wait_closed(self) -> None:
        """There is nothing to wait for: it is cut."""

    def close(self) -> None:
        self._writer.transport.abort()
        self._streams.close()

    def at_eof(self) -> bool:
        return self._reader.at_eof()

    def __bool__(self) -> bool:
        return True
