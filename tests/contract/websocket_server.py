"""The server's side of WebSocket in raw bytes, for scripts that do right and wrong on purpose.

It is written from RFC 6455 and shares nothing with the connector, nor with the library that it uses.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct

from tests.contract.http_source import Asked, read_request

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


async def read_handshake(reader: asyncio.StreamReader) -> Asked:
    asked = await read_request(reader)
    headers = asked.headers
    assert asked.method == "GET"
    assert headers["upgrade"] == "websocket"
    assert headers["connection"] == "Upgrade"
    assert headers["sec-websocket-version"] == "13"
    assert len(base64.b64decode(headers["sec-websocket-key"])) == 16
    return asked


def acceptance(asked: Asked, *headers: str) -> bytes:
    """The answer that opens the connection, with more headers."""
    key = asked.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept}",
        *headers,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *headers: str) -> Asked:
    """Shake hands."""
    asked = await read_handshake(reader)
    writer.write(acceptance(asked, *headers))
    return asked


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, rsv1: bool = False) -> bytes:
    """A frame as a server sends it, without a mask."""
    first = opcode | (0x80 if fin else 0) | (0x40 if rsv1 else 0)
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 2**16:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(struct.pack("!H", code) + reason.encode(), CLOSE)


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Opcode and payload of a whole frame of the client. Raises `ConnectionError` if it breaks off."""
    try:
        first, second = await reader.readexactly(2)
        assert first & 0x80, "the connector sends no fragments"
        assert second & 0x80, "a client masks what it sends"
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8))
        mask = await reader.readexactly(4)
        masked = await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise ConnectionAbortedError from error
    return first & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(masked))
