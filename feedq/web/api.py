"""The JSON API under ``/api/feedq/``: the same documents as the commands' ``--json``.

Flower's rules for an API apply: with a login it asks for it; without one it is closed until
``FLOWER_UNAUTHENTICATED_API`` opens it. Errors are ``{"error": …}`` with status 400, 404, 409 or 503.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any

import orjson
from flower.api import BaseApiHandler
from tornado import web

from feedq.errors import Conflict, FeedqError, InvalidInput, NotFound
from feedq.report import event_row, feed_document, feed_row, status_document, worker_row
from feedq.store.feed_listing import PAGE_MAX
from feedq.telemetry import mask_url
from feedq.web.asking import parse_query
from feedq.web.facts import Facts


class Resource(BaseApiHandler):
    """What all of them share: who may ask, and how they fail."""

    facts: Facts

    def initialize(self, facts: Facts) -> None:
        self.facts = facts

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def argument(self, name: str) -> str | None:
        value: str | None = self.get_query_argument(name, None, strip=False)
        return value

    @abstractmethod
    async def document(self, *path: str) -> dict[str, Any]:
        """The answer."""

    @web.authenticated
    async def get(self, *path: str) -> None:
        await self.answer_with(self.document(*path))

    async def answer_with(self, document: Awaitable[dict[str, Any]]) -> None:
        """What comes of it: the document, or an error with its status."""
        try:
            found = await document
        except NotFound as error:
            self.answer(404, {"error": str(error)})
        except InvalidInput as error:
            self.answer(400, {"error": str(error)})
        except Conflict as error:
            self.answer(409, {"error": str(error)})
        except FeedqError as error:
            self.answer(503, {"error": mask_url(str(error))})
        else:
            self.answer(200, found)

    def answer(self, status: int, document: dict[str, Any]) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        try:
            self.finish(orjson.dumps(document))
        except TypeError:
            # A cursor may hold an integer beyond 64 bits, which orjson refuses.
            self.finish(json.dumps(document, default=str))


class FeedList(Resource):
    """``/api/feedq/feeds``"""

    async def document(self, *path: str) -> dict[str, Any]:
        query = parse_query(self.argument, limit=PAGE_MAX)
        page = await self.facts.page(query)
        return {
            "feeds": [feed_row(view) for view in page.views],
            "total": page.matching,
            "limit": query.limit,
            "offset": query.offset,
        }


class FeedDetail(Resource):
    """``/api/feedq/feeds/<name>``"""

    async def document(self, *path: str) -> dict[str, Any]:
        facts = await self.facts.feed(path[0])
        return feed_document(facts.view, explanation=facts.explanation) | {
            "events": [event_row(event) for event in facts.events]
        }


class WorkerList(Resource):
    """``/api/feedq/workers``"""

    async def document(self, *path: str) -> dict[str, Any]:
        return {"workers": [worker_row(view) for view in await self.facts.workers()]}


class FleetStatus(Resource):
    """``/api/feedq/status``"""

    async def document(self, *path: str) -> dict[str, Any]:
        facts = await self.facts.fleet()
        return status_document(facts.numbers, facts.workers, facts.state, facts.warnings, jobs=facts.jobs)
