"""Messages out of the bytes of an open WebSocket connection.

The protocol is the `websockets` library's: its sans-I/O `ClientProtocol` reads fragments and control
frames, answers pings, and refuses what is wrong. But it takes two microseconds a frame, as long as all the rest of
the import takes for a record (docs/adr/0011). So the frames that nearly every source sends, a whole message in one
frame that is not masked, are cut out here, and the library never sees them.

Invariants, whatever the stream and however it was cut into pieces:

* the messages are those that the library alone would give;
* the library is only ever given frames from their first byte to their last, in order, so that it and the cutting
  agree where the next one begins;
* nothing is cut out while a message is in fragments or after the library has closed the connection: what comes
  then is an error, which the library knows best;
* memory is bounded by one message and one piece.

A push is in steps, of one frame that the library reads and of as many whole messages as come before it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from feedq.records.turns import Steps

FRAGMENTS_MAX: Final = 64 * 1024
"""A message in more frames than this, empty ones perhaps, does not come to an end."""

_HEADER = Struct("!BBH")
"""First byte, second byte, and what is the length if that is 126."""
_WHOLE_TEXT = 0x80 | Opcode.TEXT
_WHOLE_BINARY = 0x80 | Opcode.BINARY
"""First bytes of frames that are a message each: final, and no reserved bit set."""
_PING = 0x80 | Opcode.PING
_OPCODES = frozenset(Opcode)
_MASKED = 0x80
_TWO_MORE = 126
_EIGHT_MORE = 127
"""In the second byte: only clients mask, and a length that does not fit there takes two or eight bytes more."""


class MessageReader:
    """Reads one connection after its handshake."""

    def __init__(self, protocol: ClientProtocol, *, max_message_bytes: int) -> None:
        self._protocol = protocol
        self._max = max_message_bytes
        self._fragments: bytearray | None = None
        """What there is of a message that comes in several frames."""
        self._owed = 0
        """Bytes of a frame still to come, the rest of which the library has."""
        self._tail = b""
        """The beginning of a frame's header."""
        self.is_endless = False
        """Whether a message had more than `FRAGMENTS_MAX` fragments; there will be no more messages."""
        self._fragment_count = 0
        self._scanned_to = 0
        """Where `last_ping` has to go on, in what is to be pushed next."""
        self.brought_data = False
        """Whether the last push held some of a message, and not just pings and the like."""

    @property
    def is_open(self) -> bool:
        """Whether there may be more messages: nobody has closed the connection, or failed it."""
        return self._protocol.state is State.OPEN and not self.is_endless

    @property
    def is_amid_message(self) -> bool:
        return bool(self._owed or self._tail) or self._fragments is not None

    def push(self, data: bytes | bytearray) -> Steps[list[bytes]]:
        """The messages completed by ``data``; what the library answers waits in its `data_to_send`."""
        stream = self._tail + data
        self._tail = b""
        self._scanned_to = 0
        self.brought_data = self._owed > 0
        messages: list[bytes] = []
        at = self._hand_over(stream, 0, self._owed, messages)
        while at < len(stream) and self.is_open:
            if self._fragments is None:
                at = cut_whole_messages(stream, at, self._max, messages)
            size = _frame_size(stream, at)
            if size is None:
                self._tail = stream[at:]
                break
            at = self._hand_over(stream, at, size, messages)
            yield
        self.brought_data = self.brought_data or bool(messages or self._owed)
        return messages

    def last_ping(self, data: bytes) -> bytes | None:
        """The payload of the last ping in ``data``, which is to be pushed later, perhaps with more behind it; None
        if there is none that was not found before."""
        stream = self._tail + data
        at = max(self._owed, self._scanned_to)
        found = None
        while (size := _frame_size(stream, at)) is not None and at + size <= len(stream):
            if stream[at] == _PING:
                found = stream[at + 2 : at + size]
            at += size
        self._scanned_to = at
        return found

    def _hand_over(self, stream: bytes, at: int, size: int, messages: list[bytes]) -> int:
        """Give the library as much as there is of the ``size`` bytes at ``at``; where that ends."""
        end = min(at + size, len(stream))
        self._owed = at + size - end
        if at < end:
            self._protocol.receive_data(stream[at:end])
            for event in self._protocol.events_received():
                if isinstance(event, Frame):
                    self._take(event, messages)
        return end

    def _take(self, frame: Frame, messages: list[bytes]) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY if frame.fin:
                messages.append(bytes(frame.data))
            case Opcode.TEXT | Opcode.BINARY:
                self._fragments = bytearray(frame.data)
                self._fragment_count = 1
                self.brought_data = True
            case Opcode.CONT:
                assert self._fragments is not None
                self._fragments += frame.data
                self._fragment_count += 1
                self.is_endless = self._fragment_count > FRAGMENTS_MAX
                self.brought_data = True
                if frame.fin:
                    messages.append(bytes(self._fragments))
                    self._fragments = None


def cut_whole_messages(stream: bytes, at: int, max_bytes: int, messages: list[bytes]) -> int:
    """Append the messages from ``at`` on that are one whole frame each; where the first other frame begins."""
    read, append, end = _HEADER.unpack_from, messages.append, len(stream)
    while at + _HEADER.size <= end:
        first, size, extended = read(stream, at)
        if first != _WHOLE_TEXT and first != _WHOLE_BINARY:
            break
        begin = at + 2
        if size == _TWO_MORE:
            begin, size = at + 4, extended
        elif size > _TWO_MORE:
            break
        if size > max_bytes or begin + size > end:
            break
        at = begin + size
        append(stream[begin:at])
    return at


def _frame_size(stream: bytes, at: int) -> int | None:
    """Bytes of the frame at ``at``, its header included; None if too little of that is there."""
    header = stream[at : at + 10]
    if len(header) < 2:
        return None
    if header[1] & _MASKED or header[0] & 0x0F not in _OPCODES:
        # For these two bytes alone the library refuses it.
        return 2
    if header[1] == _TWO_MORE:
        return 4 + int.from_bytes(header[2:4]) if len(header) >= 4 else None
    if header[1] == _EIGHT_MORE:
        return 10 + int.from_bytes(header[2:10]) if len(header) == 10 else None
    return 2 + header[1]
