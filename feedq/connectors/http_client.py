"""Asking an HTTP source: the request of a feed, redirects, and what an answer means.

httpx understands addresses, headers and links; h11 speaks HTTP/1.1; the connections are those of
`feedq.connectors.wire.connection`, so every one of them, of a redirect too, goes to a checked address, is known
to the guard, and holds a bounded number of bytes. There are no proxies, no cookies and no pool: a feed asks one
thing at a time, and keeps at most one connection.

At most `REDIRECTS_MAX` redirects are followed, none from https to http. The feed's own headers, and a client
certificate, are for the host of ``source.url`` alone, also where that upgrades http to https; what tells the
position (``Last-Event-ID``, ``If-None-Match``) is not a secret and goes along, or a redirect could not be resumed.

A path, a query, a header or a body is in no message: any of them may hold a secret, and what a server sends may
repeat it.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from io import BytesIO
from typing import Annotated, Any, ClassVar, Final, Literal

import h11
import httpx
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import Context
from feedq.connectors.wire.connection import SourceConnection, open_connection
from feedq.connectors.wire.remote import (
    TIMEOUT_S_MAX,
    USER_AGENT,
    Location,
    RequestOptions,
    Scheme,
    check_template,
    parse_location,
    retry_after_s,
    status_name,
)
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, SourceBusy, SourceUnavailable
from feedq.records.template import CURSOR, fill_in
from feedq.records.turns import PIECE_BYTES, Steps, in_turns, others_turn

SCHEMES: Final = {"http": Scheme(tls=False, port=80), "https": Scheme(tls=True, port=443)}
HEAD_BYTES_MAX: Final = 64 * 1024
"""No answer has a larger head, and no chunk of one a longer header."""
HEADERS_MAX: Final = 256
"""No answer has more headers."""
INFORMATION_MAX: Final = 16
"""So many provisional answers (1xx) may come before the real one."""
CLOSING_S: Final = 0.1
"""A kept connection that ends this soon after a request was being closed when it was sent, and the source never
saw it; later, it is trouble that has to be told."""
REDIRECTS_MAX: Final = 5
KEEP_CONNECTION_S: Final = 1.0
"""Servers give up idle connections after a few seconds, and one that just ends would fail the next request."""
NO_CONTENT: Final = frozenset((204, 205, 304))
"""Answers with these are no errors, and have no content."""
PACKED_BYTES_AT_ONCE: Final = 16 * 1024
"""It may be a thousand archives of nothing, and each of them copies what follows it."""
_GZIP: Final = zlib.MAX_WBITS | 16
_NAMED = re.compile(r"[A-Za-z0-9!#$&^_.+/-]{1,80}")
"""What of a header may be shown."""
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_LINK: Final = re.compile(rf'<([^<>]*)>((?:[^"<,]|{_QUOTED})*)')
"""A target and its parameters. A quoted text may hold commas, semicolons and angle brackets."""
_RELATION: Final = re.compile(rf';\s*(?i:rel)\s*=\s*(?:"([^"]*)"|([^\s;,"]+))|{_QUOTED}')
"""What ``rel`` says. Other quoted texts are taken whole, as they may hold the like."""
_ONLY_AN_EDIT_HELPS: Final[Mapping[int, str]] = {
    400: "does not accept the request; check source.url, source.headers and source.body",
    401: "refuses our credentials; check source.headers and its secrets",
    403: "forbids it; check source.url, and source.headers with its secrets",
    405: "does not accept the request; check source.method",
    406: "has it in none of the requested forms; check source.headers",
    410: "no longer has it; check source.url",
    413: "does not accept the request; check source.body",
    414: "does not accept the request; check source.url",
    415: "does not accept the request; check source.headers and source.body",
    422: "does not accept the request; check source.url and source.body",
    431: "does not accept the request; check source.headers",
    451: "may not provide it, for legal reasons",
}
_ASKED_BY_GET: Final = frozenset((HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.SEE_OTHER))
"""Redirects that are followed with GET, whatever the request was."""
_REDIRECTS: Final = _ASKED_BY_GET | {HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT}
_PERHAPS_FOR_NOW: Final = frozenset((403, 413))
"""With ``Retry-After`` these mean that we asked too often, or for too much, for now."""


class HttpRequestOptions(RequestOptions):
    """What is asked of an HTTP source, and how long its answer may take."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = SCHEMES
    OWN_HEADERS: ClassVar[frozenset[str]] = RequestOptions.OWN_HEADERS | {"expect", "te"}

    url: str
    """`http://host/path` or `https://host/path`. Path and query take placeholders."""
    method: Literal["GET", "POST"] = "GET"
    """Method of the request."""
    body: Annotated[str, Field(max_length=2**20)] = ""
    """With `method: POST`: body of the request. Takes placeholders."""
    response_timeout_s: Annotated[float, Field(gt=0, le=TIMEOUT_S_MAX)] = 60.0
    """Time limit from a request to the beginning of its response."""

    @field_validator("url")
    @classmethod
    def _check_host(cls, url: str) -> str:
        try:
            httpx.URL(str(parse_location(url, cls.SCHEMES)))
        except httpx.InvalidURL:
            raise ValueError("has an invalid host") from None
        return url

    @field_validator("body")
    @classmethod
    def _check_body(cls, body: str, info: ValidationInfo) -> str:
        if body and info.data.get("method", "POST") != "POST":
            raise ValueError("needs source.method POST")
        return check_template(body, info)

    @property
    def asks_with_cursor(self) -> bool:
        """Whether the cursor stands anywhere in the request."""
        return any(f"{{{CURSOR}}}" in text for text in (self.url, self.body, *self.headers.values()))


