"""Makes the ASGI application of a store and settings. Whoever makes it closes the store."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp

import feedq
from feedq.api import (
    admin_routes,
    bulk_routes,
    feed_routes,
    fleet_routes,
    schedule_routes,
    sink_routes,
    tap_routes,
)
from feedq.api.answers import Problem, answer, answer_errors
from feedq.api.authentication import AuthenticatedRequests
from feedq.api.backend import ApiBackend
from feedq.api.bounds import BoundedBodies, BoundedRequests
from feedq.api.documents import COMPONENTS

PREFIX = "/api/v1"
ROUTERS = (
    *(feed_routes.feeds, feed_routes.declarations, bulk_routes.router),
    *(sink_routes.cursors, sink_routes.backfills, sink_routes.dead_letters, tap_routes.router),
    *(schedule_routes.schedules, schedule_routes.declarations),
    *(fleet_routes.fleet, fleet_routes.workers, fleet_routes.events),
    *(admin_routes.tokens, admin_routes.catalogs),
)


def make_app(backend: ApiBackend) -> ASGIApp:
    """The application behind its bounds: who asks is judged before a body is read."""
    return BoundedRequests(AuthenticatedRequests(BoundedBodies(make_fastapi(backend)), backend))


def make_fastapi(backend: ApiBackend) -> FastAPI:
    """Make the application without the bounds."""
    app = _bare()
    app.state.backend = backend
    return app


def document_of() -> dict[str, Any]:
    """Return the OpenAPI document, for which there need be no backend."""
    return _document(_bare())


def _bare() -> FastAPI:
    # No pages for people here, which load scripts from elsewhere.
    app = FastAPI(
        title="feedq",
        version=feedq.__version__,
        summary="Long-running feeds on a fixed set of workers.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    app.get("/healthz", include_in_schema=False)(_healthz)
    answer_errors(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _healthz() -> Response:
    """The process answers, whatever else does."""
    return answer({"status": "ok"})


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        made["components"]["schemas"] |= COMPONENTS | {"Problem": Problem.model_json_schema()}
        app.openapi_schema = made
    return app.openapi_schema
