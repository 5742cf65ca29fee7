"""The HTTP API inside Flower, at ``/api/v1``: the very same application, in this process, behind Flower's login.

Who is logged in has the role that ``FEEDQ_FLOWER_ROLES`` gives, and no token. Flower's own rules come first: who
must log in, whether anything may be changed (`feedq.web.guard`), and from which pages. What may be changed then,
the database role of this Flower says, too.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import httpx
from flower.api import BaseApiHandler
from flower.views import BaseHandler
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tornado import web
from tornado.iostream import StreamClosedError

from feedq.api.app import PREFIX
from feedq.api.authentication import CALLER
from feedq.api.bounds import is_stream
from feedq.core.roles import AccessRole, Caller
from feedq.core.values import EVERY_OTHER
from feedq.errors import InvalidInput
from feedq.settings import settings
from feedq.verbs import documents
from feedq.verbs.documents import DocumentError
from feedq.verbs.wording import as_json
from feedq.web.guard import READING, refusal
from feedq.web.queries import WebQueries

BASE: Final = "http://flower"
MANIFEST: Final = "application/yaml"
"""What the text of a dialog comes as; the API itself takes JSON."""
PASSED_ON: Final = ("accept", "content-type", "if-match", "if-none-match", "idempotency-key", "feedq-reason")
"""Headers of a request that the API heeds; of all others Flower makes what it does."""
OF_JOBS: Final = re.compile(r"schedules/[^/?]+/(trigger|pause|resume)(\?.*)?|runs/\d+/cancel(\?.*)?")
"""What may be done to schedules and runs, below ``/api/v1/``."""
ANSWERED: Final = ("content-type", "etag", "retry-after")


class MountedApi(BaseApiHandler):
    """Passes requests on to the application, saying who asks."""

    def initialize(self, app: ASGIApp, queries: WebQueries) -> None:
        self._app, self._queries = app, queries
        self._gone = asyncio.Event()

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    @web.authenticated
    async def get(self, *_: str) -> None:
        request = self.request
        # Whatever Flower's prefix is: the address from here on is the API's own.
        path = request.uri[request.uri.index(PREFIX) :]
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        body = request.body
        if headers.get("content-type") == MANIFEST:
            headers["content-type"] = "application/json"
            try:
                body = as_json(declared_in(body.decode())).encode()
            except (InvalidInput, UnicodeDecodeError) as error:
                self._answer(400, {"Content-Type": "text/plain; charset=utf-8"}, f"{error}\n".encode())
                return
        answer = await self._ask(request.method, path, headers, body)
        if self._headers_written:
            self.finish()
            return
        kept = {name: answer.headers[name] for name in ANSWERED if name in answer.headers}
        self._answer(answer.status_code, kept, answer.content)

    post = put = patch = delete = get

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        """Return what the application answers; a stream of events has been sent on by then, as it came."""
        if method not in READING:
            refused = refusal(self.application.options, is_open=self.unauthenticated_api)
            if refused is not None:
                return httpx.Response(403, text=f"{refused}\n")
        caller = caller_of(user_of(self), settings().flower_roles, path.removeprefix(f"{PREFIX}/"))
        app = PassedThrough(self._app, caller, self._stream, self._gone)
        transport = httpx.ASGITransport(
            app, raise_app_exceptions=False, client=(self.request.remote_ip or "", 0)
        )
        asked = httpx.Request(method, BASE + path, headers=headers, content=body)
        answer = await transport.handle_async_request(asked)
        await answer.aread()
        if method not in READING:
            self._queries.forget()
        return answer

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone.set()

    async def _stream(self, part: bytes) -> None:
        """Sends a part of a stream of events at once."""
        if not self._headers_written:
            self.set_header("Content-Type", "text/event-stream")
            # A proxy in front must not keep it back until the end.
            self.set_header("X-Accel-Buffering", "no")
        self.write(part)
        with suppress(StreamClosedError):
            await self.flush()

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.set_status(status)
        for name, value in headers.items():
            self.set_header(name, value)
        self.finish(body)


def declared_in(manifest: str) -> Mapping[str, Any]:
    """Return the one feed of a manifest that somebody has typed. Raises `InvalidInput`, naming the line."""
    try:
        lists = [document.lists for document in documents.read(manifest, lists=("feeds",))]
    except DocumentError as error:
        where = "" if error.line is None else f"line {error.line}: "
        raise InvalidInput(f"{where}{error}") from None
    entries = [entry.value for found in lists for entry in found.get("feeds", ())]
    if len(entries) != 1 or not isinstance(entries[0], Mapping):
        raise InvalidInput("this must be one feed: leave `feeds:` and the dash before `name:` as they are")
    return entries[0]


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


class PassedThrough:
    """An application that knows who asks, and whose streams of events go on to them as they come, not gathered."""

    def __init__(
        self,
        app: ASGIApp,
        caller: Caller,
        stream: Callable[[bytes], Awaitable[None]],
        gone: asyncio.Event,
    ) -> None:
        self._app, self._caller, self._stream, self._gone = app, caller, stream, gone
        self.is_stream = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = is_done = False

        async def received() -> Message:
            nonlocal is_read
            if is_read:
                await self._gone.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            is_read = not message.get("more_body")
            return message

        async def pass_on(message: Message) -> None:
            nonlocal is_done
            if message["type"] == "http.response.start":
                self.is_stream = is_stream(message)
            else:
                is_done = not message.get("more_body")
                if self.is_stream:
                    await self._stream(message.get("body", b""))
                    message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, CALLER: self._caller}, received, pass_on)
        if self.is_stream and not is_done:  # whoever asked has left
            await send({"type": "http.response.body", "body": b""})
