"""One WebSocket connection of a feed: opened within a time limit, kept alive, and explained when it ends.

It reads from a `feedq.connectors.wire.connection.Connection`, whose bounds and guard hold here too: at most its
``buffer_bytes`` wait, and beyond them the source's own sends block. The source's pings are answered as they come;
while nobody takes the messages, because of a rate limit or a sink that is away, every `ANSWER_S`, as far as they
could still be received: a source must not give up a feed that only waits.

Three things end a connection from our side: a ping that nothing at all follows, no message for the idle timeout
(pings and pongs are libraries talking, not the source), and a message over the limit.

This module knows neither records nor cursors. What the server says is shown in part only, and what we sent it
never is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import CloseCode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from feedq.clock import Clock
from feedq.connectors.base import Context
from feedq.connectors.protocol.websocket.frames import FRAGMENTS_MAX, MessageReader
from feedq.connectors.protocol.websocket.pulse import Due, Pulse
from feedq.connectors.protocol.websocket.refusal import Mask, explain_refusal, show
from feedq.connectors.records.turns import TURN_S, slices
from feedq.connectors.wire.connection import Connection, ConnectionOptions, open_connection
from feedq.connectors.wire.dialing import bounded
from feedq.errors import FeedMisconfigured, FeedqError, SourceSilent, SourceUnavailable
from feedq.secrets import Masker

HEAD_BYTES_MAX = 64 * 1024
"""No server answers a handshake with more headers than that."""
ANSWER_S = 2.0
"""Long enough to cost nothing, and short beside the time that servers wait for an answer to a ping."""
_HEAD_ENDS = b"\r\n\r\n"

_NO_LOG = logging.Logger("websockets", level=logging.CRITICAL + 1)
"""Stands apart from all other loggers: at level debug the library would log what it sends, secrets included."""


@dataclass(frozen=True, slots=True)
class WebsocketRequest:
    """What to ask for, and when to give up; durations in seconds, 0 is never."""

    connection: ConnectionOptions
    """Its idle timeout is not used."""
    target: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    subprotocols: Sequence[str]
    compression: bool
    max_message_bytes: int
    ping_interval_s: float
    ping_timeout_s: float
    idle_timeout_s: float


class Websocket:
    """An open connection. Only `open_websocket` makes one."""

    __slots__ = (
        "_answerer",
        "_connection",
        "_is_listening",
        "_loop",
        "_mask",
        "_protocol",
        "_pulse",
        "_reader",
        "_request",
        "_timer",
        "_trouble",
        "_unread",
        "_was_heard",
    )

    def __init__(
        self, request: WebsocketRequest, connection: Connection, protocol: ClientProtocol, *, mask: Mask
    ) -> None:
        self._request = request
        self._mask = mask
        self._connection = connection
        self._protocol = protocol
        self._reader = MessageReader(protocol, max_message_bytes=request.max_message_bytes)
        self._trouble: SourceUnavailable | None = None
        """Why we gave the connection up."""
        self._was_heard = False
        self._unread: deque[bytes | bytearray] = deque()
        """What was received and has its turn later, in pieces."""
        self._is_listening = False
        self._loop = asyncio.get_running_loop()
        self._pulse = Pulse(
            ping_interval_s=request.ping_interval_s,
            ping_timeout_s=request.ping_timeout_s,
            idle_timeout_s=request.idle_timeout_s,
            now=self._loop.time(),
        )
        self._timer: asyncio.TimerHandle | None = None
        self._answerer: asyncio.TimerHandle | None = None
        self._look_later()

    async def receive(self) -> list[bytes]:
        """The messages that have arrived since the last call, at least one; nothing at the end.

        Raises:
            SourceUnavailable: the connection broke, and all that had arrived before was taken.
        """
        self._is_listening = True
        try:
            while self._reader.is_open and self._trouble is None:
                if self._has_unread:
                    await asyncio.sleep(0)  # whatever one source sends, the others get their turn
                elif received := await self._connection.receive():
                    self._was_heard = True
                    self._unread.extend(slices(received))
                else:
                    break
                messages = self._read()
                self._flush()
                if messages:
                    self._answer_later()
                    return messages
        finally:
            self._is_listening = False
        return []

    def _read(self) -> list[bytes]:
        """The messages in what has arrived, as far as they can be read in one turn."""
        began = perf_counter()
        messages: list[bytes] = []
        brought_data = False
        while self._reader.is_open and self._has_unread:
            messages += self._reader.push(b"" if self._reader.is_behind else self._unread.popleft())
            brought_data = brought_data or self._reader.brought_data
            if self._reader.is_behind or perf_counter() - began >= TURN_S:
                break
        self._pulse.heard(self._loop.time(), message=brought_data)
        return messages

    @property
    def _has_unread(self) -> bool:
        return self._reader.is_behind or bool(self._unread)

    def _waiting(self) -> bytes:
        """What has arrived and was not read."""
        return b"".join((*self._unread, self._connection.peek()))

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
        where = self._request.connection.endpoint
        if self._reader.is_endless:
            return SourceUnavailable(
                f"{where}: a message in more than {FRAGMENTS_MAX} fragments {after}; "
                "the source should send it in larger ones"
            )
        self._protocol.receive_eof()
        how = self._protocol.close_exc
        if how.rcvd is not None:
            return SourceUnavailable(f"{where}: closed by the peer: {show(str(how.rcvd), mask=self._mask)}")
        if how.sent is None:
            return SourceUnavailable(f"{where}: closed by the peer{self._when()}")
        if how.sent.code == CloseCode.MESSAGE_TOO_BIG:
            return FeedMisconfigured(
                f"{where}: message of more than {self._request.max_message_bytes} bytes {after}; "
                "raise source.max_record_bytes"
            )
        return SourceUnavailable(
            f"{where}: what it sent is no WebSocket: {show(how.sent.reason, mask=self._mask)}"
        )

    def _when(self) -> str:
        if self._reader.is_amid_message:
            return " in the middle of a message"
        return " without a close frame" if self._was_heard else " before it sent anything"

    def _flush(self) -> None:
        # An empty piece says that the library is done sending; to close is our caller's part.
        self._connection.send(b"".join(self._protocol.data_to_send()))

    # -- signs of life -------------------------------------------------------------------------------

    def _look_later(self) -> None:
        # One timer that looks again later, instead of one set back with every message.
        at = self._pulse.next_at
        self._timer = self._loop.call_at(at, self._look) if at < inf else None

    def _look(self) -> None:
        if not (self._reader.is_open and self._connection.is_open):
            return  # it is over, and whoever takes the last messages is about to hear why
        now = self._loop.time()
        if self._connection.buffered or self._has_unread:
            # Unless somebody is about to take it, it is we who do not listen: the source cannot be called silent.
            self._pulse.heard(now, message=not self._is_listening)
        request, where = self._request, self._request.connection.endpoint
        match self._pulse.due(now):
            case Due.SILENT:
                self._give_up(
                    SourceSilent(
                        f"{where}: connected, but no message received for {request.idle_timeout_s:g} s "
                        "(source.idle_timeout_s)"
                    )
                )
            case Due.UNANSWERED:
                self._give_up(
                    SourceUnavailable(
                        f"{where}: nothing heard for {request.ping_timeout_s:g} s after a ping "
                        "(source.ping_timeout_s)"
                    )
                )
            case Due.PING:
                self._ping(now)
            case Due.NOTHING:
                self._look_later()

    def _ping(self, now: float) -> None:
        self._protocol.send_ping(b"feedq")
        self._pulse.pinged(now)
        if self._flushed():
            self._look_later()

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
        ping = self._reader.last_ping(self._waiting())
        if ping is not None:
            self._protocol.send_pong(ping)
        if self._flushed():
            self._answer_later()

    def _flushed(self) -> bool:
        """For what is sent while nobody waits for it; False if that was too much."""
        try:
            self._flush()
        except SourceUnavailable as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, trouble: SourceUnavailable) -> None:
        self._trouble = trouble
        self.close()


async def open_websocket(request: WebsocketRequest, context: Context) -> Websocket:
    """Connect and shake hands, all of it within ``connect_timeout_s``.

    Raises:
        SourceUnavailable: no connection, or the server refused for now; says why.
        FeedMisconfigured: it refused our credentials, or has moved; a TLS file is missing or wrong; the
            address is not permitted.
    """
    where = request.connection.endpoint

    def mask(said: str) -> str:
        # Made when there is something to say, which is seldom.
        return Masker(context.secrets.values()).mask(said)

    async with bounded(where, request.connection.connect_timeout_s):
        connection = await open_connection(request.connection, context)
        try:
            protocol = _protocol(request)
            await _shake_hands(protocol, connection, request, mask=mask, clock=context.clock)
            return Websocket(request, connection, protocol, mask=mask)
        except BaseException:
            connection.close()
            raise


def _protocol(request: WebsocketRequest) -> ClientProtocol:
    at = request.connection.endpoint
    path, _, query = request.target.partition("?")
    # Only what is on the way to us needs to be compressed: our few messages would cost a compressor.
    factory = ClientPerMessageDeflateFactory(compress_settings={"level": 0, "memLevel": 1})
    return ClientProtocol(
        WebSocketURI(at.tls, at.host.encode("idna").decode(), at.port, path, query),
        extensions=[factory] if request.compression else None,
        subprotocols=[Subprotocol(name) for name in request.subprotocols] or None,
        max_size=request.max_message_bytes,
        logger=_NO_LOG,
    )


async def _shake_hands(
    protocol: ClientProtocol, connection: Connection, request: WebsocketRequest, *, mask: Mask, clock: Clock
) -> None:
    where = request.connection.endpoint
    asking = protocol.connect()
    for name, value in request.headers.items():
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
    # The frames that came with the answer are the reader's: see the invariants of `websocket_frames`.
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
    raise explain_refusal(protocol.handshake_exc, where, mask=mask, now=clock.now())
