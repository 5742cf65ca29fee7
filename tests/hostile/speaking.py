"""What hostile sources have in common: how they greet in each protocol, and how they send without an end."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from tests.contract.mqtt_broker import PUBLISH, SUBACK, packet, text, varint
from tests.contract.nats_server import INFO, jetstream
from tests.contract.websocket_server import accept

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

MEBIBYTE: Final = 2**20
PIECE_BYTES: Final = 2**18
BLAST_S: Final = 3.0
"""How long an attack without an end lasts: a bound shows sooner, and without one a gigabyte is taken by then."""
ENDLESS_BYTES: Final = 2**31
"""More than is sent in that time. An attack that breaks no rule sends less: its source just ends."""


async def blast(writer: asyncio.StreamWriter, data: bytes, *, bytes_max: int = ENDLESS_BYTES) -> None:
    """Send it again and again, as fast as it is read."""
    end = time.monotonic() + BLAST_S
    data *= max(1, PIECE_BYTES // len(data))
    sent = 0
    while sent < bytes_max and time.monotonic() < end:
        for start in range(0, len(data), PIECE_BYTES):
            writer.write(data[start : start + PIECE_BYTES])
            await writer.drain()
        sent += len(data)


def says(before: bytes, without_end: bytes = b"", *, bytes_max: int = ENDLESS_BYTES) -> Script:
    """Says something and goes on without an end, whatever it hears."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(before)
        if without_end:
            await blast(writer, without_end, bytes_max=bytes_max)
        await writer.drain()

    return script


def drips(data: bytes) -> Script:
    """A byte now and then."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)

    return script


# -- HTTP and WebSocket ------------------------------------------------------------------------------------


async def request(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def http(
    head: bytes,
    content: bytes | Callable[[], bytes] = b"",
    without_end: bytes = b"",
    *,
    measured: bool = False,
) -> Script:
    """Answers each request; with ``measured`` the length of the content is in its head."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = content() if callable(content) else content
        while await request(reader):
            length = b"Content-Length: %d\r\n" % len(body) if measured else b""
            writer.write(b"HTTP/1.1 200 OK\r\n" + head + length + b"\r\n")
            for start in range(0, len(body), PIECE_BYTES):
                writer.write(body[start : start + PIECE_BYTES])
                await writer.drain()
            if without_end:
                await blast(writer, without_end)
                return
            if not measured:
                return

    return script


def answers(raw: bytes, without_end: bytes = b"") -> Script:
    """What goes out for a request, head and all."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await says(raw, without_end)(reader, writer)

    return script


def websocket(raw: bytes, without_end: bytes = b"", *, bytes_max: int = ENDLESS_BYTES) -> Script:
    """Shakes hands, and sends frames."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await says(raw, without_end, bytes_max=bytes_max)(reader, writer)

    return script


def zipped(piece: bytes, count: int) -> Callable[[], bytes]:
    """Made when it is asked for, which takes seconds."""
    return partial(_zipped, piece, count)


def _zipped(piece: bytes, count: int) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(count):
            file.write(piece)
    return packed.getvalue()


# -- Redis -------------------------------------------------------------------------------------------------


def redis(to_xread: bytes, without_end: bytes = b"", *, info: bytes = b"-ERR no such key\r\n") -> Script:
    """Lets everybody in, and answers XREAD so."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = 0
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            match words[0].upper():
                case b"XINFO":
                    writer.write(info)
                case b"XREAD":
                    asked += 1
                    if asked == 1:
                        await says(to_xread, without_end)(reader, writer)
                case _:
                    writer.write(b"+OK\r\n")
            await writer.drain()

    return script


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def entries(*entries: tuple[bytes, bytes], stream: bytes = b"s") -> bytes:
    """An answer to XREAD; each entry is its id and its fields as they go over the wire."""
    inner = b"".join(b"*2\r\n" + bulk(entry_id) + fields for entry_id, fields in entries)
    return b"*1\r\n*2\r\n" + bulk(stream) + b"*%d\r\n" % len(entries) + inner


# -- MQTT --------------------------------------------------------------------------------------------------


def mqtt(
    raw: bytes, without_end: bytes = b"", *, suback: bytes = b"\x01", bytes_max: int = ENDLESS_BYTES
) -> Script:
    """Accepts a login and a subscription, and then sends this; version 5."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(b"\x20\x03\x00\x00\x00")
        asked = await reader.read(4096)
        writer.write(packet(SUBACK, asked[2:4] + b"\x00" + suback))
        if not raw and not without_end:
            await writer.drain()
            await reader.read()  # it is for the other side to end this
        await says(raw, without_end, bytes_max=bytes_max)(reader, writer)

    return script


def publish(payload: bytes, number: int = 1, *, properties: bytes = b"", qos: int = 1) -> bytes:
    head = text("t") + (number.to_bytes(2) if qos else b"") + varint(len(properties)) + properties
    return packet(PUBLISH, head + payload, flags=qos << 1)


# -- NATS --------------------------------------------------------------------------------------------------


def nats(*, on_login: Script | None = None, api: bytes | None = None, pulled: Any = None) -> Script:
    """A server with a stream; ``pulled`` makes what a pull is answered with."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(INFO).encode() + b"\r\n")
        inboxes: dict[bytes, bytes] = {}
        while line := await reader.readline():
            words = line.split()
            match words[0]:
                case b"PING":
                    writer.write(b"PONG\r\n")
                    if on_login is not None:
                        await on_login(reader, writer)
                case b"SUB":
                    inboxes[words[1].rstrip(b"*")] = words[-1]
                case b"PUB":
                    body = (await reader.readexactly(int(words[-1]) + 2))[:-2]
                    if len(words) < 4:
                        continue
                    subject, reply = words[1], words[2]
                    sid = next(sid for prefix, sid in inboxes.items() if reply.startswith(prefix))
                    if b".MSG.NEXT." in subject:
                        await pulled(reply, sid)(reader, writer)
                    else:
                        answer = api if api is not None else jetstream(subject.decode(), body)
                        writer.write(b"MSG %b %b %d\r\n%b\r\n" % (reply, sid, len(answer), answer))
            await writer.drain()

    return script


def record_of_stream(sid: bytes, seq: int, payload: bytes) -> bytes:
    reply = b"$JS.ACK.orders.c.1.%d.%d.1795167253292007528.0" % (seq, seq)
    return b"MSG orders.new %b %b %d\r\n%b\r\n" % (sid, reply, len(payload), payload)
