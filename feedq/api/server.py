"""The ASGI application of `feedq api`: Starlette reads a request, and the endpoint answers it in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request as AsgiRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from feedq.api.authentication import CALLER, AuthenticatedRequests
from feedq.api.backend import ApiBackend
from feedq.api.bounds import BoundedBodies, BoundedRequests
from feedq.api.endpoint import JSON_TYPE, Answer, Endpoint, Request, encode
from feedq.api.openapi import PREFIX, openapi
from feedq.verbs.registry import At

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def make_app(backend: ApiBackend, at: At) -> ASGIApp:
    """The application behind its bounds: who asks is judged before a body is read."""
    endpoint = Endpoint(at)

    async def ask(request: AsgiRequest) -> Response:
        asked = Request(
            request.method,
            request.url.path.removeprefix(PREFIX),
            request.scope[CALLER],
            request.url.query,
            dict(request.headers),
            await request.body(),
        )
        return _response(await to_thread.run_sync(endpoint.answer, asked))

    routes = [
        Route("/healthz", _healthz),
        Route(f"{PREFIX}/openapi.json", _openapi),
        Route(f"{PREFIX}/{{path:path}}", ask, methods=METHODS),
    ]
    return BoundedRequests(AuthenticatedRequests(BoundedBodies(Starlette(routes=routes)), backend))


def _response(answer: Answer) -> Response:
    headers = dict(answer.headers)
    if isinstance(answer.body, Iterator):
        return StreamingResponse(answer.body, answer.status, headers)
    return Response(answer.body, answer.status, headers)


async def _healthz(_: AsgiRequest) -> Response:
    """The process answers, whatever the servers behind it do."""
    return Response(b'{"status":"ok"}', media_type=JSON_TYPE)


async def _openapi(_: AsgiRequest) -> Response:
    return Response(encode(openapi()), media_type=JSON_TYPE)
