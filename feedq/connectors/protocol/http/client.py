"""Asking an HTTP source: the request of a feed, redirects, and what the status of an answer means.

One client belongs to one connection attempt. It keeps no cookies, takes no proxies from the environment, and
follows at most `REDIRECTS_MAX` redirects, none from https to http. The feed's own headers, and a client
certificate, are for the host of ``source.url`` alone; what tells the position (``Last-Event-ID``,
``If-None-Match``) is no secret and goes along, or a redirect could not be resumed.

A path, a query, a header or a body is in no message: any of them may hold a secret.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from io import BytesIO
from typing import ClassVar, Final, Literal

import httpx
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import Context
from feedq.connectors.protocol.http.gunzip import Gunzip
from feedq.connectors.protocol.http.http_transport import BODY, SCHEMES, Body, Transport, location_of
from feedq.connectors.protocol.http.request_options import USER_AGENT, RequestOptions
from feedq.connectors.protocol.http.retry_after import retry_after_s
from feedq.connectors.records.framing_options import BUFFER_BYTES_MAX
from feedq.connectors.wire.connection import Connection, ConnectionOptions, open_connection
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, Location, Scheme, check_template, parse_location
from feedq.connectors.wire.template import CURSOR, compile_template, wire_values
from feedq.errors import FeedMisconfigured, SourceBusy, SourceUnavailable
from feedq.model import JSON

REDIRECTS_MAX: Final = 5
KEEP_CONNECTION_S: Final = 1.0
"""Servers give up idle connections after a few seconds, and one that just ends would fail the next request."""
NO_CONTENT: Final = frozenset((204, 205, 304))
"""Answers with these are no errors, and have no content."""
_NAMED = re.compile(r"[A-Za-z0-9!#$&^_.+/-]{1,80}")
"""What of a header may be shown."""
_ONLY_AN_EDIT_HELPS: Final[Mapping[int, str]] = {
    400: "does not accept the request; check source.url, source.headers and source.body",
    401: "refuses our credentials; check source.headers and its secrets",
    403: "forbids it; check source.url, and source.headers with its secrets",
    405: "does not accept the request; check source.method",
    406: "has it in no form that was asked for; check source.headers",
    410: "has it no longer; check source.url",
    413: "does not accept the request; check source.body",
    414: "does not accept the request; check source.url",
    415: "does not accept the request; check source.headers and source.body",
    422: "does not accept the request; check source.url and source.body",
    431: "does not accept the request; check source.headers",
    451: "may not give it to us",
}
_PERHAPS_FOR_NOW: Final = frozenset((403, 413))
"""With ``Retry-After`` these mean that we asked too often, or for too much, for now."""

# httpx logs the URL of every request, and a query may hold a secret.
logging.getLogger("httpx").addFilter(lambda _: False)


class HttpRequestOptions(RequestOptions):
    """What is asked of an HTTP source, and how long its answer may take."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = SCHEMES
    OWN_HEADERS: ClassVar[frozenset[str]] = RequestOptions.OWN_HEADERS | {"expect", "te"}

    url: str = Field(
        description="What to ask for: `http://host/path` or `https://host/path`, with a port where needed. "
        "`{name}`, `{cursor}` and `{secret}` in its path and query are filled in percent-encoded. Redirects are "
        "followed, five at most; `headers` and a client certificate are for this host alone."
    )
    method: Literal["GET", "POST"] = Field(default="GET", description="What to ask with.")
    body: str = Field(
        default="",
        max_length=2**20,
        description="Sent with `method: POST`. `{name}` and `{cursor}` become JSON texts (the cursor is `null` "
        r"at first), `{secret}` the secret of that name as it is. Escapes: `\n \r \t \0 \\ \xNN`.",
    )
    response_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=TIMEOUT_S_MAX,
        description="Longest time from a request to the beginning of its answer.",
    )
    buffer_bytes: int = Field(
        default=512 * 1024,
        ge=1,
        le=BUFFER_BYTES_MAX,
        description="Received bytes that wait to be taken before reading pauses and the source has to wait.",
    )

    @field_validator("url")
    @classmethod
    def _check_host(cls, url: str) -> str:
        try:
            httpx.URL(str(parse_location(url, cls.SCHEMES)))
        except httpx.InvalidURL:
            raise ValueError("has a host that cannot be one") from None
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


