"""The ``websocket`` connector: messages of a ``ws://`` or ``wss://`` server as records.

Connect, shake hands, send what is to be subscribed to; each batch holds all messages that have arrived since the
last one was taken. A source resumes if the URL or a subscription tells it the cursor, and ``cursor`` says where in
a record it is; then nothing is lost between two connections. Without that, what the source sends while nobody is
connected is gone, and feedq cannot know.

Text and binary messages are taken alike: what their bytes are is the feed's ``format``. A message over the limit
ends the stream, with everything before it given out; it cannot be skipped, for that would lose it silently.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.protocol.http.request_options import TOKEN, RequestOptions
from feedq.connectors.protocol.websocket.websocket_connection import WebsocketRequest, open_websocket
from feedq.connectors.records.cursor import show_cursor
from feedq.connectors.records.cursor_options import CursorOptions
from feedq.connectors.records.framing import CR, LF, Framed, Framer, LineFramer
from feedq.connectors.records.framing_options import BUFFER_BYTES_MAX, RECORD_BYTES_MAX
from feedq.connectors.records.headerless import HeaderlessFramer
from feedq.connectors.records.ignoring import Ignored, Scalar
from feedq.connectors.records.pointer import parse_pointer
from feedq.connectors.records.turns import in_turns
from feedq.connectors.wire.connection import ConnectionOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, Scheme, check_template
from feedq.connectors.wire.template import compile_template, wire_values
from feedq.model import JSON, Batch


class WebsocketOptions(CursorOptions, RequestOptions):
    """Options of a feed with ``connector: websocket``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {"ws": Scheme(tls=False, port=80), "wss": Scheme(True, 443)}
    OWN_HEADERS: ClassVar[frozenset[str]] = RequestOptions.OWN_HEADERS | {
        f"sec-websocket-{name}" for name in ("accept", "extensions", "key", "protocol", "version")
    }

    url: str = Field(
        description="Where the source is: `ws://host/path`, or `wss://…` with TLS. In path and query `{name}`, "
        "`{cursor}` and `{secret}` are filled in, percent-encoded."
    )
    subscribe: tuple[str, ...] = Field(
        default=(),
        description="Text message, or list of them, sent once connected. `{name}` and `{cursor}` become JSON "
        r"texts (the cursor is `null` at first), `{secret}` the secret of that name as it is. Escapes as in `\n`.",
    )
    subprotocols: tuple[str, ...] = Field(
        default=(), description="Subprotocols to offer, the preferred one first; the server may choose one."
    )
    split: Literal["message", "lines"] = Field(
        default="message",
        description="What a message holds: `message` is one record, `lines` is one or several that end with LF or "
        "CRLF. Empty ones are keep-alives and are skipped. CSV is always taken as lines.",
    )
    ignore: tuple[dict[str, Scalar], ...] = Field(
        default=(),
        description="Records that are no part of the feed, such as heartbeats: a list of JSON pointers and the "
        "values that such a record has there, all of them: `[{/event: heartbeat}, {/type: ack}]`. "
        "Needs `format: json`.",
    )
    compression: bool = Field(
        default=False,
        description="Offer the server to compress messages (permessage-deflate). It saves most of the network's "
        "load, and costs this worker several times the work for each message.",
    )
    ping_interval_s: float = Field(
        default=20.0, ge=0, le=TIMEOUT_S_MAX, description="Time between two pings of ours; 0 is none."
    )
    ping_timeout_s: float = Field(
        default=20.0,
        ge=0,
        le=TIMEOUT_S_MAX,
        description="A connection on which nothing follows a ping for this long is made anew; 0 is never.",
    )
    idle_timeout_s: float = Field(
        default=60.0,
        ge=0,
        le=TIMEOUT_S_MAX,
        description="A connection that brings no message for this long is stalled and made anew, whatever pings "
        "go to and fro; messages to `ignore` count. 0 is never.",
    )
    max_record_bytes: int = Field(
        default=2**20,
        ge=1,
        le=RECORD_BYTES_MAX,
        description="A larger message, uncompressed, fails the feed, with everything before it landed, until "
        "this is raised.",
    )
    buffer_bytes: int = Field(
        default=512 * 1024,
        ge=1,
        le=BUFFER_BYTES_MAX,
        description="Received bytes that wait to be taken before reading pauses and the source has to wait.",
    )

    @field_validator("subscribe", mode="before", json_schema_input_type=str | list[str])
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

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
                raise ValueError(f"{name!r} is no name of a subprotocol")
        return names

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
        if rules and info.data.get("format", "json") != "json":
            raise ValueError(f"needs source.format json, not {info.data['format']}")
        for rule in rules:
            if not rule:
                raise ValueError("holds an entry without a pointer, which would match every record")
            for pointer in rule:
                parse_pointer(pointer)
        return rules

    def request(self, context: Context, cursor: JSON) -> WebsocketRequest:
        """The connection that resumes after ``cursor``."""
        return WebsocketRequest(
            connection=ConnectionOptions(
                endpoint=self.location,
                connect_timeout_s=self.connect_timeout_s,
                idle_timeout_s=0,
                buffer_bytes=self.buffer_bytes,
                keepalive=True,
                tls_files=self.tls_files,
                server_name=self.server_name,
            ),
            target=self.target(context, cursor),
            headers=self.request_headers(context, cursor),
            subprotocols=self.subprotocols,
            compression=self.compression,
            max_message_bytes=self.max_record_bytes,
            ping_interval_s=self.ping_interval_s,
            ping_timeout_s=self.ping_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
        )

    def message_framer(self) -> MessageFramer:
        return MessageFramer(self)


