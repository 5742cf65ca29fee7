"""The JSON API of schedules and runs, under ``/api/feedq/``.

Reads are as those of feeds. A change is a POST; it answers with what was changed, and besides the errors of reads
with 403 (this Flower changes nothing, or another site's page asked) and 409 (it cannot be, as things stand).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import orjson
from tornado import web

from feedq.errors import InvalidInput
from feedq.report import run_row, schedule_document, schedule_row, schedule_standing
from feedq.web.api import Resource
from feedq.web.schedules.asking import SCHEDULES_MAX, parse_moment, parse_run_id, parse_runs, parse_schedules
from feedq.web.schedules.changing import refusal

KEY_MAX = 200
"""Characters of a trigger's key."""
RUNS_USUAL = 100
CHANGES = ("trigger", "pause", "resume")


class _Changeable(Resource):
    """A resource of which something can be changed."""

    @web.authenticated
    async def post(self, *path: str) -> None:
        refused = refusal(self.application.options, is_open=self.unauthenticated_api)
        if refused is not None:
            self.answer(403, {"error": refused})
            return
        await self.answer_with(self.change(*path))

    @abstractmethod
    async def change(self, *path: str) -> dict[str, Any]:
        """Make it, and say what is now."""

    def body(self, *known: str) -> dict[str, str]:
        """The options of a change: a JSON object of strings, or nothing at all. Raises `InvalidInput`."""
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
    """``/api/feedq/schedules``"""

    async def document(self, *path: str) -> dict[str, Any]:
        query = parse_schedules(self.argument, limit=SCHEDULES_MAX)
        part = await self.facts.schedules.part(query)
        return {
            "schedules": [schedule_row(view) for view in part.views],
            "limit": query.limit,
            "next_after": part.next_after,
        }


class ScheduleDetail(_Changeable):
    """``/api/feedq/schedules/<name>``; by POST, with ``/trigger``, ``/pause`` or ``/resume`` behind it."""

    async def document(self, *path: str) -> dict[str, Any]:
        facts = await self.facts.schedules.schedule(path[0])
        return schedule_document(facts.view, counts=facts.counts, runs=facts.runs)

    async def change(self, *path: str) -> dict[str, Any]:
        name, _, verb = path[0].rpartition("/")
        schedules = self.facts.schedules
        if not name or verb not in CHANGES:
            raise InvalidInput(f"a change is a POST to …/schedules/<name>/<{'|'.join(CHANGES)}>")
        if verb == "trigger":
            key = self.body("key").get("key")
            if key is not None and not 0 < len(key) <= KEY_MAX:
                raise InvalidInput(f"key: must have 1 to {KEY_MAX} characters")
            return run_row(await schedules.trigger(name, key=key))
        if verb == "resume":
            self.body()
            return schedule_standing(await schedules.resume(name))
        said = self.body("until", "reason")
        until = None if "until" not in said else parse_moment(said["until"], name="until")
        return schedule_standing(await schedules.pause(name, until=until, reason=said.get("reason")))


class RunList(Resource):
    """``/api/feedq/runs``"""

    async def document(self, *path: str) -> dict[str, Any]:
        query = parse_runs(self.argument, limit=RUNS_USUAL)
        runs = await self.facts.schedules.runs(query)
        return {"runs": [run_row(run) for run in runs], "limit": query.limit}


class RunDetail(_Changeable):
    """``/api/feedq/runs/<id>``; by POST, with ``/cancel`` behind it."""

    async def document(self, *path: str) -> dict[str, Any]:
        return run_row(await self.facts.schedules.run(parse_run_id(path[0])))

    async def change(self, *path: str) -> dict[str, Any]:
        if not path[1]:
            raise InvalidInput("a change is a POST to …/runs/<id>/cancel")
        self.body()
        return run_row(await self.facts.schedules.cancel(parse_run_id(path[0])))
