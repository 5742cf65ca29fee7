"""Who is let in to Flower, its own pages and API as well as feedq's, and what they may do there.

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
opens the API. Whoever may has the role that ``FEEDQ_FLOWER_ROLES`` gives. The HTTP API at ``/api/v1`` is the
handler of `feedq api` behind that login, and asks for no token. What may be changed then, the database role of
this Flower says, too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import click
from flower.api import BaseApiHandler
from flower.app import Flower
from flower.views import BaseHandler
from tornado import httputil, web

from feedq.api.authentication import is_allowed, is_foreign
from feedq.api.handler import ApiHandler
from feedq.core.permission import is_loopback
from feedq.core.roles import AccessRole, Caller
from feedq.core.values import EVERY_OTHER
from feedq.errors import Forbidden
from feedq.settings import settings
from feedq.verbs.registry import PREFIX

READING = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
TASKS_KEPT = 2000
"""Tasks that Flower remembers unless it is told otherwise, at 4 kB each. Its own default are 100,000: 400 MB."""
OF_JOBS: Final = re.compile(r"/schedules/[^/?]+/(trigger|act)|/runs/[^/?]+/cancel")
"""What may be done to schedules and runs, below ``/api/v1``."""


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
            f"403 Forbidden: this Flower is not known as {host!r}. If that name is right, add it to "
            "FEEDQ_FLOWER_HOSTS and restart Flower."
        )
    if not is_reading and is_foreign(headers, host=host):
        return "403 Forbidden: pages of other sites may not change anything here."
    return None


# -- who is logged in ----------------------------------------------------------------------------------


class FlowerApi(ApiHandler, BaseApiHandler):
    """Answers who is logged in."""

    challenge = 'Basic realm="flower"'

    async def who_asks(self) -> Caller:
        if not self.current_user:
            raise web.HTTPError(401, "log in to Flower first")
        options = self.application.options  # type: ignore[attr-defined] # Flower's
        changes = self.request.method not in READING
        if changes and (refused := refusal(options, is_open=self.unauthenticated_api)):
            raise Forbidden(refused)
        return caller_of(user_of(self), settings().flower_roles, self.address)

    @property
    def address(self) -> str:
        return self.request.path.partition(PREFIX)[2]  # whatever Flower's own prefix is


def user_of(handler: BaseHandler) -> str:
    """Return who is logged in, as they log in; empty when nobody has to."""
    if isinstance(handler.current_user, str):
        return handler.current_user
    # Without a login of that kind nobody has checked what the header says.
    if not handler.application.options.basic_auth:
        return ""
    kind, _, said = handler.request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(said).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def caller_of(user: str, roles: Mapping[str, str], path: str = "") -> Caller:
    """Return the caller that a user of Flower is: ``operator``, or ``operator:acme`` over one tenant.

    Where no roles are given, whoever is logged in may look at everything, and do `OF_JOBS`.
    """
    usual = AccessRole.VIEWER if roles or not OF_JOBS.fullmatch(path) else AccessRole.OPERATOR
    said = roles.get(user) or roles.get(EVERY_OTHER, usual)
    role, _, tenant = said.partition(":")
    return Caller(f"{user or 'somebody'} in Flower", AccessRole(role), tenant or None)
