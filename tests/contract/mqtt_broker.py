"""A broker that a test writes the answers of: one session, in which messages wait until they are acknowledged."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from feedq.testing.loopback import serving, until


class ScriptedBroker:
    """As a broker behaves, but for what a test sets otherwise before a connection is made."""

    def __init__(self, *, is_5: bool = True) -> None:
        self.port = 0
        self.refusal = 0
        """The reason in the answer to CONNECT."""
        self.granted: Sequence[int] | None = None
        """The answer to SUBSCRIBE; otherwise each topic is granted what was asked for."""
        self.session_present = False
        self.answers_pings = True
        self.pings = 0
        self.connections: list[bytes] = []
        """The body of each CONNECT."""
        self.acknowledged: list[int] = []
        self._is_5 = is_5
        self.subscribed: list[tuple[int | None, bytes]] = []
        """Identifier and topic filters of each SUBSCRIBE."""
        self._waiting: dict[int, tuple[bytes, bytes, bytes]] = {}
        self._sent: set[int] = set()
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[ScriptedBroker]:
        async with serving(self._serve) as port:
            self.port = port
            yield self

    async def publish(
        self,
        payloads: Sequence[bytes],
        *,
        topic: bytes = b"t",
        number: int = 0,
        subscriptions: Sequence[int] = (),
    ) -> None:
        """For the session, with QoS 1, and a packet identifier of the broker's own choice unless one is given."""
        properties = b"".join(b"\x0b" + varint(one) for one in subscriptions)
        for payload in payloads:
            self._number = number or self._number % 65_535 + 1
            self._waiting[self._number] = (topic, payload, properties)
            self._sent.discard(self._number)
        self._send_waiting()
        if self._writer is not None:
            await self._writer.drain()

    def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def dismiss(self, reason: int) -> None:
        self.send(packet(DISCONNECT, bytes([reason, 0])))

    async def until_subscribed(self) -> None:
        await until(lambda: self._writer is not None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets = Packets()
        try:
            while data := await reader.read(65_536):
                for kind, _, body in packets.push(data):
                    self._handle(kind, body, writer)
                await writer.drain()
        finally:
            self._writer = None

    def _handle(self, kind: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == CONNECT:
            self.connections.append(body)
            end = b"\0" if self._is_5 else b""
            writer.write(packet(CONNACK, bytes([self.session_present, self.refusal]) + end))
            if self.session_present and self._sent:
                # What a session has subscribed to goes on without being asked for again.
                self._writer = writer
                self._send_all()
            self.session_present = True
        elif kind == SUBSCRIBE:
            size = body.count(b"t/")
            self.subscribed.append(subscription_of(body) if self._is_5 else (None, body[2:]))
            asked = self.granted[:size] if self.granted is not None else [1] * size
            self.granted = self.granted and self.granted[size:]
            writer.write(packet(SUBACK, body[:2] + (b"\0" if self._is_5 else b"") + bytes(asked)))
            if self._writer is not writer:
                self._writer = writer
                self._send_all()
        elif kind == PUBACK:
            number = struct.unpack("!H", body[:2])[0]
            self.acknowledged.append(number)
            self._waiting.pop(number, None)
            self._sent.discard(number)
        elif kind == PINGREQ:
            self.pings += 1
            if self.answers_pings:
                writer.write(packet(PINGRESP, b""))

    def _send_all(self) -> None:
        for number in self._waiting:
            self._send_message(number, is_again=number in self._sent)
            self._sent.add(number)

    def _send_waiting(self) -> None:
        if self._writer is not None:
            for number in self._waiting:
                if number not in self._sent:
                    self._send_message(number, is_again=False)
                    self._sent.add(number)

    def _send_message(self, number: int, *, is_again: bool) -> None:
        assert self._writer is not None
        topic, payload, properties = self._waiting[number]
        about = varint(len(properties)) + properties if self._is_5 else b""
        body = text(topic) + struct.pack("!H", number) + about + payload
        self._writer.write(packet(PUBLISH, body, flags=0x02 | (0x08 if is_again else 0)))


def subscription_of(body: bytes) -> tuple[int | None, bytes]:
    """The identifier in a SUBSCRIBE of MQTT 5, and what follows its properties."""
    size = body[2]
    properties, topics = body[3 : 3 + size], body[3 + size :]
    if properties[:1] != b"\x0b":
        return None, topics
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(properties[1:])), topics


# -- packet by packet --------------------------------------------------------------------------------

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, DISCONNECT = 1, 2, 3, 4, 8, 9, 14
FOR_EVER = 2**32 - 1
PINGREQ, PINGRESP = 12, 13


def packet(kind: int, body: bytes, *, flags: int = 0) -> bytes:
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


def varint(number: int) -> bytes:
    digits = []
    while True:
        number, digit = divmod(number, 128)
        digits.append(digit | (0x80 if number else 0))
        if not number:
            return bytes(digits)


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("!H", len(data)) + data


class Packets:
    """Cuts a stream of bytes into packets: kind, flags, body."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def push(self, data: bytes) -> list[tuple[int, int, bytes]]:
        self._buffer += data
        found = []
        while (end := self._head()) is not None:
            start, stop = end
            first = self._buffer[0]
            found.append((first >> 4, first & 0x0F, bytes(self._buffer[start:stop])))
            del self._buffer[:stop]
        return found

    def _head(self) -> tuple[int, int] | None:
        length = 0
        for index in range(1, min(5, len(self._buffer))):
            digit = self._buffer[index]
            length |= (digit & 0x7F) << 7 * (index - 1)
            if not digit & 0x80:
                start = index + 1
                return (start, start + length) if len(self._buffer) >= start + length else None
        return None
