"""The ``sse`` connector: server-sent events.

Each event is a record: its data, or with ``envelope`` all that it says. The cursor is the id of the last event,
and goes back to the source as ``Last-Event-ID``; or it stands in the record, where ``cursor`` points, and goes
back in the request.

Sources end their answers now and then. One that did so in order is asked again from here, after the time that its
``retry`` asks for; one that broke off leaves the time in between to feedq, but no less than that.

An event stream is cut up as the HTML standard has it:
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. All whole events that have
arrived at once are looked at together. Where all of them have the fields of the first, in their order and with one
line of data, which is what sources send, one pattern finds all data, and nothing is done per event. Whatever else
comes is read line by line, and so is an event that grows too large to wait for its end. An event that a stream
breaks off in the middle of does not count.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Final

import msgspec
from pydantic import Field, field_validator

from feedq.connectors.base import ConnectorOptions, Context, needs_json, show_cursor
from feedq.connectors.http_client import NO_CONTENT, HttpAnswer, HttpClient, HttpRequestOptions, named
from feedq.connectors.reading import CursorOptions, RecordStream
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch, Records, as_lines
from feedq.records.cursor import CURSOR_BYTES_MAX
from feedq.records.framing import (
    BYTE_ORDER_MARK,
    CR,
    LF,
    RECORD_BYTES_MAX,
    Refusal,
)
from feedq.records.pointer import is_json
from feedq.records.turns import PIECE_BYTES

MEDIA_TYPE: Final = "text/event-stream"
RETRY_S: Final = 1.0
"""Before an answer that ended is asked for again, if the source did not say."""
RETRY_S_MIN: Final = 0.1
"""A source that ends each answer at once must not be asked without pause."""
RETRY_S_MAX: Final = 60.0
MESSAGE: Final = b"message"
"""The type of an event that does not name one."""
LINE_BYTES_MIN: Final = 64 * 1024
"""A line may have this size whatever the limit of records is: comments and ids are no records."""
RETRY_SAID_S_MAX: Final = 86_400.0
SKELETON_BYTES_MAX: Final = 256
"""Events with longer types than this are read line by line; it bounds what the patterns in the cache hold."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class SseOptions(HttpRequestOptions, CursorOptions):
    """Options of a feed with ``connector: sse``."""

    cursor: str | None = None
    """JSON pointer to the cursor in each record, for a request with `{cursor}`. Without it, the cursor is the
    last event's id, sent as `Last-Event-ID`."""
    events: Annotated[tuple[str, ...] | None, Field(min_length=1)] = None
    """Types of events to land, such as `[update]`; an event without a type is a `message`. Default: all."""
    envelope: bool = False
    """Makes each event a record `{"id": …, "event": …, "data": …}`, with data that is not JSON as a string.
    Needs `format: json`."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """A larger event fails the feed, after everything before it has landed."""

    _check_envelope = field_validator("envelope")(needs_json)

    def refuse(self, where: object, why: Refusal, cursor: JSON) -> FeedMisconfigured:
        """The error of a stream that cannot go on after ``cursor``."""
        return FeedMisconfigured(
            f"{where}: event of more than {self.max_record_bytes} bytes after cursor {show_cursor(cursor)}; "
            "raise source.max_record_bytes"
        )


class SseConnector:
    """Makes one attempt to read a feed's source, which outlives answers that the source ends in order."""

    Options: ClassVar[type[ConnectorOptions]] = SseOptions

    def __init__(self, options: SseOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._reader = options.cursor_reader
        self._cursor: JSON = None
        self._retry_s: float | None = None

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``; never ends without an error.

        Raises:
            SourceUnavailable: not reached, no event stream, one that broke off, or one that says to try later.
            SourceSilent: no byte for the idle timeout; comments count.
            FeedMisconfigured: the source refuses the request or wants no more of us, an event is over the limit,
                a cursor cannot be kept, an address is not permitted, a TLS file is wrong.
        """
        self._cursor = cursor
        options, context = self._options, self._context
        async with aclosing(HttpClient(options, context, idle_timeout_s=options.idle_timeout_s)) as client:
            while True:
                try:
                    async with aclosing(self._answer(client)) as batches:
                        async for batch in batches:
                            yield batch
                except SourceSilent:
                    raise
                except SourceUnavailable:
                    if self._retry_s is not None:
                        await client.pause(min(self._retry_s, RETRY_S_MAX))
                    raise
                retry_s = RETRY_S if self._retry_s is None else self._retry_s
                await client.pause(min(max(retry_s, RETRY_S_MIN), RETRY_S_MAX))

    async def _answer(self, client: HttpClient) -> AsyncGenerator[Batch, None]:
        """The events of one answer."""
        options, last_id = self._options, self._id_of(self._cursor)
        framer = EventFramer(
            max_record_bytes=options.max_record_bytes,
            types=options.events,
            envelope=options.envelope,
            last_id=last_id,
        )
        # Spaces around it are no part of a header's value, which cannot be sent with them.
        sent_id = last_id.strip(" \t")
        headers = {"cache-control": "no-store"} | ({"last-event-id": sent_id} if sent_id else {})
        async with client.ask(self._cursor, accept=MEDIA_TYPE, extra=headers) as answer:
            _check(answer)
            self._context.on_connected()
            follow, refuse = partial(self._follow, framer), partial(options.refuse, answer.where)
            stream = RecordStream(framer, self._context, cursor=self._cursor, follow=follow, refuse=refuse)
            try:
                while data := await answer.receive():
                    for batch in stream.take(data):
                        yield batch
                for batch in stream.batches(framer.finish()):
                    yield batch
            finally:
                self._retry_s = self._retry_s if framer.retry_s is None else framer.retry_s
        # An id counts, although its event may be no record.
        self._cursor = follow(Records(), stream.cursor)
        if not stream.was_heard:
            raise SourceUnavailable(f"{answer.where}: the source ended its answer before it sent anything")

    def _follow(self, framer: EventFramer, records: Records, previous: JSON) -> JSON:
        if self._reader is not None:
            return self._reader.after(records, previous)
        return previous if framer.last_id == self._id_of(previous) else self._checked(framer.last_id) or None

    def _id_of(self, cursor: JSON) -> str:
        """The id to resume after; empty if the cursor is none."""
        if cursor is None or self._reader is not None:
            return ""
        return cursor if isinstance(cursor, str) else msgspec.json.encode(cursor).decode()

    def _checked(self, last_id: str) -> str:
        """Raises `FeedMisconfigured` for an id that could not go back to the source."""
        if len(last_id.encode()) > CURSOR_BYTES_MAX:
            raise FeedMisconfigured(
                f"{self._options.location}: the id of an event has more than {CURSOR_BYTES_MAX} bytes; set "
                "source.cursor, to resume from the data instead"
            )
        if _CONTROL.search(last_id):
            raise FeedMisconfigured(
                f"{self._options.location}: the id of an event holds a control character, which a header cannot "
                "carry; "
                "set source.cursor, to resume from the data instead"
            )
        return last_id


def _check(answer: HttpAnswer) -> None:
    """Raises if an answer is not an event stream."""
    if answer.status in (204, 205):
        raise FeedMisconfigured(
            f"{answer.where}: answered {answer.status}, which tells clients to stop asking; resume the feed "
            "once there are events again"
        )
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE or answer.status in NO_CONTENT:
        raise SourceUnavailable(
            f"{answer.where}: answered {answer.status} with content of the type {named(media_type)}, "
            f"not {MEDIA_TYPE}; check source.url"
        )


# -- the event stream ----------------------------------------------------------------------------------


class EventFramer:
    """Cuts one stream into records: an event's data alone, or with ``envelope`` a JSON object of all that it says.

    Only events of the given ``types`` are records, if there are some given. Empty data alone is not a record.
    """

    def __init__(
        self,
        *,
        max_record_bytes: int,
        types: Collection[str] | None = None,
        envelope: bool = False,
        last_id: str = "",
    ) -> None:
        self._max = max_record_bytes
        self._line_bytes_max = max(max_record_bytes, LINE_BYTES_MIN) + len(b"data: ")
        self._types = None if types is None else frozenset(name.encode() for name in types)
        self._envelope = envelope
        self._tail = bytearray()
        """What was not read yet, its lines ended by LF."""
        self._has_begun = self._after_cr = False
        self._is_amid = False
        """Whether some lines of an event were read, and not its end."""
        self._data: list[bytes] = []
        self._size = -1
        """Of the data joined by newlines."""
        self._type = b""
        self._id = self._last_id = last_id.encode()
        self.refusal: Refusal | None = None
        """Why the stream cannot go on."""
        self.retry_s: float | None = None
        """How long the source wants us to wait before a stream is opened anew; None if it did not say."""

    @property
    def last_id(self) -> str:
        """Where a stream that is opened anew should go on; empty if nowhere in particular."""
        return self._last_id.decode("utf-8", "replace")

    def push(self, data: bytes | bytearray) -> Records:
        """The records that ``data`` completes."""
        if self._after_cr and data:
            # The LF of a CRLF that the pieces were cut in.
            data, self._after_cr = data.removeprefix(LF), False
        if CR in data:
            self._after_cr = data.endswith(CR)
            data = data.replace(b"\r\n", LF).replace(CR, LF)
        searched = len(self._tail)
        self._tail += data
        if not self._has_begun:
            if len(self._tail) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(self._tail):
                return Records()
            self._has_begun, searched = True, 0
            self._tail = self._tail.removeprefix(BYTE_ORDER_MARK)
        return self._read(max(0, searched - 1))

    def finish(self) -> Records:
        """What only the end of the stream could tell."""
        self._is_amid = True
        return self._read(0)

    def _read(self, searched: int) -> Records:
        """The records in the tail, whose first ``searched`` bytes have no end of an event."""
        if not self._is_amid:
            end = self._tail.rfind(b"\n\n", searched)
            if end >= 0:
                events = self._take(end + 2)
                lines = self._read_alike(events)
                return self._read_lines(events) if lines is None else Records(lines)
            if len(self._tail) <= PIECE_BYTES:
                return Records()
            self._is_amid, searched = True, 0
        size = self._tail.rfind(LF, searched) + 1
        records = self._read_lines(self._take(size)) if size else Records()
        if len(self._tail) > self._line_bytes_max:
            self.refusal = Refusal.OVERSIZE
        return records

    def _take(self, size: int) -> bytes:
        taken = bytes(memoryview(self._tail)[:size])
        self._tail = self._tail[size:]
        return taken

    def _read_alike(self, events: bytes) -> bytes | None:
        """The data of whole events that are all like the first, as lines; None if they are not."""
        if self._envelope or b"\0" in events:
            return None
        shape = shape_of(events[: events.index(b"\n\n") + 2])
        if shape is None:
            return None
        found: list[bytes] = shape.pattern.findall(events)
        # Each match begins at the beginning of a line and ends at the end of one: if all newlines are in matches,
        # there is nothing between them.
        if len(found) * shape.line_count != events.count(LF) or max(map(len, found)) > self._max:
            return None
        # Where the stream stands after the last of them.
        self._read_lines(events[events.rfind(b"\n\n", 0, -2) + 2 :] if len(found) > 1 else events)
        if self._types is not None and shape.type not in self._types:
            return b""
        return as_lines([data for data in found if data])

    def _read_lines(self, lines: bytes) -> Records:
        """The records of some lines, each ended by LF."""
        records: list[bytes] = []
        start = 0
        while start < len(lines) and self.refusal is None:
            end = lines.index(LF, start)
            if end > start:
                self._read_line(lines[start:end])
            elif self._is_amid and (record := self._dispatch()) is not None:
                records.append(record)
            start = end + 1
        return Records.of(records)

    def _read_line(self, line: bytes) -> None:
        self._is_amid = True
        is_oversize = len(line) > self._line_bytes_max
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data.append(value)
                self._size += len(value) + 1
                is_oversize = is_oversize or self._size > self._max
            case b"event":
                self._type = value
            case b"id" if b"\0" not in value:
                self._id = value
            case b"retry" if value.isdigit():
                self.retry_s = min(int(value[:12]) / 1000, RETRY_SAID_S_MAX)
        if is_oversize:
            self.refusal = Refusal.OVERSIZE

    def _dispatch(self) -> bytes | None:
        """The record of an event that has ended; None if it is none."""
        self._last_id, self._is_amid = self._id, False
        kind, has_data, data = self._type or MESSAGE, bool(self._data), LF.join(self._data)
        self._type, self._data, self._size = b"", [], -1
        if not has_data or (self._types is not None and kind not in self._types):
            return None
        return _enveloped(self._last_id, kind, data) if self._envelope else data or None


@dataclass(frozen=True, slots=True)
class EventShape:
    """The form of events that differ only in ids and data."""

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


def _enveloped(event_id: bytes, kind: bytes, data: bytes) -> bytes:
    """Writes an event as one line of JSON. Data that is JSON stands there as it is, any other as a string."""
    # Between tokens of JSON a newline is as good as a space, and inside of them there is none.
    data = data.replace(LF, b" ") if is_json(data) else msgspec.json.encode(_text(data))
    return b'{"id":%b,"event":%b,"data":%b}' % (
        msgspec.json.encode(_text(event_id)) if event_id else b"null",
        msgspec.json.encode(_text(kind)),
        data,
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
