"""The ``websocket`` connector: messages of a ``ws://`` or ``wss://`` server as records.

Connect, shake hands, send what is to be subscribed to; each batch holds all messages that have arrived since the
last one was taken. A source resumes if the URL or a subscription tells it the cursor, and ``cursor`` says where in
a record it is; then nothing is lost between two connections. Without that, what the source sends while nobody is
connected is gone, and feedq cannot know.

Text and binary messages are taken alike: what their bytes are is the feed's ``format``. A message over the limit
ends the stream, with everything before it given out; it cannot be skipped, for that would lose it silently.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context, check_format, show_cursor
from feedq.connectors.reading import CursorOptions, RecordStream, line_framer
from feedq.connectors.websocket_connection import open_websocket
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, TOKEN, RequestOptions, Scheme, check_template
from feedq.core.model import JSON
from feedq.errors import FeedqError
from feedq.records.batch import Batch, Records, as_lines
from feedq.records.framing import BYTE_ORDER_MARK, LF, RECORD_BYTES_MAX, HeaderlessFramer, Refusal
from feedq.records.pointer import MISSING, Missing, TextPointers, parse_pointer
from feedq.records.template import fill_in

Scalar = bool | int | float | str | None
Rule = Mapping[str, Scalar]
"""JSON pointers and the values that a record must have there, all of them."""


class WebsocketOptions(CursorOptions, RequestOptions):
    """Options of a feed with ``connector: websocket``; durations of 0 are never."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {"ws": Scheme(tls=False, port=80), "wss": Scheme(True, 443)}
    OWN_HEADERS: ClassVar[frozenset[str]] = RequestOptions.OWN_HEADERS | {
        f"sec-websocket-{name}" for name in ("accept", "extensions", "key", "protocol", "version")
    }

    url: str
    """`ws://host/path` or `wss://host/path`. Path and query take placeholders."""
    subprotocols: tuple[str, ...] = ()
    """Subprotocols to offer, preferred ones first."""
    ping_interval_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 20.0
    """Time between pings that feedq sends; 0 sends none."""
    ping_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 20.0
    """Reconnects when nothing arrives for this long after a ping; 0 disables it."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 60.0
    """After this long without a message the feed is stalled and reconnects; 0 disables it. Pings do not
    count, messages to `ignore` do."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """A larger message fails the feed, after everything before it has landed."""
    subscribe: tuple[str, ...] = ()
    """Text message, or a list of them, sent once connected. Takes placeholders."""
    split: Literal["message", "lines"] = "message"
    """What a message holds: one record (`message`), or one or more `lines`, which end with LF or CRLF. Empty
    ones are skipped. CSV is always read as lines."""
    ignore: tuple[dict[str, Scalar], ...] = ()
    """Records to drop, such as heartbeats: a list of mappings of JSON pointers to values, such as `[{/event:
    heartbeat}, {/type: ack}]`. A record must have all values of one entry. Needs `format: json`."""

    @field_validator("subprotocols", mode="before")
    @classmethod
    def _split_subprotocols(cls, value: object) -> object:
        # No name of one holds a comma: in the header, too, it stands between them.
        return tuple(map(str.strip, value.split(","))) if isinstance(value, str) else value

    @field_validator("subprotocols")
    @classmethod
    def _check_subprotocols(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid subprotocol name")
        return names

    @field_validator("subscribe", mode="before", json_schema_input_type=str | list[str])
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("subscribe")
    @classmethod
    def _check_subscribe(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for text in texts:
            check_template(text, info)
        return texts

    @field_validator("ignore")
    @classmethod
    def _check_ignore(
        cls, rules: tuple[dict[str, Scalar], ...], info: ValidationInfo
    ) -> tuple[dict[str, Scalar], ...]:
        if rules:
            check_format(info, "json")
        for rule in rules:
            if not rule:
                raise ValueError("holds an entry without a pointer, which would match every record")
            for pointer in rule:
                parse_pointer(pointer)
        return rules


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