class RequestRefused(FeedMisconfigured):
    """An answer whose status says that asking again is of no use."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class NothingThere(SourceUnavailable):
    """404: a mistake in the URL, or a server that is being deployed, which no person should have to mend."""

    status: Final = int(HTTPStatus.NOT_FOUND)


class Answer:
    """The answer to a request: its head, and its content, unpacked."""

    def __init__(self, response: httpx.Response, where: Location) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.where = where
        """The host that answered, perhaps behind redirects."""
        self._response = response
        self._body: Body = response.extensions[BODY]
        self._gunzip = self._unpacking()

    @property
    def url(self) -> httpx.URL:
        """What answered, for addresses relative to it; not for a message."""
        return self._response.url

    @property
    def next_link(self) -> str:
        """Where the header ``Link`` says that the next page is, perhaps relative to `url`; or nothing."""
        return self._response.links.get("next", {}).get("url", "")

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
            return await self._body.receive()
        while True:
            # A little may hold much, and perhaps no record: others have to get their turn meanwhile.
            await asyncio.sleep(0)
            try:
                piece = self._gunzip.take()
            except zlib.error:
                raise SourceUnavailable(f"{self.where}: its gzip cannot be unpacked") from None
            if piece:
                return piece
            if not self._gunzip.is_drained:
                continue
            data = await self._body.receive()
            if not data:
                if self._gunzip.is_amid:
                    raise SourceUnavailable(f"{self.where}: its gzip breaks off")
                return b""
            self._gunzip.push(data)

    async def read(self, bytes_max: int) -> bytes:
        """All of the content. Raises `FeedMisconfigured` if it is larger."""
        declared = self.headers.get("content-length", "")
        is_larger = self._gunzip is None and declared.isdigit() and int(declared[:19]) > bytes_max
        content = BytesIO()  # hands over what it holds without a copy
        while not is_larger and (data := await self.receive()):
            content.write(data)
            is_larger = content.tell() > bytes_max
        if is_larger:
            raise FeedMisconfigured(
                f"{self.where}: answer of more than {bytes_max} bytes; raise source.max_response_bytes"
            )
        return content.getvalue()

    def _unpacking(self) -> Gunzip | None:
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return None
        if encoding in ("gzip", "x-gzip"):
            return Gunzip()
        raise SourceUnavailable(
            f"{self.where}: answers in the content encoding {named(encoding)}, which was not asked for"
        )


class HttpClient:
    """Asks for one feed. To be closed."""

    def __init__(self, options: HttpRequestOptions, context: Context, *, idle_timeout_s: float) -> None:
        self._options = options
        self._context = context
        self._idle_timeout_s = idle_timeout_s
        self._home = location_of(httpx.URL(str(options.location)))
        self._transport = Transport(self._dial, response_timeout_s=options.response_timeout_s)
        self._client = httpx.AsyncClient(
            transport=self._transport,
            trust_env=False,
            # A jar that takes nothing.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    @asynccontextmanager
    async def ask(
        self, cursor: JSON, *, accept: str = "*/*", extra: Mapping[str, str] | None = None, page: str = ""
    ) -> AsyncIterator[Answer]:
        """The answer to the feed's request after ``cursor``, or to one for ``page`` instead: see `page_at`.

        Raises:
            SourceUnavailable: no answer, or one that says to try again later; `SourceBusy` if it says when.
            FeedMisconfigured: the request is wrong; `RequestRefused` if the source says so.
        """
        request = self._request(cursor, page=page, headers={"accept": accept, **(extra or {})})
        response = await self._send(request)
        try:
            answer = Answer(response, location_of(response.url))
            self._check(answer)
            yield answer
        finally:
            await response.aclose()

    async def pause(self, seconds: float) -> None:
        """Ask nothing for this long."""
        if seconds > KEEP_CONNECTION_S:
            self._transport.rest()
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        await self._client.aclose()

    # -- the request ---------------------------------------------------------------------------------

    def _request(self, cursor: JSON, *, page: str, headers: Mapping[str, str]) -> httpx.Request:
        options, context = self._options, self._context
        try:
            target = page or options.target(context, cursor)
            url = httpx.URL(f"{options.location}{target}" if target.startswith("/") else target)
        except httpx.InvalidURL:
            raise FeedMisconfigured(
                f"{self._home}: what is to be asked for is no URL; look at source.url and its secrets"
            ) from None
        there = location_of(url)
        if options.method == "POST" and there != self._home:
            raise self._would_get_body(there, self._home, told="has its next page at")
        plain = {"user-agent": USER_AGENT, "accept-encoding": "gzip", "connection": "keep-alive"}
        sent = {name: value.encode() for name, value in (plain | dict(headers)).items()}
        if there == self._home:
            for name, value in options.request_headers(context, cursor).items():
                sent[name.lower()] = value.encode("latin-1")  # each byte of it is one character
        content = self._body(cursor) if options.method == "POST" else None
        encoded = [(name.encode("ascii"), value) for name, value in sent.items()]
        return httpx.Request(options.method, url, headers=encoded, content=content)

    def _body(self, cursor: JSON) -> bytes:
        secrets = self._context.secrets
        cursor = self._options.resumed_after(cursor)
        template = compile_template(self._options.body, secrets=secrets)
        return template.render(wire_values(feed=self._context.feed, cursor=cursor, secrets=secrets))

    async def _send(self, request: httpx.Request) -> httpx.Response:
        for _ in range(REDIRECTS_MAX + 1):
            where = location_of(request.url)
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.InvalidURL, httpx.RequestError, UnicodeError):
                # Whatever the connection can raise is ours; httpx itself only looks at redirects.
                raise SourceUnavailable(f"{where}: redirects to an address that cannot be one") from None
            redirected = response.next_request
            if redirected is None:
                return response
            await response.aclose()
            request = self._redirected(redirected, after=request, where=where)
        raise SourceUnavailable(f"{self._home}: more than {REDIRECTS_MAX} redirects")

    def _redirected(self, request: httpx.Request, *, after: httpx.Request, where: Location) -> httpx.Request:
        there = location_of(request.url)
        self._check_scheme(there, where)
        if there != self._home:
            for name in self._options.headers:
                request.headers.pop(name, None)
            if request.method == "POST":
                raise self._would_get_body(there, where, told="redirects to")
        elif where == self._home and "cookie" in after.headers:
            # httpx takes it for one of its jar's.
            request.headers["cookie"] = after.headers["cookie"]
        return request

    def _would_get_body(self, there: Location, where: Location, *, told: str) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{where}: {told} {there}, which would have to be sent source.body too; "
            "if that is meant, give it as source.url"
        )

    def page_at(self, link: str, answer: Answer) -> str:
        """An address in an answer as `ask` takes it for a page; it may hold what our request held.

        Raises:
            SourceUnavailable: it is none.
            FeedMisconfigured: it gives up TLS.
        """
        try:
            url = answer.url.join(link)
        except httpx.InvalidURL:
            raise SourceUnavailable(f"{answer.where}: the address of its next page cannot be one") from None
        there = location_of(url)
        self._check_scheme(there, answer.where)
        return url.raw_path.decode("ascii") if there == self._home else str(url.copy_with(fragment=None))

    def _check_scheme(self, there: Location, where: Location) -> None:
        if where.tls and not there.tls:
            raise FeedMisconfigured(
                f"{where}: leads on to {there}, without TLS; if that is meant, give it as source.url"
            )

    async def _dial(self, where: Location) -> Connection:
        options = self._options
        is_home = where == self._home
        files = options.tls_files if is_home else replace(options.tls_files, cert_file=None, key_file=None)
        connection_options = ConnectionOptions(
            endpoint=where,
            connect_timeout_s=options.connect_timeout_s,
            idle_timeout_s=self._idle_timeout_s,
            buffer_bytes=options.buffer_bytes,
            keepalive=True,
            tls_files=files,
            server_name=options.server_name if is_home else None,
        )
        return await open_connection(connection_options, self._context)

    # -- the answer ----------------------------------------------------------------------------------

    def _check(self, answer: Answer) -> None:
        """Raises what a status means that is neither a success nor ``304``."""
        status, where = answer.status, answer.where
        if 200 <= status < 300 or status == HTTPStatus.NOT_MODIFIED:
            return
        asked_s = retry_after_s(answer.headers.get("retry-after", ""), now=self._context.clock.now())
        if status in _ONLY_AN_EDIT_HELPS and (asked_s is None or status not in _PERHAPS_FOR_NOW):
            raise RequestRefused(f"{where}: {_ONLY_AN_EDIT_HELPS[status]} ({status})", status=status)
        if status == HTTPStatus.NOT_FOUND:
            raise NothingThere(f"{where}: has nothing there; check source.url (404)")
        said = f"{where}: answered {_status_name(status)}"
        if asked_s is not None:
            raise SourceBusy(f"{said}, and wants to be asked again in {asked_s:g} s", retry_in_s=asked_s)
        raise SourceUnavailable(said)


def named(text: str) -> str:
    """A word of a header for a message, if it is one."""
    return repr(text) if _NAMED.fullmatch(text) else "that it names"


def _status_name(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
