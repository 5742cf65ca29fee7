"""The ``websocket`` connector: messages of a ``ws://`` or ``wss://`` server as records.

Connect, shake hands, send what is to be subscribed to; each batch holds all messages that have arrived since the
last one was taken. A source resumes if the URL or a subscription tells it the cursor, and ``cursor`` says where in
a record it is; then nothing is lost between two connections. Without that, what the source sends while nobody is
connected is gone, and feedq cannot know.

Text and binary messages are taken alike: what their bytes are is the feed's ``format``. A message over the limit
ends the stream, with everything before it given out; it cannot be skipped, for that would lose it silently.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import ClassVar

import msgspec

from feedq.connectors.base import ConnectorOptions, Context, show_cursor
from feedq.connectors.reading import RecordStream
from feedq.connectors.record_options import line_framer
from feedq.connectors.websocket.connection import open_websocket
from feedq.connectors.websocket.options import Rule, Scalar, WebsocketOptions
from feedq.core.model import JSON
from feedq.errors import FeedqError
from feedq.records.batch import Batch, Records, as_lines
from feedq.records.framing import (
    BYTE_ORDER_MARK,
    LF,
    HeaderlessFramer,
    Refusal,
)
from feedq.records.pointer import MISSING, Missing, TextPointers
from feedq.records.template import fill_in

VALUE_BYTES_MAX = 64 * 1024
"""A longer text is not compared: no heartbeat is told by so much."""


class Ignored:
    """Knows the records that one of the rules matches. None does that is not JSON."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        places: dict[str, int] = {}
        self._rules: list[list[tuple[int, Scalar]]] = [
            [(places.setdefault(pointer, len(places)), value) for pointer, value in rule.items()]
            for rule in rules
        ]
        self._pointers = TextPointers(tuple(places))

    def matches(self, record: bytes) -> bool:
        if not self._pointers.may_find(record):
            return False
        try:
            found = [_scalar(text) for text in self._pointers.find(record)]
        except ValueError:
            return False
        return any(all(_is(found[place], value) for place, value in rule) for rule in self._rules)


def _scalar(text: bytes | Missing) -> object:
    """What a text of JSON stands for if that may be a scalar."""
    if text is MISSING or len(text) > VALUE_BYTES_MAX or text[:1] in (b"{", b"["):
        return MISSING
    return msgspec.json.decode(text)


def _is(found: object, value: JSON) -> bool:
    # In Python true is 1 and 1 is 1.0; in JSON only the numbers are alike.
    return found == value and isinstance(found, bool) == isinstance(value, bool)


class MessageFramer:
    """Makes records of messages."""

    refusal: Refusal | None = None
    """No line is longer than its message, which the connection has judged."""

    def __init__(self, options: WebsocketOptions) -> None:
        lines = line_framer(options.csv, options.max_record_bytes)
        if options.csv is not None and options.csv.header:
            lines = HeaderlessFramer(lines, options.csv)
        self._lines = lines
        self._may_be_marked = options.format != "bytes"
        """Whether a byte order mark may stand before the first message."""
        self._is_csv = options.csv is not None
        self._one_each = options.split == "message"
        self._ignored = Ignored(options.ignore) if options.ignore else None

    def push(self, messages: list[bytes]) -> Records:
        """The records of some messages, but for those to be ignored; perhaps none."""
        if self._may_be_marked and messages:
            messages[0] = messages[0].removeprefix(BYTE_ORDER_MARK)
            self._may_be_marked = False
        records = self._records(messages)
        return records if self._ignored is None else records.leaving_out(self._ignored.matches)

    def _records(self, messages: list[bytes]) -> Records:
        if self._is_csv:
            return Records.of([record for message in messages for record in self._rows(message)])
        if not self._one_each:
            return self._lines.push(as_lines(messages))
        return Records.of(messages if all(messages) else list(filter(None, messages)))

    def _rows(self, message: bytes) -> Iterator[bytes]:
        """The records of CSV in a message. Its end closes a quote, whatever the next one begins with."""
        yield from self._lines.push(message + LF).split()
        if self._lines.pending:
            yield from self._lines.end(LF).split()


class WebsocketConnector:
    """Makes one attempt to read a feed's source."""

    Options: ClassVar[type[ConnectorOptions]] = WebsocketOptions

    def __init__(self, options: WebsocketOptions, context: Context) -> None:
        self._options = options
        self._context = context

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``, until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, refused for now, broken off, closed by the peer, or dead to a ping.
            SourceSilent: no message for the idle timeout.
            FeedMisconfigured: refused credentials, a message over the limit, a cursor that cannot be kept, a wrong
                TLS file.
        """
        websocket = await open_websocket(self._options, cursor, self._context)
        reader = self._options.cursor_reader
        framer, follow = MessageFramer(self._options), None if reader is None else reader.after

        def ended(_: object, cursor: JSON) -> FeedqError:
            return websocket.ending(after=f"after cursor {show_cursor(cursor)}")

        stream = RecordStream(framer, self._context, cursor=cursor, follow=follow, refuse=ended)
        try:
            for message in self._subscriptions(cursor):
                websocket.send(message)
            self._context.on_connected()
            while messages := await websocket.receive():
                for batch in stream.take(messages):
                    yield batch
        finally:
            websocket.close()
        raise ended(None, stream.cursor)

    def _subscriptions(self, cursor: JSON) -> list[bytes]:
        context, resumed_after = self._context, self._options.resumed_after(cursor)
        return [
            fill_in(text, feed=context.feed, cursor=resumed_after, secrets=context.secrets)
            for text in self._options.subscribe
        ]
