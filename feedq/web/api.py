"""The JSON API under ``/api/feedq/``: the same documents as the commands' ``--json``.

Flower's rules for an API apply: with a login it asks for it; without one it is closed until
``FLOWER_UNAUTHENTICATED_API`` opens it. Errors are ``{"error": …}`` with status 400, 404, 409 or 503. A change is
a POST; it answers with what was changed, or with 403 (this Flower changes nothing, or another site's page asked).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any

import orjson
from flower.api import BaseApiHandler
from tornado import web

from feedq.api.problems import status_of
from feedq.errors import FeedqError, InvalidInput
from feedq.passwords import mask_url
from feedq.report.rows import (
    event_row,
    feed_document,
    feed_row,
    run_row,
    schedule_document,
    schedule_row,
    schedule_standing,
    status_document,
    worker_row,
)
from feedq.store.feed_listing import PAGE_MAX
from feedq.web.mounted_api import why_unchanged
from feedq.web.params import (
    SCHEDULES_MAX,
    number,
    parse_moment,
    parse_query,
    parse_run_id,
    parse_schedules,
    parse_states,
)
from feedq.web.queries import WebQueries
from feedq.wording import as_json

RUNS_USUAL = 100
CHANGES = ("trigger", "pause", "resume")


class Resource(BaseApiHandler):
    """Holds what all resources share: who may ask, and how they fail."""

    queries: WebQueries

    def initialize(self, queries: WebQueries) -> None:
        self.queries = queries

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def argument(self, name: str) -> str | None:
        value: str | None = self.get_query_argument(name, None, strip=False)
        return value

    @abstractmethod
    async def document(self, *path: str) -> dict[str, Any]:
        """Makes the document that is the answer."""

    @web.authenticated
    async def get(self, *path: str) -> None:
        await self.answer_with(self.document(*path))

    async def answer_with(self, document: Awaitable[dict[str, Any]]) -> None:
        """Answers with the document that comes of it, or with an error and its status."""
        try:
            found = await document
        except FeedqError as error:
            self.answer(status_of(error), {"error": mask_url(str(error))})
        else:
            self.answer(200, found)

    def answer(self, status: int, document: dict[str, Any]) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(as_json(document))


class FeedList(Resource):
    """Serves ``/api/feedq/feeds``."""

    async def document(self, *path: str) -> dict[str, Any]:
        query = parse_query(self.argument, limit=PAGE_MAX)
        page = await self.queries.page(query)
        return {
            "feeds": [feed_row(view) for view in page.views],
            "total": page.matching,
            "limit": query.limit,
            "offset": query.offset,
        }


class FeedDetail(Resource):
    """Serves ``/api/feedq/feeds/<name>``."""

    async def document(self, *path: str) -> dict[str, Any]:
        data = await self.queries.feed(path[0])
        return feed_document(data.view, explanation=data.explanation) | {
            "events": [event_row(event) for event in data.events]
        }


class WorkerList(Resource):
    """Serves ``/api/feedq/workers``."""

    async def document(self, *path: str) -> dict[str, Any]:
        return {"workers": [worker_row(view) for view in await self.queries.workers()]}


class FleetStatus(Resource):
    """Serves ``/api/feedq/status``."""

    async def document(self, *path: str) -> dict[str, Any]:
        data = await self.queries.fleet()
        return status_document(data.numbers, data.workers, data.state, data.warnings, jobs=data.jobs)


# -- schedules and runs ------------------------------------------------------------------------------


class _Changeable(Resource):
    """Serves a resource of which something can be changed."""

    @web.authenticated
    async def post(self, *path: str) -> None:
        refused = why_unchanged(self)
        if refused is not None:
            self.answer(403, {"error": refused})
            return
        await self.answer_with(self.change(*path))

    @abstractmethod
    async def change(self, *path: str) -> dict[str, Any]:
        """Makes the change, and returns what is now."""

    def body(self, *known: str) -> dict[str, str]:
        """Reads the options of a change: a JSON object of strings, or nothing at all. Raises `InvalidInput`."""
        if not self.request.body:
            return {}
        try:
            found = orjson.loads(self.request.body)
        except orjson.JSONDecodeError:
            raise InvalidInput("the body must be a JSON object") from None
        if not isinstance(found, dict):
            raise InvalidInput("the body must be a JSON object")
        for name, value in found.items():
            if name not in known:
                raise InvalidInput(f"unknown option {name!r}; known are: {', '.join(known) or 'none'}")
            if not isinstance(value, str):
                raise InvalidInput(f"{name}: must be a string")
        return found


class ScheduleList(Resource):
    """Serves ``/api/feedq/schedules``."""

    async def document(self, *path: str) -> dict[str, Any]:
        query = parse_schedules(self.argument, limit=SCHEDULES_MAX)
        part = await self.queries.schedules.part(query)
        return {
            "schedules": [schedule_row(view) for view in part.views],
            "limit": query.limit,
            "next_after": part.next_after,
        }


class ScheduleDetail(_Changeable):
    """Serves ``/api/feedq/schedules/<name>``; by POST, with ``/trigger``, ``/pause`` or ``/resume`` behind it."""

    async def document(self, *path: str) -> dict[str, Any]:
        data = await self.queries.schedules.schedule(path[0])
        return schedule_document(data.view, counts=data.counts, runs=data.runs)

    async def change(self, *path: str) -> dict[str, Any]:
        name, _, verb = path[0].rpartition("/")
        schedules = self.queries.schedules
        if not name or verb not in CHANGES:
            raise InvalidInput(f"a change is a POST to …/schedules/<name>/<{'|'.join(CHANGES)}>")
        if verb == "trigger":
            key = self.body("key").get("key")
            return run_row(await schedules.change(lambda store: store.trigger(name, key=key)))
        if verb == "resume":
            self.body()
            return schedule_standing(await schedules.change(lambda store: store.resume(name)))
        said = self.body("until", "reason")
        until, reason = said.get("until"), said.get("reason")
        end = None if until is None else parse_moment(until, name="until")
        paused = await schedules.change(lambda store: store.pause(name, until=end, reason=reason))
        return schedule_standing(paused)


class RunList(Resource):
    """Serves ``/api/feedq/runs``. Several states are separated by commas."""

    async def document(self, *path: str) -> dict[str, Any]:
        states = parse_states(self.argument("state"))
        limit = number(self.argument("limit"), name="limit", default=RUNS_USUAL, least=1, most=PAGE_MAX)
        runs = await self.queries.schedules.runs(self.argument("schedule") or None, states, limit)
        return {"runs": [run_row(run) for run in runs], "limit": limit}


class RunDetail(_Changeable):
    """Serves ``/api/feedq/runs/<id>``; by POST, with ``/cancel`` behind it."""

    async def document(self, *path: str) -> dict[str, Any]:
        return run_row(await self.queries.schedules.run(parse_run_id(path[0])))

    async def change(self, *path: str) -> dict[str, Any]:
        if not path[1]:
            raise InvalidInput("a change is a POST to …/runs/<id>/cancel")
        self.body()
        run_id = parse_run_id(path[0])
        return run_row(await self.queries.schedules.change(lambda store: store.cancel_run(run_id)))
