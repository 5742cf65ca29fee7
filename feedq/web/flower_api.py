"""The HTTP API inside Flower, at ``/api/v1``: the endpoint of `feedq api`, behind Flower's login.

Who is logged in has the role that ``FEEDQ_FLOWER_ROLES`` gives, and needs no token. Flower's own rules come first:
who must log in, whether anything may be changed (`feedq.web.guard`), and from which pages. What may be changed
then, the database role of this Flower says, too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Generator, Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote

from flower.api import BaseApiHandler
from flower.views import BaseHandler
from tornado import web
from tornado.iostream import StreamClosedError

from feedq.api.endpoint import (
    BODY_MAX,
    JSON_TYPE,
    PREFIX,
    Answer,
    Endpoint,
    Request,
    problem_answer,
    problem_of,
)
from feedq.api.openapi import openapi
from feedq.core.authorship import Author, acting, checked_reason
from feedq.core.roles import AccessRole, Caller
from feedq.core.values import EVERY_OTHER
from feedq.errors import FeedqError, Forbidden, InvalidInput, Unavailable
from feedq.settings import settings
from feedq.verbs.registry import encode
from feedq.web.feed_reader import in_thread
from feedq.web.guard import READING, refusal
from feedq.web.queries import WebQueries

STREAMS_MAX: Final = 20
"""Streams of events that are sent at a time; each has a thread."""
OF_JOBS: Final = re.compile(r"/schedules/[^/?]+/(trigger|act)|/runs/[^/?]+/cancel")
"""What may be done to schedules and runs, below ``/api/v1``."""
REASON: Final = "Feedq-Reason"
"""The header that says why; percent-encoded."""


class FlowerApi(BaseApiHandler):
    """Hands requests to the endpoint, with who asks."""

    _streams = 0

    def initialize(self, queries: WebQueries, endpoint: Endpoint) -> None:
        self._queries, self._endpoint = queries, endpoint

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    @web.authenticated
    async def get(self, *_: str) -> None:
        try:
            answer = await self._answered()
        except FeedqError as error:
            answer = problem_answer(problem_of(error))
        self.set_status(answer.status)
        for name, value in answer.headers.items():
            self.set_header(name, value)
        if isinstance(answer.body, bytes):
            self.finish(answer.body)
        else:
            await self._stream(answer.body)

    post = put = patch = delete = get

    async def _answered(self) -> Answer:
        """Raises `Forbidden`, `InvalidInput`, `Unavailable`."""
        request = self.request
        # Whatever Flower's prefix is: the address from here on is the API's own, as it was sent.
        path = request.path.partition(PREFIX)[2]
        if path == "/openapi.json":
            return Answer(200, encode(openapi()), {"Content-Type": JSON_TYPE})
        changes = request.method not in READING
        if changes and (refused := refusal(self.application.options, is_open=self.unauthenticated_api)):
            raise Forbidden(refused)
        if len(request.body) > BODY_MAX:
            raise InvalidInput(f"the body has more than {BODY_MAX:,} bytes")
        caller = caller_of(user_of(self), settings().flower_roles, path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Request(request.method or "", path, caller, request.query, headers, request.body)
        with acting(asker_of(self, caller, unquote(request.headers.get(REASON, "")))):
            answer = await self._queries.calls.call(partial(self._endpoint.answer, asked))
        if changes:
            self._queries.forget()
        if not isinstance(answer.body, bytes) and FlowerApi._streams >= STREAMS_MAX:
            raise Unavailable(f"{STREAMS_MAX} streams are sent already; ask again in a moment")
        return answer

    async def _stream(self, parts: Generator[bytes, None, None]) -> None:
        """Send each part of a stream of events as it comes."""
        FlowerApi._streams += 1
        try:
            while part := await in_thread(lambda: next(parts, b"")):
                self.write(part)
                await self.flush()
            self.finish()
        except StreamClosedError:
            pass  # whoever asked has left
        finally:
            FlowerApi._streams -= 1
            parts.close()


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


def asker_of(handler: BaseHandler, caller: Caller, reason: str) -> Author:
    """Who asks for a change, for history. Raises `InvalidInput` for a reason that cannot be shown."""
    origin = handler.request.remote_ip or "Flower"
    return Author(caller.who, origin, checked_reason(reason.strip()), caller.tenant)