class HttpAnswer:
    """The answer to a request: its head, and its content, unpacked."""

    def __init__(self, head: h11.Response, url: httpx.URL, link: _Link) -> None:
        self.status = head.status_code
        self.headers = httpx.Headers(head.headers.raw_items())
        self.where = link.where
        """The host that answered, perhaps behind redirects."""
        self.url = url
        """What answered, for addresses relative to it; not for a message."""
        self._link = link
        self._gunzip: Gunzip | None = None

    @property
    def next_link(self) -> str:
        """Where the header ``Link`` says that the next page is, perhaps relative to `url`; or nothing."""
        return next_link(self.headers.get("link", ""))

    @property
    def links_are_read(self) -> bool:
        """Whether the header ``Link``, if there is one, holds links."""
        header = self.headers.get("link", "")
        return not header or _LINK.search(header) is not None

    @property
    def is_delimited(self) -> bool:
        """Whether the end of its content is certain, and not just the end of the connection."""
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    async def receive(self) -> bytes | bytearray:
        """Content that has arrived since the last call, at least one byte; nothing at the end.

        Raises:
            SourceUnavailable: it broke off, and all that had arrived before was taken.
        """
        if self._gunzip is None:
            return await self._link.receive()
        while True:
            # A little may hold much, and perhaps no record: others have to get their turn meanwhile.
            await others_turn()
            try:
                piece = self._gunzip.take()
            except zlib.error:
                raise SourceUnavailable(f"{self.where}: its gzip data cannot be unpacked") from None
            if piece:
                return piece
            if not self._gunzip.is_drained:
                continue
            data = await self._link.receive()
            if not data:
                if self._gunzip.is_amid:
                    raise SourceUnavailable(f"{self.where}: its gzip data is incomplete")
                return b""
            self._gunzip.push(data)

    async def read(self, bytes_max: int) -> bytes:
        """All of the content. Raises `FeedMisconfigured` if it is larger."""
        declared = self.headers.get("content-length", "")
        length = int(declared[:19]) if self._gunzip is None and declared.isdigit() else bytes_max
        is_larger = length > bytes_max
        # A buffer that grows is moved now and then, and held twice for as long as the allocator keeps the hole.
        # Zeros that nobody has written to take no memory, so all that may come has room from the start.
        content = BytesIO(bytes(min(length, bytes_max)))
        while not is_larger and (data := await self.receive()):
            is_larger = content.tell() + len(data) > bytes_max
            if not is_larger:
                content.write(data)
        if is_larger:
            raise FeedMisconfigured(
                f"{self.where}: answer of more than {bytes_max} bytes; raise source.max_response_bytes"
            )
        content.truncate()
        return content.getvalue()

    def unpack(self) -> None:
        """Unpack the content from here on. Raises `SourceUnavailable` if it is packed otherwise than by gzip."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding in ("gzip", "x-gzip"):
            self._gunzip = Gunzip()
        elif encoding not in ("", "identity"):
            raise SourceUnavailable(
                f"{self.where}: answers in the content encoding {named(encoding)}, which was not requested"
            )

    def end(self) -> None:
        """No more of it is wanted."""
        self._link.end_cycle()


class HttpClient:
    """Asks for one feed. To be closed."""

    def __init__(self, options: HttpRequestOptions, context: Context, *, idle_timeout_s: float) -> None:
        self._options = options
        self._context = context
        self._idle_timeout_s = idle_timeout_s
        self._home = location_of(httpx.URL(str(options.location)))
        self._at_home = places_for_headers(self._home)
        self._link: _Link | None = None
        """The connection of the last request."""

    @asynccontextmanager
    async def ask(
        self, cursor: JSON, *, accept: str = "*/*", extra: Mapping[str, str] | None = None, page: str = ""
    ) -> AsyncIterator[HttpAnswer]:
        """The answer to the feed's request after ``cursor``, or to one for ``page`` instead: see `page_at`.

        Raises:
            SourceUnavailable: no answer, or one that says to try again later; `SourceBusy` if it says when.
            FeedMisconfigured: the request is wrong, or the source says so.
        """
        request = self._request(cursor, page=page, headers={"accept": accept, **(extra or {})})
        answer = await self._follow(request)
        try:
            answer.unpack()
            self._check(answer)
            yield answer
        finally:
            answer.end()

    async def pause(self, seconds: float) -> None:
        """Ask nothing for this long."""
        if seconds > KEEP_CONNECTION_S:
            await self.aclose()
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """Cut the connection, if there is one. The next request makes another."""
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- the request ---------------------------------------------------------------------------------

    def _request(self, cursor: JSON, *, page: str, headers: Mapping[str, str]) -> httpx.Request:
        options, context = self._options, self._context
        try:
            target = page or options.target(context, cursor)
            url = httpx.URL(f"{options.location}{target}" if target.startswith("/") else target)
        except httpx.InvalidURL:
            raise FeedMisconfigured(
                f"{self._home}: the address to request is not a URL; check source.url and its secrets"
            ) from None
        there = location_of(url)
        if options.method == "POST" and there not in self._at_home:
            raise self._would_get_body(there, self._home, told="has its next page at")
        plain = {"user-agent": USER_AGENT, "accept-encoding": "gzip", "connection": "keep-alive"}
        sent = {name: value.encode() for name, value in (plain | dict(headers)).items()}
        if there in self._at_home:
            for name, value in options.request_headers(context, cursor).items():
                sent[name.lower()] = value.encode("latin-1")  # each byte of it is one character
        content = None
        if options.method == "POST":
            resumed_after = options.resumed_after(cursor)
            content = fill_in(options.body, feed=context.feed, cursor=resumed_after, secrets=context.secrets)
        encoded = [(name.encode("ascii"), value) for name, value in sent.items()]
        return httpx.Request(options.method, url, headers=encoded, content=content)

    async def _follow(self, request: httpx.Request) -> HttpAnswer:
        """The answer behind all redirects."""
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._send(request)
            if answer.status not in _REDIRECTS or "location" not in answer.headers:
                return answer
            answer.end()
            request = self._redirected(request, answer)
        raise SourceUnavailable(f"{self._home}: more than {REDIRECTS_MAX} redirects")

    def _redirected(self, request: httpx.Request, answer: HttpAnswer) -> httpx.Request:
        where = answer.where
        try:
            url = request.url.join(answer.headers["location"])
            there = location_of(url)
        except (httpx.InvalidURL, UnicodeError):
            raise SourceUnavailable(f"{where}: redirects to an invalid address") from None
        self._check_scheme(there, where)
        method = "GET" if answer.status in _ASKED_BY_GET else request.method
        left_out = {b"host", b"content-length"}
        if there not in self._at_home:
            left_out.update(name.lower().encode() for name in self._options.headers)
            if method == "POST":
                raise self._would_get_body(there, where, told="redirects to")
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in left_out]
        content = request.content if method == "POST" else None
        return httpx.Request(method, url, headers=headers, content=content)

    async def _send(self, request: httpx.Request) -> HttpAnswer:
        where = location_of(request.url)
        kept, self._link = self._link, None
        if kept is not None:
            # What may not be asked twice is not asked on a connection that may just be closing.
            if request.method == "GET" and kept.where == where and kept.is_idle:
                give_up_at = asyncio.get_running_loop().time() + CLOSING_S
                try:
                    return await self._ask(kept, request)
                except SourceUnavailable:
                    if kept.was_heard or asyncio.get_running_loop().time() > give_up_at:
                        raise
            kept.close()
        connection = await open_connection(
            self._options,
            self._context,
            idle_timeout_s=self._idle_timeout_s,
            to=where,
            is_home=where == self._home,
        )
        return await self._ask(_Link(connection, where), request)

    async def _ask(self, link: _Link, request: httpx.Request) -> HttpAnswer:
        timeout_s = self._options.response_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                head = await link.ask(request)
        except TimeoutError:
            link.close()
            raise SourceUnavailable(
                f"{link.where}: no answer within {timeout_s:g} s (source.response_timeout_s)"
            ) from None
        except BaseException:
            link.close()
            raise
        self._link = link
        return HttpAnswer(head, request.url, link)

    def _would_get_body(self, there: Location, where: Location, *, told: str) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{where}: {told} {there}, which would get source.body too; if that is intended, set source.url to it"
        )

    def page_at(self, link: str, answer: HttpAnswer) -> str:
        """An address in an answer as `ask` takes it for a page; it may hold what our request held.

        Raises:
            SourceUnavailable: it is none.
            FeedMisconfigured: it gives up TLS.
        """
        try:
            url = answer.url.join(link)
        except httpx.InvalidURL:
            raise SourceUnavailable(f"{answer.where}: the address of its next page is invalid") from None
        there = location_of(url)
        self._check_scheme(there, answer.where)
        return url.raw_path.decode("ascii") if there == self._home else str(url.copy_with(fragment=None))

    def _check_scheme(self, there: Location, where: Location) -> None:
        if where.tls and not there.tls:
            raise FeedMisconfigured(
                f"{where}: leads to {there}, without TLS; if that is intended, set source.url to it"
            )

    # -- the answer ----------------------------------------------------------------------------------

    def _check(self, answer: HttpAnswer) -> None:
        """Raises what a status means that is neither a success nor ``304``."""
        status, where = answer.status, answer.where
        if 200 <= status < 300 or status == HTTPStatus.NOT_MODIFIED:
            return
        asked_s = retry_after_s(answer.headers.get("retry-after", ""), now=self._context.clock.now())
        if status in _ONLY_AN_EDIT_HELPS and (asked_s is None or status not in _PERHAPS_FOR_NOW):
            raise FeedMisconfigured(f"{where}: {_ONLY_AN_EDIT_HELPS[status]} ({status}){self._unsent(where)}")
        if status == HTTPStatus.NOT_FOUND:
            # A mistake in the URL, or a server being deployed, which no person should have to mend.
            raise SourceUnavailable(f"{where}: has nothing there; check source.url (404)")
        said = f"{where}: answered {status_name(status)}"
        if asked_s is not None:
            raise SourceBusy(f"{said}, and asks us to try again in {asked_s:g} s", retry_in_s=asked_s)
        raise SourceUnavailable(said)

    def _unsent(self, where: Location) -> str:
        if where in self._at_home or not self._options.headers:
            return ""
        return (
            f"; source.headers are sent to {self._home} only, which led there; if they are meant for {where}, "
            "set source.url to it"
        )


class _Link:
    """Holds a connection, and how far the conversation on it is."""

    def __init__(self, connection: SourceConnection, where: Location) -> None:
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
        content = request.content
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
                f"{self.where}: the request is not valid HTTP; check source.url and source.headers"
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
                await others_turn()
            if event is h11.NEED_DATA:
                await self._hear()
                if self._heard_last:
                    raise SourceUnavailable(f"{self.where}: closed by the peer before it answered")

    async def receive(self) -> bytes | bytearray:
        while not (pieces := await in_turns(self._contents())):
            if self._trouble is not None:
                raise self._trouble
            if self._is_over:
                return b""
            await self._hear()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _contents(self) -> Steps[list[Any]]:
        """The content in what has been heard. h11 takes some ten microseconds for a chunk, however small."""
        pieces: list[Any] = []
        while self._trouble is None and not self._is_over:
            try:
                event = self._next_event()
            except SourceUnavailable as error:
                self._trouble = error
                break
            if event is h11.NEED_DATA:
                break
            if type(event) is h11.Data:
                pieces.append(event.data)
            yield
        return pieces

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
        return "its answer is not HTTP/1.1; check the port, and whether it is http or https"


class Gunzip:
    """Unpacks a content in pieces of a bounded size: a few kilobytes can unpack into gigabytes.

    What arrives is kept as it is until its contents are asked for. Several archives after one another are one
    content, as files that were appended to are.
    """

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP)
        self._packed: bytes | bytearray = b""
        self._at = 0
        """How much of it was given to the inflater."""
        self._left = b""
        """Of that, what the inflater has given back."""
        self._has_more = False
        """Whether the inflater may hold contents of what it was given already."""
        self.is_amid = False
        """Whether an archive has begun and has not ended."""

    @property
    def is_drained(self) -> bool:
        """Whether all that was pushed is unpacked, and more has to be pushed."""
        return not self._has_more and not self._left and self._at == len(self._packed)

    def push(self, data: bytes | bytearray) -> None:
        """Take what arrived; everything before it must have been unpacked."""
        assert self.is_drained
        self._packed, self._at = data, 0

    def take(self) -> bytes:
        """A piece of the content, or nothing after a step that found none. Raises `zlib.error`."""
        if not self._left:
            self._left = bytes(self._packed[self._at : self._at + PACKED_BYTES_AT_ONCE])
            self._at += len(self._left)
        piece = b""
        while not piece and (self._left or self._has_more):
            if self._inflater.eof:
                # Zeros fill up a block behind an archive.
                self._left = self._left.lstrip(b"\0")
                if not self._left:
                    break
                self._inflater = zlib.decompressobj(_GZIP)
            piece = self._inflater.decompress(self._left, PIECE_BYTES)
            self.is_amid = not self._inflater.eof
            self._has_more = self.is_amid and len(piece) == PIECE_BYTES
            self._left = self._inflater.unconsumed_tail if self.is_amid else self._inflater.unused_data
        return piece


def places_for_headers(home: Location) -> frozenset[Location]:
    """Where the headers of a feed may be sent: to its source, and to the same host where that has TLS instead."""
    upgraded = replace(home, scheme="https", port=443, tls=True)
    return frozenset((home, upgraded) if home.scheme == "http" and home.port == 80 else (home,))


def next_link(header: str) -> str:
    """The target of the first link with the relation ``next`` (RFC 8288, section 3); nothing if there is none.

    What stands between links and parameters, and is neither, is passed over.
    """
    for target, parameters in _LINK.findall(header):
        found = (quoted or plain for quoted, plain in _RELATION.findall(parameters))
        if "next" in next(filter(None, found), "").lower().split():
            return str(target.strip())
    return ""


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
        raise SourceUnavailable("an answer leads to an address that is not http:// or https://")
    return Location(url.scheme, host, url.port or scheme.port or 0, scheme.tls, "")


def named(text: str) -> str:
    """A word of a header for a message, if it is one."""
    return repr(text) if _NAMED.fullmatch(text) else "that it names"
