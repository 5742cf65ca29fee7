"""One WebSocket connection of a feed: opened within a time limit, kept alive, and explained when it ends.

It reads from a `SourceConnection` of `feedq.connectors.wire.connection`, whose bounds and guard hold here too: at
most its ``buffer_bytes`` wait, and beyond them the source's own sends block. The source's pings are answered as
they come; while nobody takes the messages, because of a rate limit or a sink that is away, every `ANSWER_S`, as
far as they could still be received: a source must not give up a feed that only waits.

Three things end a connection from our side: a ping that nothing at all follows, no message for the idle timeout
(pings and pongs are libraries talking, not the source), and a message over the limit.

It knows neither records nor cursors. What the server says is shown in part only, and what we sent it
never is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidMessage, InvalidStatus, NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from feedq.connectors.base import Context
from feedq.connectors.wire.connection import SourceConnection, open_connection
from feedq.connectors.wire.dialing import bounded
from feedq.connectors.wire.remote import retry_after_s, status_name
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError, SourceBusy, SourceSilent, SourceUnavailable
from feedq.records.turns import Steps, in_turns
from feedq.secrets import Masker

if TYPE_CHECKING:
    from feedq.connectors.websocket import WebsocketOptions


HEAD_BYTES_MAX = 64 * 1024
"""No server answers a handshake with more headers than that."""
ANSWER_S = 2.0
"""Long enough to cost nothing, and short beside the time that servers wait for an answer to a ping."""
_HEAD_ENDS = b"\r\n\r\n"

_NO_LOG = logging.Logger("websockets", level=logging.CRITICAL + 1)
"""Stands apart from all other loggers: at level debug the library would log what it sends, secrets included."""

SHOWN_CHARACTERS = 200
_CREDENTIALS = (401, 403, 407)
_MOVED_FOR_GOOD = (301, 308)
_RESERVED_BITS = "reserved bits must be 0"
"""What the library says of a compressed frame when no compression was agreed on."""
_NOT_COMPRESSED = "feedq does not offer compression (permessage-deflate): turn it off at the server"


class Websocket:
    """An open connection. Made only by `open_websocket`."""

    def __init__(
        self,
        options: WebsocketOptions,
        context: Context,
        connection: SourceConnection,
        protocol: ClientProtocol,
    ) -> None:
        self._options = options
        self._context = context
        self._connection = connection
        self._protocol = protocol
        self._reader = MessageReader(protocol, max_message_bytes=options.max_record_bytes)
        self._trouble: SourceUnavailable | None = None
        """Why we gave the connection up."""
        self._was_heard = False
        self._is_listening = False
        self._loop = asyncio.get_running_loop()
        self._pulse = Pulse(
            ping_interval_s=options.ping_interval_s,
            ping_timeout_s=options.ping_timeout_s,
            idle_timeout_s=options.idle_timeout_s,
            now=self._loop.time(),
        )
        self._timer: asyncio.TimerHandle | None = None
        self._answerer: asyncio.TimerHandle | None = None
        self._check_later()

    async def receive(self) -> list[bytes]:
        """The messages that have arrived since the last call, at least one; nothing at the end.

        Raises:
            SourceUnavailable: the connection broke, and all that had arrived before was taken.
        """
        self._is_listening = True
        try:
            while self._reader.is_open and self._trouble is None:
                received = await self._connection.receive()
                if not received:
                    break
                self._was_heard = True
                messages = await in_turns(self._reader.push(received))
                self._pulse.heard(self._loop.time(), message=self._reader.brought_data)
                self._flush()
                if messages:
                    self._answer_later()
                    return messages
        finally:
            self._is_listening = False
        return []

    def send(self, text: bytes) -> None:
        """Send a message. Raises `SourceUnavailable` if the source does not read what it is sent."""
        self._protocol.send_text(text)
        self._flush()

    def close(self) -> None:
        """Cut the connection at once. May be repeated."""
        for timer in (self._timer, self._answerer):
            if timer is not None:
                timer.cancel()
        self._timer = self._answerer = None
        self._connection.close()

    def ending(self, *, after: str) -> FeedqError:
        """Why there are no more messages; ``after`` says behind what."""
        if self._trouble is not None:
            return self._trouble
        where = self._options.location
        if self._reader.is_endless:
            return SourceUnavailable(
                f"{where}: a message in more than {FRAGMENTS_MAX} fragments {after}; "
                "the source should send it in larger ones"
            )
        self._protocol.receive_eof()
        how = self._protocol.close_exc
        if how.rcvd is not None:
            return SourceUnavailable(f"{where}: closed by the peer: {show(str(how.rcvd), self._context)}")
        if how.sent is None:
            return SourceUnavailable(f"{where}: closed by the peer{self._when()}")
        if how.sent.code == CloseCode.MESSAGE_TOO_BIG:
            return FeedMisconfigured(
                f"{where}: message of more than {self._options.max_record_bytes} bytes {after}; "
                "raise source.max_record_bytes"
            )
        if how.sent.reason == _RESERVED_BITS:
            return SourceUnavailable(f"{where}: sent a compressed message; {_NOT_COMPRESSED}")
        return SourceUnavailable(
            f"{where}: what it sent is not WebSocket: {show(how.sent.reason, self._context)}"
        )

    def _when(self) -> str:
        if self._reader.is_amid_message:
            return " in the middle of a message"
        return " without a close frame" if self._was_heard else " before it sent anything"

    def _flush(self) -> None:
        # An empty piece says that the library is done sending; to close is our caller's part.
        self._connection.send(b"".join(self._protocol.data_to_send()))

    # -- signs of life -------------------------------------------------------------------------------

    def _check_later(self) -> None:
        # One timer that looks again later, instead of one set back with every message.
        at = self._pulse.next_at
        self._timer = self._loop.call_at(at, self._check_idle) if at < inf else None

    def _check_idle(self) -> None:
        if not (self._reader.is_open and self._connection.is_open):
            return  # it is over, and whoever takes the last messages is about to hear why
        now = self._loop.time()
        if self._connection.buffered:
            # Unless somebody is about to take it, it is we who do not listen: the source cannot be called silent.
            self._pulse.heard(now, message=not self._is_listening)
        options, where = self._options, self._options.location
        if now >= self._pulse.silent_at:
            self._give_up(
                SourceSilent(
                    f"{where}: connected, but no message received for {options.idle_timeout_s:g} s "
                    "(source.idle_timeout_s)"
                )
            )
        elif now >= self._pulse.unanswered_at:
            self._give_up(
                SourceUnavailable(
                    f"{where}: nothing heard for {options.ping_timeout_s:g} s after a ping "
                    "(source.ping_timeout_s)"
                )
            )
        elif now >= self._pulse.ping_at:
            self._protocol.send_ping(b"feedq")
            self._pulse.pinged(now)
            if self._flushed():
                self._check_later()
        else:
            self._check_later()

    def _answer_later(self) -> None:
        if self._answerer is None:
            self._answerer = self._loop.call_later(ANSWER_S, self._answer)

    def _answer(self) -> None:
        """Answer a ping that waits behind messages which nobody takes. It is answered once more when it is read,
        which a server takes for a sign of life."""
        self._answerer = None
        # A connection that has ended has nobody to answer to.
        if self._is_listening or not (self._reader.is_open and self._connection.is_open):
            return
        ping = self._reader.last_ping(self._connection.peek())
        if ping is not None:
            self._protocol.send_pong(ping)
        if self._flushed():
            self._answer_later()

    def _flushed(self) -> bool:
        """Send while nobody waits for it; returns False if that was too much."""
        try:
            self._flush()
        except SourceUnavailable as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, trouble: SourceUnavailable) -> None:
        self._trouble = trouble
        self.close()


class Pulse:
    """When a connection is to be pinged, and when to give it up.

    Two clocks run: whatever is heard answers a ping, for it proves as well as a pong that the source is there;
    only a message shows that the feed goes on, since pings and pongs are sent by libraries whatever the source
    behind them does. Times are monotonic seconds, infinite for never; a duration of 0 is never.
    """

    def __init__(
        self, *, ping_interval_s: float, ping_timeout_s: float, idle_timeout_s: float, now: float
    ) -> None:
        self._ping_interval_s = ping_interval_s or inf
        self._ping_timeout_s = ping_timeout_s or inf
        self._idle_timeout_s = idle_timeout_s or inf
        self.silent_at = now + self._idle_timeout_s
        self.unanswered_at = inf
        self.ping_at = now + self._ping_interval_s

    def heard(self, now: float, *, message: bool) -> None:
        """Something came, and with it perhaps a message or a part of one."""
        self.unanswered_at = inf
        if message:
            self.silent_at = now + self._idle_timeout_s

    def pinged(self, now: float) -> None:
        self.ping_at = now + self._ping_interval_s
        self.unanswered_at = min(self.unanswered_at, now + self._ping_timeout_s)

    @property
    def next_at(self) -> float:
        """When something will be due."""
        return min(self.silent_at, self.unanswered_at, self.ping_at)


async def open_websocket(options: WebsocketOptions, cursor: JSON, context: Context) -> Websocket:
    """Connect and shake hands, all of it within ``connect_timeout_s``.

    Raises:
        SourceUnavailable: no connection, or the server refused for now; says why.
        FeedMisconfigured: it refused our credentials, or has moved; a TLS file is missing or wrong; the
            address is not permitted.
    """
    where = options.location

    # What cannot be asked is refused before anything is dialed.
    protocol = _protocol(options, options.target(context, cursor))
    headers = options.request_headers(context, cursor)
    async with bounded(where, options.connect_timeout_s):
        connection = await open_connection(options, context)
        try:
            await _shake_hands(protocol, connection, headers, where=where, context=context)
            return Websocket(options, context, connection, protocol)
        except BaseException:
            connection.close()
            raise


def _protocol(options: WebsocketOptions, target: str) -> ClientProtocol:
    at = options.location
    path, _, query = target.partition("?")
    return ClientProtocol(
        WebSocketURI(at.tls, at.host.encode("idna").decode(), at.port, path, query),
        subprotocols=[Subprotocol(name) for name in options.subprotocols] or None,
        max_size=options.max_record_bytes,
        logger=_NO_LOG,
    )


async def _shake_hands(
    protocol: ClientProtocol,
    connection: SourceConnection,
    headers: Mapping[str, str],
    *,
    where: object,
    context: Context,
) -> None:
    asking = protocol.connect()
    for name, value in headers.items():
        asking.headers[name] = value
    protocol.send_request(asking)
    connection.send(b"".join(protocol.data_to_send()))
    head = bytearray()
    while _HEAD_ENDS not in head:
        if len(head) > HEAD_BYTES_MAX:
            raise SourceUnavailable(f"{where}: answers the handshake with more than {HEAD_BYTES_MAX} bytes")
        data = await connection.receive()
        if not data:
            break
        head += data
    answer, end, rest = head.partition(_HEAD_ENDS)
    # The frames that came with the answer are the reader's: see the invariants of `MessageReader`.
    protocol.receive_data(answer + end)
    if protocol.state is State.OPEN:
        connection.put_back(rest)
        return
    protocol.receive_data(rest)
    while protocol.handshake_exc is None:
        # The library tells the status once it has read the whole answer.
        if data := await connection.receive():
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
    raise explain_refusal(protocol.handshake_exc, where, context)


def explain_refusal(error: Exception, where: object, context: Context) -> FeedqError:
    """Why a server did not answer a handshake as a WebSocket server does, and who can mend it.

    Refused credentials wait for an edit, and so does a server that has moved for good. Anything else may be over
    by the next try: a server that is being deployed says 404 or 502, one that is busy 429. The body of an answer
    is never shown: it may repeat what was asked, and that may hold a secret.
    """
    match error:
        case InvalidStatus():
            return _explain_status(error.response, where, context)
        case InvalidMessage() if isinstance(error.__cause__, EOFError):
            return SourceUnavailable(f"{where}: closed by the peer before it had answered the handshake")
        case InvalidMessage():
            return SourceUnavailable(
                f"{where}: its answer is not HTTP/1.1; does it speak WebSocket on that port, and with TLS or not?"
            )
        case NegotiationError() if "extension" in str(error):
            return SourceUnavailable(
                f"{where}: accepted an extension of the protocol that was not offered; {_NOT_COMPRESSED}"
            )
    return SourceUnavailable(f"{where}: its answer is not a WebSocket handshake: {show(str(error), context)}")


def show(said: str, context: Context) -> str:
    """What a server said, for a message: one line, and not all of it."""
    # Masked before it is cut: half a secret would not be recognised.
    masked = Masker(context.secrets.values()).mask(said)
    line = " ".join("".join(c if c.isprintable() else " " for c in masked).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def _explain_status(response: Response, where: object, context: Context) -> FeedqError:
    code = response.status_code
    said = f"{where}: the server answered {status_name(code)}"
    if code in _CREDENTIALS:
        return FeedMisconfigured(f"{said}; check source.headers, source.url and source.secrets")
    if 300 <= code < 400:
        return _explain_redirect(response, where, context)
    if code < 300:
        return SourceUnavailable(f"{said} and is not a WebSocket; check the path in source.url")
    after = ", ".join(response.headers.get_all("Retry-After"))
    if not after:
        return SourceUnavailable(said)
    said += f", and asks to wait: Retry-After {show(after, context)}"
    retry_in_s = retry_after_s(after, now=context.clock.now())
    return SourceUnavailable(said) if retry_in_s is None else SourceBusy(said, retry_in_s=retry_in_s)


def _explain_redirect(response: Response, where: object, context: Context) -> FeedqError:
    kind = FeedMisconfigured if response.status_code in _MOVED_FOR_GOOD else SourceUnavailable
    return kind(
        f"{where}: the server redirects{_there(response, context)} ({response.status_code}), "
        "which is not followed; set source.url to where it leads"
    )


def _there(response: Response, context: Context) -> str:
    # Host and port only: the rest of the new URL may repeat what is secret in ours.
    try:
        parts = urlsplit(response.headers.get("Location", ""))
        host = parts.netloc.rpartition("@")[2]
    except (ValueError, LookupError):
        return ""
    return f" to {show(f'{parts.scheme}://{host}', context)}" if host else ""


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
    """Cuts the messages of one connection out of its bytes, after the handshake.

    The protocol is the `websockets` library's: its sans-I/O `ClientProtocol` reads fragments and control frames,
    answers pings, and refuses what is wrong. But it takes two microseconds a frame, as long as all the rest of the
    import takes for a record (docs/adr/0011). So the frames that nearly every source sends, a whole message in one
    frame that is not masked, are cut out here, and the library never sees them.

    Invariants, whatever the stream and however it was cut into pieces:

    * the messages are those that the library alone would give;
    * the library is only ever given frames from their first byte to their last, in order, so that it and the
      cutting agree where the next one begins;
    * nothing is cut out while a message is in fragments or after the library has closed the connection: what comes
      then is an error, which the library knows best;
    * memory is bounded by one message and one piece.

    A push is in steps, of one frame that the library reads and of as many whole messages as come before it.
    """

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
