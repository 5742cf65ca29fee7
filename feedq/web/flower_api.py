"""The HTTP API inside Flower, at ``/api/v1``: the handler of `feedq api`, behind Flower's login.

Who is logged in has the role that ``FEEDQ_FLOWER_ROLES`` gives, and needs no token. Flower's own rules come first:
who must log in, whether anything may be changed (`feedq.web.guard`), and from which pages. What may be changed
then, the database role of this Flower says, too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from flower.api import BaseApiHandler
from flower.views import BaseHandler
from tornado import web

from feedq.api.endpoint import PREFIX
from feedq.api.handler import ApiHandler
from feedq.core.roles import AccessRole, Caller
from feedq.core.values import EVERY_OTHER
from feedq.errors import Forbidden
from feedq.settings import settings
from feedq.web.guard import READING, refusal

OF_JOBS: Final = re.compile(r"/schedules/[^/?]+/(trigger|act)|/runs/[^/?]+/cancel")
"""What may be done to schedules and runs, below ``/api/v1``."""


class FlowerApi(ApiHandler, BaseApiHandler):
    """Answers who is logged in."""

    challenge = 'Basic realm="flower"'

    async def who_asks(self) -> Caller:
        if not self.current_user:
            raise web.HTTPError(401, "this needs a login to Flower")
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
