"""The socket under an `feedq.connectors.protocol.mqtt.mqtt_link`: TLS over it, and reading it in large pieces.

paho makes room for a packet as it arrives, however large it says that it is, and keeps what no broker should send.
So what it reads goes past a `PacketFilter`, which knows where packets begin: it refuses one by its first bytes,
and then nothing more is read. The connection stays, so that what has landed can still be acknowledged.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

READ_BYTES = 64 * 1024
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
    """Why nothing more is read."""

    why: str
    payload_bytes: int = 0
    """Of a PUBLISH that is too large, about; 0: the broker breaks the rules."""


class PacketFilter:
    """Looks at packets as paho reads them: piece by piece, and none beyond the end of what it asked for."""

    __slots__ = ("_begin", "_is_5", "_kind", "_left", "_max", "_qos", "_shift", "_size", "refusal")

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

    def look(self, piece: memoryview) -> None:
        """To be called with each piece, of one byte until the body begins."""
        if not self._kind:
            self._open(piece[0])
        elif self._left is None:
            self._measure(piece[0])
        else:
            if self._begin is not None:
                self._look_into_publish(piece)
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

    def _look_into_publish(self, piece: memoryview) -> None:
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


class ReadAhead:
    """A non-blocking socket read in large pieces, since paho asks for one byte or two at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(b"")
        self.heard = False
        """Whether anything was received; for whoever wants to know to set back."""
        self.is_dry = False
        """Whether the last reading found nothing more."""
        self.gate: PacketFilter | None = None
        self.error: OSError | None = None
        """Why the connection broke; None if the broker ended it in order."""

    def recv(self, size: int) -> bytes:
        gate = self.gate
        if gate is not None and gate.refusal is not None:
            self.is_dry = True
            raise BlockingIOError
        if not self._buffer:
            self._buffer = memoryview(self._receive())
            self.heard = True
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        if gate is not None and taken:
            gate.look(taken)
            if gate.refusal is not None:
                self.is_dry = True
                raise BlockingIOError
        return bytes(taken)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self.is_dry = True
            raise
        except OSError as error:
            self.error = error
            raise

    def send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self.error = error
            raise

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)


async def shake_hands(sock: socket.socket, tls: ssl.SSLContext, *, server_name: str) -> ssl.SSLSocket:
    """TLS over a connected socket, whose place it takes. Raises `OSError`."""
    wrapped = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
    loop = asyncio.get_running_loop()
    try:
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await _ready(wrapped, loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _ready(wrapped, loop.add_writer, loop.remove_writer)
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


async def _ready(sock: socket.socket, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
    ready = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), wake)
    try:
        await ready
    finally:
        remove(sock.fileno())
