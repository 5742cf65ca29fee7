"""The ASGI application of `feedq api`: Starlette reads a request, and the endpoint answers it in a thread.

Whoever makes it closes the store.
"""

from __future__ import annotations

from typing import Final

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request as AsgiRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from feedq.api.authentication import CALLER, AuthenticatedRequests
from feedq.api.backend import ApiBackend
from feedq.api.bounds import BoundedBodies, BoundedRequests
from feedq.api.endpoint import JSON_TYPE, PREFIX, Endpoint, Request
from feedq.api.openapi import openapi
from feedq.api.responses import response
from feedq.core.roles import AccessRole, Caller
from feedq.verbs.registry import At, encode

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
NOBODY: Final = Caller("nobody", AccessRole.VIEWER, tenant="")


def make_app(backend: ApiBackend) -> ASGIApp:
    """The application behind its bounds: who asks is judged before a body is read."""
    at = At(backend.store, backend.settings, NOBODY, backend.open_sink)
    endpoint = Endpoint(at, backend.refusals.write)

    async def ask(request: AsgiRequest) -> Response:
        asked = Request(
            request.method,
            request.scope["path"].removeprefix(PREFIX),
            request.scope[CALLER],
            request.url.query,
            dict(request.headers),
            await request.body(),
        )
        return response(await to_thread.run_sync(endpoint.answer, asked))

    routes = [
        Route("/healthz", _healthz),
        Route(f"{PREFIX}/openapi.json", _openapi),
        Route("/{path:path}", ask, methods=METHODS),
    ]
    return BoundedRequests(AuthenticatedRequests(BoundedBodies(Starlette(routes=routes)), backend))


async def _healthz(_: AsgiRequest) -> Response:
    """The process answers, whatever the servers behind it do."""
    return Response(b'{"status":"ok"}', media_type=JSON_TYPE)


async def _openapi(_: AsgiRequest) -> Response:
    return Response(encode(openapi()), media_type=JSON_TYPE)