class MessageFramer:
    """Records out of messages."""

    __slots__ = ("_lines", "_one_each", "ignored")

    def __init__(self, options: WebsocketOptions) -> None:
        # A line never is longer than the message it stands in.
        lines: Framer = LineFramer(options.max_record_bytes)
        if options.csv is not None and options.csv.header:
            lines = HeaderlessFramer(lines, options.csv)
        self._lines = lines
        self._one_each = options.split == "message" and options.format != "csv"
        self.ignored = Ignored(options.ignore) if options.ignore else None
        """Leaves out records that are no part of the feed."""

    def frame(self, messages: list[bytes]) -> Framed:
        """The records of some messages, with those to be ignored; perhaps none."""
        joined = LF.join([*messages, b""])
        if not self._one_each:
            framed = self._lines.push(joined)
        elif CR in joined or joined.count(LF) > len(messages) or not all(messages):
            framed = Framed(records=tuple(filter(None, messages)))
        else:
            # Messages without a line break in them are lines, which is what lands fastest.
            framed = Framed(lines=joined)
        return framed


class WebsocketConnector:
    """One connection attempt of one feed."""

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
        framer = self._options.message_framer()
        reader = self._options.cursor_reader()
        websocket = await open_websocket(self._options.request(self._context, cursor), self._context)
        try:
            for message in self._subscriptions(cursor):
                websocket.send(message)
            self._context.on_connected()
            while messages := await websocket.receive():
                framed = framer.frame(messages)
                if framer.ignored is not None:
                    framed = await in_turns(framer.ignored.take(framed))
                if framed:
                    if reader is not None:
                        cursor = await reader.follow(framed, cursor)
                    yield framed.batch(cursor=cursor, received_at=self._context.clock.now())
        finally:
            websocket.close()
        raise websocket.ending(after=f"after cursor {show_cursor(cursor)}")

    def _subscriptions(self, cursor: JSON) -> list[bytes]:
        secrets = self._context.secrets
        values = wire_values(
            feed=self._context.feed, cursor=self._options.resumed_after(cursor), secrets=secrets
        )
        return [compile_template(text, secrets=secrets).render(values) for text in self._options.subscribe]
