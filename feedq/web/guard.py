"""Who is let in to Flower: its own pages and API as well as feedq's.

Flower asks nobody anything unless it was given a login, and without one it answers pages of other sites too. Here:

- Without a login Flower starts only where nobody but this machine reaches it.
- A request that changes something comes from one of these very pages or from no browser at all. Browsers say
  where a request comes from (``Sec-Fetch-Site``, ``Origin``); what the page of another site sends is refused.
- Such a request names a host by which this Flower is known: an address, ``localhost``, or one of
  ``FEEDQ_FLOWER_HOSTS``. The owner of any other name may point it to this machine, and then their page and Flower
  are the same site for a browser ("DNS rebinding"). Without a login that page could also read, so there every
  request has to name such a host. With a login it cannot: browsers send a login only to the host it was given to.
- No answer may be read by the page of another site, nor be shown inside of one.

Requests are judged before Flower looks at them, by address and headers alone, whoever is logged in.

Who may change anything on feedq's own pages and API, `refusal` says: whoever is logged in as Flower wants it, in a
Flower that was not started with ``--read_only``; without a login nobody, unless ``FLOWER_UNAUTHENTICATED_API``
opens the API.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click
from flower.app import Flower
from tornado import httputil, web

from feedq.api.authentication import is_allowed, is_foreign
from feedq.core.values import is_loopback
from feedq.settings import settings

READING = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
TASKS_KEPT = 2000
"""Tasks that Flower remembers unless it is told otherwise, at 4 kB each. Its own default are 100,000: 400 MB."""


class GuardedFlower(Flower):
    """Puts Flower's web application behind the rules of this module."""

    def __init__(self, options: Any = None, *args: Any, **kwargs: Any) -> None:
        if options is not None:
            unsafe = why_unsafe(options)
            if unsafe is not None:
                raise click.ClickException(unsafe)
        super().__init__(options, *args, **kwargs)
        self._hosts = frozenset(host.lower() for host in settings().flower_hosts)
        self.add_transform(_ForThisSiteOnly)

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        refused = why_refused(
            request.method or "", request.headers, hosts=self._hosts, has_login=has_login(self.options)
        )
        if refused is not None:
            return self.get_handler_delegate(request, _Refusal, {"why": refused})
        return super().find_handler(request, **kwargs)


class _Refusal(web.RequestHandler):
    """Answers 403 and why."""

    def initialize(self, why: str) -> None:
        self._why = why

    def check_xsrf_cookie(self) -> None:
        """Ask for no token: the answer is no in any case."""

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self._why + "\n")


class _ForThisSiteOnly(web.OutputTransform):
    """Takes back that Flower, opened to everybody, lets pages of any site read what it answers."""

    def transform_first_chunk(
        self, status_code: int, headers: httputil.HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, httputil.HTTPHeaders, bytes]:
        for name in [name for name in headers if name.lower().startswith("access-control-")]:
            del headers[name]
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        headers["X-Frame-Options"] = "DENY"
        return status_code, headers, chunk


def has_login(options: Any) -> bool:
    return bool(options.basic_auth or options.auth)


def refusal(options: Any, *, is_open: bool) -> str | None:
    """Says why this Flower changes nothing, or None; ``is_open``: its API needs no login."""
    if options.read_only:
        return "this Flower was started with --read_only"
    if has_login(options) or is_open:
        return None
    return "without a login nothing can be changed; give Flower one (FLOWER_BASIC_AUTH)"


def why_unsafe(options: Any) -> str | None:
    """Says why a Flower with these options must not start, and what to set; None when it may."""
    if has_login(options) or options.unix_socket or is_loopback(options.address):
        return None
    where = f"on {options.address}" if options.address else "on every address of this machine"
    return (
        f"Flower would listen {where} and ask nobody for a password. Give it a login "
        "(FLOWER_BASIC_AUTH=user:password, or one of its OAuth providers with --auth), or let only this machine "
        "reach it (--address=127.0.0.1)."
    )


def why_refused(
    method: str, headers: Mapping[str, str], *, hosts: Collection[str], has_login: bool
) -> str | None:
    """Says why a request is not looked at, in words for whoever sent it; None when it is."""
    host = headers.get("Host", "")
    is_reading = method in READING
    # Every browser names a host.
    if host and not (has_login and is_reading) and not is_allowed(host, hosts):
        return (
            f"403 Forbidden: this Flower is not known as {host!r}. If it is to be, add the name to "
            "FEEDQ_FLOWER_HOSTS and start Flower again."
        )
    if not is_reading and is_foreign(headers, host=host):
        return "403 Forbidden: a page of another site may change nothing here."
    return None
