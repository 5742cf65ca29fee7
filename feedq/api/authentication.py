"""Who asks, judged before anything of a request is read but its first line and headers; and what they have to be
allowed.

- A token (``Authorization: Bearer …``) says who. It is looked up for each request, so that one that is removed
  is of no use from then on.
- Another application of this process that has a login of its own, such as Flower, says who in the ASGI scope,
  under `CALLER`. No request can write there.
- Without either, whoever asks from this machine may have the role that ``FEEDQ_API_LOOPBACK_ROLE`` gives; as
  long as no proxy and no page of another site sent the request.

Browsers say which page sends a request (``Sec-Fetch-Site``, ``Origin``), and by which name they know the host.
The owner of a name may point it to this machine, and then their page and what listens here are the same site for a
browser ("DNS rebinding"): what asks for no login answers only requests that name it by an address, ``localhost``
or a name that it was told.

Who asks, from where and why stands beside whatever the request changes (`feedq.core.authorship`). What is
refused is written down as well.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from feedq.api.backend import ApiBackend
from feedq.api.responses import asked, problem_response
from feedq.core.authorship import Author, checked_reason, set_author
from feedq.core.roles import AccessRole, Caller
from feedq.core.values import is_loopback
from feedq.errors import FeedqError, Unauthenticated

ANY_HOST = "*"


def is_foreign(headers: Mapping[str, str], *, host: str) -> bool:
    """Tells whether a request was sent by the page of another site."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site:
        return site != "same-origin"
    return origin is not None and urlsplit(origin).netloc != host


def is_allowed(host: str, hosts: Collection[str]) -> bool:
    """Tells whether ``host``, as requests name it, is an address, ``localhost`` or one of ``hosts``."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    # Nobody can make an address mean another machine.
    return ANY_HOST in hosts or name in hosts or name == "localhost" or _address(name) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


CALLER: Final = "feedq.caller"
REASON: Final = "Feedq-Reason"
"""The header that says why; percent-encoded, or in UTF-8."""
TOKEN_CHARS_MAX: Final = 200
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of proxies: what came through one came from anywhere."""
OPEN: Final = ("/healthz",)


class AuthenticatedRequests:
    """An ASGI application that answers those whom it knows."""

    def __init__(self, app: ASGIApp, backend: ApiBackend) -> None:
        self._app, self._backend = app, backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._authenticated(scope)
        except FeedqError as error:
            if isinstance(error, Unauthenticated):
                await to_thread.run_sync(self._backend.refusals.write, asked(scope), 401)
            await problem_response(error)(scope, receive, send)
            return
        await self._app({**scope, CALLER: caller}, receive, send)

    async def _authenticated(self, scope: Scope) -> Caller:
        """Raises `Unauthenticated`, `InvalidInput`, `Unavailable`."""
        headers = Headers(scope=scope)
        origin = (scope.get("client") or ("this process", 0))[0]
        set_author(Author("nobody", origin))
        caller: Caller = scope.get(CALLER) or await self._caller_of(headers, origin)
        set_author(Author(caller.who, origin, tenant=caller.tenant))
        set_author(Author(caller.who, origin, _reason(headers), caller.tenant))
        return caller

    async def _caller_of(self, headers: Headers, origin: str) -> Caller:
        kind, _, token = headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found = None
            if len(token) <= TOKEN_CHARS_MAX:
                found = await to_thread.run_sync(self._backend.store.tokens.find, token.strip())
            if found is None:
                raise Unauthenticated(
                    "the token is not known, or its time is over; `feedq token add` makes another"
                )
            return Caller(f"token {found.name}", found.role, found.tenant)
        role = self._backend.settings.api_loopback_role
        if role != "none" and _is_from_here(headers, origin):
            return Caller("this machine", AccessRole(role))
        raise Unauthenticated(
            "this needs a token: send `Authorization: Bearer feedq_…` with one that `feedq token add` has made"
        )


def _is_from_here(headers: Headers, origin: str) -> bool:
    host = headers.get("Host", "")
    return (
        is_loopback(origin)
        and is_allowed(host, ())
        and not is_foreign(headers, host=host)
        and not any(name in headers for name in FORWARDED)
    )


def _reason(headers: Headers) -> str | None:
    """Raises `InvalidInput`."""
    said = headers.get(REASON)
    if said is None:
        return None
    # Headers are read as Latin-1, whatever they were written in.
    return checked_reason(unquote(said.encode("latin-1").decode(errors="replace")))
