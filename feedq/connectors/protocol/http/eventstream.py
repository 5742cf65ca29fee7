"""Event streams: cutting ``text/event-stream`` into events, as the HTML standard has it.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

Two parsers, which give the same events whatever the stream and however it was cut into pieces:

* `EventParser` goes line by line and is the plain reference;
* `EventFramer` looks at all whole events that have arrived at once. Where all of them have the fields of the
  first, in their order and with one line of data, which is what sources send, one pattern finds all data, and
  nothing is done per event. Whatever else comes goes to the reference.

Going line by line takes half a microsecond for each, however short: after `LINES_AT_ONCE` of them the reference
stops, `is_behind` says so, and ``push`` of nothing goes on, so that others have their turn meanwhile.

An event that a stream breaks off in the middle of does not count. Nothing here knows sockets or cursors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import orjson

from feedq.connectors.records.framing import CR, LF, Framed
from feedq.connectors.records.pointer import is_json

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MESSAGE: Final = b"message"
"""The type of an event that does not name one."""
LINE_BYTES_MIN: Final = 64 * 1024
"""A line may have this size whatever the limit of records is: comments and ids are no records."""
RETRY_S_MAX: Final = 86_400.0
LINES_AT_ONCE: Final = 20_000
SKELETON_BYTES_MAX: Final = 256
"""Events with longer types than this are read line by line; it bounds what the patterns in the cache hold."""
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
        "is_behind",
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
        self.is_behind = False
        """There are more lines to read than the last push has read."""

    def push(self, data: bytes | bytearray) -> list[ServerSentEvent]:
        """The events that ``data`` completes, or some of them: see `is_behind`."""
        if self._after_cr and data:
            # The LF of a CRLF that the pieces were cut in.
            data = data.removeprefix(LF)
            self._after_cr = False
        searched = 0 if self.is_behind else len(self._tail)
        self._tail += data
        if not self._begun and not self._begin():
            return []
        self.is_behind = False
        events = self._take_lines(searched) if not self.is_oversize else []
        if not self.is_behind:
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
        for number, end in enumerate(_LINE_END.finditer(stream)):
            if number == LINES_AT_ONCE:
                self._tail, self.is_behind = bytearray(stream[start:]), True
                return events
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


class EventFramer:
    """Events as records: their data alone, or with ``envelope`` a JSON object of all that they are.

    Only events of the given ``types`` are, if there are some given. Empty data alone is no record.
    """

    __slots__ = ("_envelope", "_is_odd", "_max", "_parser", "_tail", "_types")

    def __init__(
        self,
        *,
        max_record_bytes: int,
        types: Collection[str] | None = None,
        envelope: bool = False,
        last_id: str = "",
    ) -> None:
        self._parser = EventParser(max_record_bytes, last_id=last_id.encode())
        self._max = max_record_bytes
        self._types = None if types is None else frozenset(name.encode() for name in types)
        self._envelope = envelope
        self._tail = bytearray()
        """What has no whole event in it yet."""
        self._is_odd = False
        """The stream is one that only the reference reads: lines end with CR alone, or events are very large."""

    @property
    def last_id(self) -> str:
        """Where a stream that is opened anew should go on; empty if nowhere in particular."""
        return self._parser.last_id.decode("utf-8", "replace")

    @property
    def retry_s(self) -> float | None:
        """How long the source wants us to wait before that; None if it did not say."""
        return self._parser.retry_s

    @property
    def is_behind(self) -> bool:
        """Whether there is more to be read of what was pushed. Nothing else may be pushed before `go_on` has."""
        return self._parser.is_behind

    def go_on(self) -> Framed:
        """The next records of what was pushed."""
        return self._framed(self._parser.push(b""))

    def push(self, data: bytes | bytearray) -> Framed:
        """The records that ``data`` completes, or some of them: see `is_behind`."""
        assert not self.is_behind
        if self._is_odd:
            return self._framed(self._parser.push(data))
        searched = max(0, len(self._tail) - 2)
        self._tail += data
        if self._tail.find(CR, searched) >= 0:
            alike = self._tail.replace(b"\r\n", LF)
            # The LF of a CR at the end may be on its way. One in the middle must not meet that of another line.
            self._is_odd = alike.find(CR, searched, len(alike) - 1) >= 0
            self._tail = self._tail if self._is_odd else alike
        if self._is_odd or len(self._tail) > self._max + LINE_BYTES_MIN:
            self._is_odd = True
            return self._take_all()
        cut = self._tail.rfind(b"\n\n", searched) + 2
        if cut < 2:
            return Framed()
        events = bytes(memoryview(self._tail)[:cut])
        self._tail = self._tail[cut:]
        return self._read(events)

    def finish(self) -> Framed:
        """What only the end of the stream could tell."""
        return self._take_all()

    def _take_all(self) -> Framed:
        data, self._tail = self._tail, bytearray()
        return self._framed(self._parser.push(data))

    def _read(self, events: bytes) -> Framed:
        """The records of whole events whose lines end with LF."""
        if not self._envelope and b"\0" not in events:
            lines = self._read_alike(events)
            if lines is not None:
                return Framed(lines=lines)
        return self._framed(self._parser.push(events))

    def _read_alike(self, events: bytes) -> bytes | None:
        """The data of events that are all like the first, as lines; None if they are not."""
        shape = shape_of(events[: events.index(b"\n\n") + 2])
        if shape is None:
            return None
        found: list[bytes] = shape.pattern.findall(events)
        # Each match begins at the beginning of a line and ends at the end of one: if all newlines are in matches,
        # there is nothing between them.
        if len(found) * shape.line_count != events.count(LF) or max(map(len, found)) > self._max:
            return None
        # Where the stream stands after the last of them. A byte order mark before the first has no shape.
        self._parser.push(events[events.rfind(b"\n\n", 0, -2) + 2 :] if len(found) > 1 else events)
        if self._types is not None and shape.type not in self._types:
            return b""
        return _lines([data for data in found if data])

    def _framed(self, events: Sequence[ServerSentEvent]) -> Framed:
        taken = [event for event in events if self._types is None or event.type in self._types]
        if self._envelope:
            records = [_enveloped(event) for event in taken]
        else:
            records = [event.data for event in taken if event.data]
        oversize = self._parser.is_oversize
        if any(LF in record for record in records):
            return Framed(records=tuple(records), oversize=oversize)
        return Framed(lines=_lines(records), oversize=oversize)


@dataclass(frozen=True, slots=True)
class EventShape:
    """What events look like that are all alike but for their ids and their data."""

    pattern: re.Pattern[bytes]
    """Matches one event; its group is the data."""
    line_count: int
    type: bytes


def shape_of(event: bytes) -> EventShape | None:
    """The shape of an event, blank line included, if a pattern can be made of it."""
    skeleton = []
    for line in event[:-2].split(LF):
        field, colon, value = line.partition(b":")
        if field == b"event" and colon:
            skeleton.append(line)
        elif field in (b"id", b"data") and colon:
            skeleton.append(field + (b": " if value.startswith(b" ") else b":"))
        else:
            return None
    joined = LF.join(skeleton)
    fields = [line.partition(b":")[0] for line in skeleton]
    if len(fields) != len(set(fields)) or b"data" not in fields or len(joined) > SKELETON_BYTES_MAX:
        return None
    return _shape(joined)


@lru_cache(maxsize=64)
def _shape(skeleton: bytes) -> EventShape:
    patterns, kind = [], b""
    for line in skeleton.split(LF):
        field, _, value = line.partition(b":")
        if field == b"event":
            kind = value.removeprefix(b" ")
            patterns.append(re.escape(line))
        else:
            # One space after the colon is no part of the value, and a source uses it always or never.
            value_begins = line if value else line + b"(?! )"
            patterns.append(value_begins + (b"(.*+)" if field == b"data" else b".*+"))
    pattern = re.compile(b"^" + b"\n".join(patterns) + b"\n\n", re.MULTILINE)
    return EventShape(pattern, len(patterns) + 1, kind or MESSAGE)


def _lines(records: Sequence[bytes]) -> bytes:
    return LF.join([*records, b""])


def _enveloped(event: ServerSentEvent) -> bytes:
    """One line of JSON. Data that is JSON stands there as it is, any other as a string."""
    # Between tokens of JSON a newline is as good as a space, and inside of them there is none.
    data = event.data.replace(LF, b" ") if is_json(event.data) else orjson.dumps(_text(event.data))
    return b'{"id":%b,"event":%b,"data":%b}' % (
        orjson.dumps(_text(event.id)) if event.id else b"null",
        orjson.dumps(_text(event.type)),
        data,
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
