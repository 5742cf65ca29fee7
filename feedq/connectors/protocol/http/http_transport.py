"""HTTP/1.1 for httpx, over connections that feedq dials itself.

httpx makes the requests and understands the answers; h11 speaks the protocol; the connections are those of
`feedq.connectors.wire.connection`, so every one of them, of a redirect too, goes to a checked address, is known
to the guard, and holds a bounded number of bytes. There are no proxies, and no pool: a feed asks one thing at a
time, and keeps at most one connection.

The body of an answer is read with `Body.receive`, which gives everything that has arrived in one piece, however
small the chunks are in which the source sent it.

What a server sends is never quoted in an error: one that echoes would put our secrets into it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import h11
import httpx

from feedq.connectors.wire.connection import Connection
from feedq.connectors.wire.remote import Location, Scheme
from feedq.errors import FeedMisconfigured, SourceUnavailable

SCHEMES: Final = {"http": Scheme(tls=False, port=80), "https": Scheme(tls=True, port=443)}
HEAD_BYTES_MAX: Final = 64 * 1024
"""No answer has a larger head, and no chunk of one a longer header."""
HEADERS_MAX: Final = 256
"""No answer has more headers."""
INFORMATION_MAX: Final = 16
"""So many provisional answers (1xx) may come before the real one."""
EVENTS_AT_ONCE: Final = 1000
"""h11 takes some ten microseconds for a chunk, however small; after so many, the other feeds have their turn."""
CLOSING_S: Final = 0.1
"""A kept connection that ends this soon after a request was being closed when it was sent, and the source never
saw it; later, it is trouble that has to be told."""
BODY: Final = "feedq.body"
"""Extension of a response: its `Body`, which httpx hides behind iterators that cannot gather."""

Dial = Callable[[Location], Awaitable[Connection]]


class Body(httpx.AsyncByteStream):
    """What follows the head of an answer. To be closed."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    async def receive(self) -> bytes | bytearray:
        """Everything that has arrived since the last call, at least one byte; nothing at the end.

        Raises:
            SourceUnavailable: it broke off, and all that had arrived before was taken.
        """
        return await self._link.receive()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.receive():
            yield bytes(data)

    async def aclose(self) -> None:
        self._link.end_cycle()


class Transport(httpx.AsyncBaseTransport):
    """What an `httpx.AsyncClient` of one feed sends its requests through."""

    def __init__(self, dial: Dial, *, response_timeout_s: float) -> None:
        self._dial = dial
        self._response_timeout_s = response_timeout_s
        self._link: _Link | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises:
        SourceUnavailable: no connection, no answer in time, or none that is HTTP.
        FeedMisconfigured: the address is not permitted, or the request cannot be sent as it is.
        """
        where = location_of(request.url)
        if self._link is not None:
            kept, self._link = self._link, None
            # What may not be asked twice is not asked on a connection that may just be closing.
            if request.method == "GET" and kept.where == where and kept.is_idle:
                give_up_at = asyncio.get_running_loop().time() + CLOSING_S
                try:
                    return await self._ask(kept, request)
                except SourceUnavailable:
                    if kept.was_heard or asyncio.get_running_loop().time() > give_up_at:
                        raise
            kept.close()
        return await self._ask(_Link(await self._dial(where), where), request)

    async def _ask(self, link: _Link, request: httpx.Request) -> httpx.Response:
        try:
            async with asyncio.timeout(self._response_timeout_s):
                head = await link.ask(request)
        except TimeoutError:
            link.close()
            raise SourceUnavailable(
                f"{link.where}: no answer within {self._response_timeout_s:g} s (source.response_timeout_s)"
            ) from None
        except BaseException:
            link.close()
            raise
        self._link = link
        body = Body(link)
        return httpx.Response(
            head.status_code, headers=head.headers.raw_items(), stream=body, extensions={BODY: body}
        )

    def rest(self) -> None:
        """Cut the connection, if there is one. The next request makes another."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def aclose(self) -> None:
        self.rest()


