"""Who asks, judged before anything of a request is read but its first line and headers.

- A token (``Authorization: Bearer …``) says who. It is looked up for each request, so that one that is removed
  is of no use from then on.
- Without one, whoever asks from this machine may have the role that ``FEEDQ_API_LOOPBACK_ROLE`` gives; as long as
  no proxy and no page of another site sent the request.

Browsers say which page sends a request (``Sec-Fetch-Site``, ``Origin``), and by which name they know the host.
The owner of a name may point it to this machine, and then their page and what listens here are the same site for a
browser ("DNS rebinding"): what asks for no login answers only requests that name it by an address, ``localhost``
or a name that it was told.

Who asks, from where and why stands beside whatever the request changes (`feedq.core.authorship`). What is
refused is written into history as well, bounded: whoever guesses tokens asks without end.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from feedq.control.store.tokens import TokenStore
from feedq.core.authorship import Author, checked_reason
from feedq.core.permission import is_loopback
from feedq.core.roles import AccessRole, Caller
from feedq.errors import Unauthenticated, Unavailable
from feedq.verbs.registry import At
from feedq.verbs.wording import cut, printable

ANY_HOST = "*"
REASON: Final = "Feedq-Reason"
"""The header that says why; percent-encoded, or in UTF-8."""
TOKEN_CHARS_MAX: Final = 200
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of proxies: what came through one came from anywhere."""
PER_MINUTE: Final = 600
"""Refusals written in one minute; more are counted, and told with the next one that is written."""
ASKED_CHARS_MAX: Final = 300


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
        if ANY_HOST not in hosts and name not in hosts and name != "localhost":
            ipaddress.ip_address(name)  # nobody can make an address mean another machine
    except ValueError:
        return False
    return True


def is_from_here(headers: Mapping[str, str], origin: str) -> bool:
    """Tells whether a request comes from this machine itself, by the address it came from and its headers."""
    host = headers.get("Host", "")
    return (
        is_loopback(origin)
        and is_allowed(host, ())
        and not is_foreign(headers, host=host)
        and not any(name in headers for name in FORWARDED)
    )


def known_caller(at: At, headers: Mapping[str, str], origin: str) -> Caller:
    """The caller that a request of `feedq api` proves to be. Raises `Unauthenticated`, `Unavailable`."""
    kind, _, token = headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        found = at.store.tokens.find(token.strip()) if len(token) <= TOKEN_CHARS_MAX else None
        if found is None:
            raise Unauthenticated("the token is unknown or has expired; `feedq token add` makes another")
        return Caller(f"token {found.name}", found.role, found.tenant)
    role = at.settings.api_loopback_role
    if role != "none" and is_from_here(headers, origin):
        return Caller("this machine", AccessRole(role))
    raise Unauthenticated(
        "a token is required: send `Authorization: Bearer feedq_…` with one from `feedq token add`"
    )


def reason_in(headers: Mapping[str, str]) -> str:
    # Headers are read as Latin-1, whatever they were written in.
    return unquote(headers.get(REASON, "").encode("latin-1").decode(errors="replace"))


def asker_of(caller: Caller, origin: str | None, reason: str) -> Author:
    """Who asks for a change, for history. ``origin`` is an address; who comes through a socket of files has none.

    Raises `InvalidInput` for a reason that cannot be shown.
    """
    return Author(caller.who, origin or "this machine", checked_reason(reason.strip()), caller.tenant)


class RefusalLog:
    """Writes refusals of one process. Thread-safe."""

    def __init__(
        self, tokens: TokenStore, *, per_minute: int = PER_MINUTE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens, self._per_minute, self._clock = tokens, per_minute, clock
        self._lock = Lock()
        self._minute = 0
        self._written = 0
        self._left_out = 0

    def write(self, asked: str, status: int) -> None:
        """Whoever asked is refused in any case: that it cannot be written down changes nothing."""
        detail: dict[str, Any] = {"asked": cut(printable(asked), ASKED_CHARS_MAX), "status": status}
        with self._lock:
            minute = int(self._clock() // 60)
            if minute != self._minute:
                self._minute, self._written = minute, 0
            if self._written >= self._per_minute:
                self._left_out += 1
                return
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        with suppress(Unavailable):
            self._tokens.refused(detail | ({"left_out": left_out} if left_out else {}))
