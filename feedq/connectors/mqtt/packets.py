"""Packets of MQTT, judged by their first bytes before paho makes room for them; `PahoSocket` asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PACKET_BYTES_MAX: Final = 4 * 1024
"""Of all packets but a PUBLISH: they hold some numbers, a reason, and perhaps a few properties."""
PROPERTIES_BYTES_MAX: Final = 4 * 1024
"""Of a PUBLISH; paho takes a time for them that grows with their square, half a second for 16 KiB."""
TOPIC_BYTES_MAX: Final = 64 * 1024
_PUBLISH: Final = 3
_FROM_BROKERS: Final = frozenset((2, _PUBLISH, 9, 11, 13, 14))
"""CONNACK, PUBLISH, SUBACK, UNSUBACK, PINGRESP, DISCONNECT: what a broker sends to a client that only subscribes.
paho answers others, or keeps them, without a bound, and so it does with messages of QoS 2."""
_QOS: Final = 0b0110


@dataclass(frozen=True, slots=True)
class PacketRefusal:
    """The reason why nothing more is read."""

    why: str
    payload_bytes: int = 0
    """Of a PUBLISH that is too large, about; 0: the broker breaks the rules."""


class PacketFilter:
    """Looks at packets as paho reads them: piece by piece, and none beyond the end of what it asked for."""

    def __init__(self, *, payload_bytes_max: int, is_5: bool) -> None:
        self._max = payload_bytes_max
        self._is_5 = is_5
        self._kind = self._qos = 0
        """Of the packet that has begun; none has while the kind is 0."""
        self._size = self._shift = 0
        self._left: int | None = None
        """Bytes of its body to come; None while its length is read."""
        self._begin: bytearray | None = None
        """Of a PUBLISH with properties, as much as says how long they are."""
        self.refusal: PacketRefusal | None = None

    def inspect(self, piece: memoryview) -> None:
        """Look at a piece, which is of one byte until the body begins."""
        if not self._kind:
            self._open(piece[0])
        elif self._left is None:
            self._measure(piece[0])
        else:
            if self._begin is not None:
                self._inspect_publish(piece)
            self._left -= len(piece)
            if not self._left:
                self._kind = 0

    def _open(self, first: int) -> None:
        self._kind, self._qos = first >> 4, (first & _QOS) >> 1
        self._size = self._shift = 0
        self._left = self._begin = None
        if self._kind not in _FROM_BROKERS or (self._kind == _PUBLISH and self._qos > 1):
            self.refusal = PacketRefusal("it sent a packet that no broker sends to a subscriber")

    def _measure(self, byte: int) -> None:
        self._size |= (byte & 0x7F) << self._shift
        self._shift += 7
        if byte & 0x80:
            return
        self._left = self._size
        if self._kind == _PUBLISH:
            beside = TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX
            if self._size > self._max + beside:
                self.refusal = PacketRefusal("", payload_bytes=self._size)
            self._begin = bytearray() if self._is_5 else None
        elif self._size > PACKET_BYTES_MAX:
            self.refusal = PacketRefusal(f"it sent a control packet of {self._size} bytes")
        if not self._left:
            self._kind = 0

    def _inspect_publish(self, piece: memoryview) -> None:
        assert self._begin is not None
        begin = self._begin
        begin += piece[: TOPIC_BYTES_MAX + 8]
        at = 2 + int.from_bytes(begin[:2]) + (2 if self._qos else 0)
        length = begin[at : at + 4]
        end = next((i for i, byte in enumerate(length) if not byte & 0x80), None)
        if end is None and len(length) < 4:
            return  # there is more to come
        size = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(length[: (end or 0) + 1]))
        if end is None or size > PROPERTIES_BYTES_MAX:
            self.refusal = PacketRefusal(
                f"it sent a message with more than {PROPERTIES_BYTES_MAX} bytes of properties"
            )
        self._begin = None
