"""MQTT, packet by packet, as far as tests need it: for scripted brokers, clients made by hand, and taps."""

from __future__ import annotations

import struct

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