class _Link:
    """One connection, and how far the conversation on it is."""

    def __init__(self, connection: Connection, where: Location) -> None:
        self.where = where
        self._connection = connection
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._trouble: SourceUnavailable | None = None
        self.was_heard = False
        """Whether anything of the present answer has come."""
        self._heard_last = False

    @property
    def is_idle(self) -> bool:
        """Whether it can take a request."""
        return (
            self._http.our_state is h11.IDLE
            and not self._http.trailing_data[0]
            and not self._connection.buffered
            and self._connection.is_open
        )

    async def ask(self, request: httpx.Request) -> h11.Response:
        content = await request.aread()
        try:
            head = h11.Request(
                method=request.method, target=request.url.raw_path, headers=request.headers.raw
            )
            asked = self._http.send(head) or b""
            asked += (self._http.send(h11.Data(data=content)) or b"") if content else b""
            asked += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError:
            # Its message quotes the request.
            raise FeedMisconfigured(
                f"{self.where}: the request holds what HTTP does not allow; look at source.url and source.headers"
            ) from None
        self._connection.send(asked)
        self.was_heard = False
        provisional = 0
        while True:
            event = self._next_event()
            if isinstance(event, h11.Response):
                if len(event.headers) > HEADERS_MAX:
                    raise SourceUnavailable(
                        f"{self.where}: answered with {len(event.headers)} headers, at most {HEADERS_MAX} are read"
                    )
                return event
            if isinstance(event, h11.InformationalResponse):
                provisional += 1
                if provisional > INFORMATION_MAX:
                    raise SourceUnavailable(
                        f"{self.where}: sent more than {INFORMATION_MAX} provisional answers (1xx) and no other"
                    )
                await asyncio.sleep(0)
            if event is h11.NEED_DATA:
                await self._hear()
                if self._heard_last:
                    raise SourceUnavailable(f"{self.where}: closed by the peer before it answered")

    async def receive(self) -> bytes | bytearray:
        pieces: list[Any] = []
        events = 0
        while self._trouble is None and not self._is_over:
            events += 1
            if events % EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
                if pieces:
                    break
            try:
                event = self._next_event()
            except SourceUnavailable as error:
                self._trouble = error
                break
            if type(event) is h11.Data:
                pieces.append(event.data)
            elif event is h11.NEED_DATA:
                if pieces:
                    break
                await self._hear()
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._trouble is not None:
            raise self._trouble
        return b""

    def end_cycle(self) -> None:
        """The answer has been read, or as much of it as was wanted: keep the connection if it is of use."""
        if self._http.their_state is h11.SEND_BODY and self._trouble is None:
            # An answer without content, such as 304, ends right behind its head.
            with suppress(SourceUnavailable):
                self._next_event()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def _is_over(self) -> bool:
        return self._http.their_state not in (h11.SEND_RESPONSE, h11.SEND_BODY)

    async def _hear(self) -> None:
        data = await self._connection.receive()
        self._heard_last = not data
        self.was_heard = self.was_heard or not self._heard_last
        self._http.receive_data(data)  # type: ignore[arg-type]  # it takes any bytes, and copies them

    def _next_event(self) -> Any:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise SourceUnavailable(f"{self.where}: {self._explain(error)}") from None

    def _explain(self, error: h11.RemoteProtocolError) -> str:
        if self._heard_last:
            return "closed by the peer in the middle of its answer"
        if error.error_status_hint == 431:
            return f"the head of its answer is larger than {HEAD_BYTES_MAX} bytes"
        return "what it answered is not HTTP/1.1; is that the right port, and http or https?"


def location_of(url: httpx.URL) -> Location:
    """Where a request goes; without the path and the query, which are nobody's business in a message."""
    scheme = SCHEMES.get(url.scheme)
    host = url.raw_host.decode("ascii")
    try:
        # What httpx and the resolver would do with it later, as in `feedq.connectors.wire.remote`.
        is_host = bool(url.host and host.encode("idna"))
    except UnicodeError:
        is_host = False
    if scheme is None or not is_host:
        raise SourceUnavailable("an answer leads to what is no http:// or https:// address")
    return Location(url.scheme, host, url.port or scheme.port or 0, scheme.tls, "")
