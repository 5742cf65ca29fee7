"""What one request may cost: bytes of its body, time, and a place among those that are answered at once.

The endpoints block, in threads; so the time of a request is over for whoever asked, while its thread still ends
in its own time, as the control database's time-outs have it. Until then it keeps its place, and what comes while
all are taken is answered with 503 at once. A stream of events that has begun has its own end.

Names of feeds hold slashes. The path is left as it was sent, with ``%2F`` in it, so that a name is one part of
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feedq.api.endpoint import BODY_MAX
from feedq.api.responses import problem

TIMEOUT_S: Final = 30.0
PLACES: Final = 64
"""More wait for the connections of the pool than it would answer within the time-out."""
RETRY_AFTER_S: Final = 2


class BoundedRequests:
    """An ASGI application that bounds those of another one."""

    def __init__(self, app: ASGIApp, *, timeout_s: float = TIMEOUT_S, places: int = PLACES) -> None:
        self._app, self._timeout_s = app, timeout_s
        self._free = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _with_path_as_sent(scope)
        if self._free <= 0:
            busy = problem(
                503,
                "too many requests are being answered; ask again in a moment",
                error="Unavailable",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
            await busy(scope, receive, send)
            return
        self._free -= 1
        answer = _Answer(send)
        task = asyncio.create_task(_awaited(self._app(scope, receive, answer.send)))
        task.add_done_callback(self._give_back)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
            if answer.is_stream:
                done, _ = await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            await task
            return
        answer.close()
        task.cancel()
        if not answer.has_begun:
            late = f"no answer within {self._timeout_s:g} s; whether a change was made is not known"
            await problem(503, late, error="Unavailable")(scope, receive, send)

    def _give_back(self, task: asyncio.Task[None]) -> None:
        self._free += 1
        if not task.cancelled():
            # Retrieved here: perhaps nobody waits for it any more.
            task.exception()


class BoundedBodies:
    """An ASGI application that bounds the bodies of requests to another one, and reads them first."""

    def __init__(self, app: ASGIApp, *, body_max: int = BODY_MAX) -> None:
        self._app, self._body_max = app, body_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _read(receive, self._body_max)
        if body is None:
            too_large = f"the body is larger than {self._body_max} bytes; send it in parts"
            await problem(413, too_large, error="InvalidInput")(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


def is_stream(start: Message) -> bool:
    """Whether what begins so is a stream of events."""
    headers = Headers(raw=start.get("headers", []))
    return headers.get("Content-Type", "").startswith("text/event-stream")


async def _awaited(answer: Awaitable[None]) -> None:
    await answer


class _Answer:
    """Passes an answer on, until nobody waits for it any more."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = True
        self.has_begun = self.is_stream = False

    def close(self) -> None:
        self._is_open = False

    async def send(self, message: Message) -> None:
        if self._is_open:
            if message["type"] == "http.response.start":
                self.is_stream = is_stream(message)
            self.has_begun = True
            await self._send(message)


def _with_path_as_sent(scope: Scope) -> Scope:
    raw = scope.get("raw_path")
    return scope if raw is None else {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}


async def _read(receive: Receive, most: int) -> bytes | None:
    """The whole body; None when it is too large, or when whoever sent it has left."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            return None
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_told = False

    async def once() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once
