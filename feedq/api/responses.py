"""Answers of the endpoint, and problems found before it was asked, as Starlette sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from http import HTTPStatus
from typing import Final

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from feedq.api.endpoint import Answer, Problem, problem_answer, problem_of

_END: Final = b""


def asked(scope: Scope) -> str:
    """What a request asks for, to be written down."""
    return f"{scope['method']} {scope['path']}"


def problem(status: int, detail: str, *, error: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that never came as far as the endpoint."""
    found = response(problem_answer(Problem(HTTPStatus(status).phrase, status, detail, error)))
    found.headers.update(headers or {})
    return found


def problem_response(error: Exception) -> Response:
    return response(problem_answer(problem_of(error)))


def response(answer: Answer) -> Response:
    headers = dict(answer.headers)
    if isinstance(answer.body, bytes):
        return Response(answer.body, answer.status, headers)
    return StreamingResponse(_parts(answer.body), answer.status, headers)


async def _parts(events: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
    """The events, each waited for in a thread; ended as soon as whoever asked has left."""
    limiter = CapacityLimiter(1)  # of this stream alone: what waits for long keeps no other request waiting
    try:
        while part := await to_thread.run_sync(next, events, _END, limiter=limiter):
            yield part
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(events.close)
