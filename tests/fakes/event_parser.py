"""A parser of event streams that goes line by line, as the HTML standard has it: the fast one must equal it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from feedq.connectors.protocol.eventstream import LINE_BYTES_MIN, MESSAGE, RETRY_S_MAX
from feedq.records.framing import BYTE_ORDER_MARK, CR, LF

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_DATA: Final = b"data: "


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event that was dispatched."""

    id: bytes
    """The last id at that time; empty if there is none."""
    type: bytes
    data: bytes


class EventParser:
    """The plain reference: a stream, line by line."""

    __slots__ = (
        "_after_cr",
        "_begun",
        "_data",
        "_id",
        "_line_bytes_max",
        "_max",
        "_size",
        "_tail",
        "_type",
        "is_oversize",
        "last_id",
        "retry_s",
    )

    def __init__(self, max_data_bytes: int, *, last_id: bytes = b"") -> None:
        self._max = max_data_bytes
        self._line_bytes_max = max(max_data_bytes, LINE_BYTES_MIN) + len(_DATA)
        self._begun = False
        self._after_cr = False
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._size = -1
        """Of the data joined by newlines."""
        self._type = b""
        self._id = last_id
        self.last_id = last_id
        """Where a stream that is opened anew should go on; at first, after what this one was opened."""
        self.retry_s: float | None = None
        """How long the source wants us to wait before that; None if it did not say."""
        self.is_oversize = False
        """An event is larger than the limit; the stream cannot go on."""

    def push(self, data: bytes | bytearray) -> list[ServerSentEvent]:
        """The events that ``data`` completes."""
        if self._after_cr and data:
            # The LF of a CRLF that the pieces were cut in.
            data = data.removeprefix(LF)
            self._after_cr = False
        searched = len(self._tail)
        self._tail += data
        if not self._begun and not self._begin():
            return []
        events = self._take_lines(searched) if not self.is_oversize else []
        self.is_oversize = self.is_oversize or len(self._tail) > self._line_bytes_max
        return events

    def _begin(self) -> bool:
        """Take off a byte order mark; whether it is clear that there is none left."""
        if len(self._tail) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(self._tail):
            return False
        self._begun = True
        if self._tail.startswith(BYTE_ORDER_MARK):
            del self._tail[: len(BYTE_ORDER_MARK)]
        return True

    def _take_lines(self, searched: int) -> list[ServerSentEvent]:
        if not _LINE_END.search(self._tail, searched):
            return []
        stream = bytes(self._tail)
        events: list[ServerSentEvent] = []
        start = 0
        for end in _LINE_END.finditer(stream):
            event = self._take_line(stream[start : end.start()])
            if event is not None:
                events.append(event)
            start = end.end()
            if self.is_oversize:
                break
        self._after_cr = start == len(stream) and stream.endswith(CR)
        self._tail = bytearray(stream[start:])
        return events

    def _take_line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        self.is_oversize = len(line) > self._line_bytes_max
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data.append(value)
                self._size += len(value) + 1
                self.is_oversize = self.is_oversize or self._size > self._max
            case b"event":
                self._type = value
            case b"id" if b"\0" not in value:
                self._id = value
            case b"retry" if value.isdigit():
                self.retry_s = min(int(value[:12]) / 1000, RETRY_S_MAX)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        self.last_id = self._id
        kind, data = self._type or MESSAGE, self._data
        self._type, self._data, self._size = b"", [], -1
        return ServerSentEvent(self.last_id, kind, LF.join(data)) if data else None
