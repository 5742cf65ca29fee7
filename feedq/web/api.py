"""The addresses under ``/api/feedq/`` of before there was ``/api/v1``, which answers them now.

Documents are as they were, and errors are ``{"error": …}``. Only a page of feeds is read here, as for *Feeds*:
``/api/v1`` has neither its order nor its offset.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
import orjson
from tornado import web

from feedq.api.answers import status_of
from feedq.api.app import PREFIX
from feedq.api.arguments import LIMIT_MAX
from feedq.control.store.feed_listing import PAGE_MAX
from feedq.core.passwords import mask_url
from feedq.errors import FeedqError
from feedq.settings import settings
from feedq.verbs.report.rows import feed_row
from feedq.verbs.wording import as_json
from feedq.web.mounted_api import InProcess, caller_of, user_of
from feedq.web.params import parse_query

LISTS: Final = {
    "schedules": ({"limit": str(LIMIT_MAX)}, ("prefix", "after", "limit")),
    "runs": ({"limit": "100"}, ("schedule", "state", "limit")),
}
"""What is asked for unless the address says so, and what it may say."""
CHANGES: Final = ("schedules/trigger", "schedules/pause", "schedules/resume", "runs/cancel")


class OldApi(InProcess):
    """Serves ``/api/feedq/<kind>``, with ``/<name>`` behind it, and by POST with ``/<verb>`` behind that."""

    @web.authenticated
    async def get(self, kind: str, name: str | None) -> None:
        if name is None and kind == "feeds":
            await self._show_feeds()
            return
        asked = self._asked(kind) if name is None else {}
        answer = await self.ask("GET", f"{_path(kind, name)}?{urlencode(asked, doseq=True)}")
        found = answer.json()
        if answer.is_success and kind == "feeds":
            events = await self.ask("GET", f"{_path(kind, name)}/events")
            found["events"] = events.json()["events"]
        elif answer.is_success and asked:
            follows = found.pop("next") is not None
            found["limit"] = int(asked["limit"])
            if kind == "schedules":
                found["next_after"] = found[kind][-1]["name"] if follows else None
        self._say(answer, found)

    def _asked(self, kind: str) -> dict[str, Any]:
        usual, known = LISTS.get(kind, ({}, ()))
        asked: dict[str, Any] = usual | {
            name: said for name in known if (said := self.get_query_argument(name, None, strip=False))
        }
        if "state" in asked:
            asked["state"] = list(filter(None, asked["state"].split(",")))
        if kind == "runs" and asked["limit"].isdecimal():
            asked["limit"] = str(min(int(asked["limit"]), LIMIT_MAX))
        return asked

    async def _show_feeds(self) -> None:
        caller = caller_of(user_of(self), settings().flower_roles)
        try:
            query = parse_query(lambda name: self.get_query_argument(name, None, strip=False), limit=PAGE_MAX)
            page = await self.queries.page(replace(query, tenant=caller.tenant or query.tenant))
        except FeedqError as error:
            self._say(httpx.Response(status_of(error)), {"detail": mask_url(str(error))})
            return
        rows = [feed_row(view) for view in page.views]
        found = {"feeds": rows, "total": page.matching, "limit": query.limit, "offset": query.offset}
        self._say(httpx.Response(200), found)

    @web.authenticated
    async def post(self, kind: str, name: str | None) -> None:
        name, _, verb = (name or "").rpartition("/")
        if f"{kind}/{verb}" not in CHANGES:
            said = "a change is a POST to …/schedules/<name>/<trigger|pause|resume> or …/runs/<id>/cancel"
            self._say(httpx.Response(400), {"detail": said})
            return
        headers, body = {"content-type": "application/json"}, self.request.body
        if verb == "trigger":
            with suppress(orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                options = orjson.loads(body)
                headers["idempotency-key"] = options.pop("key").encode("ascii").decode()
                body = orjson.dumps(options)
        answer = await self.ask("POST", f"{_path(kind, name)}/{verb}", headers=headers, body=body)
        if answer.is_success and verb in ("pause", "resume"):
            answer = await self.ask("GET", _path(kind, name))
        self._say(answer, answer.json() if "json" in answer.headers["content-type"] else {})

    def _say(self, answer: httpx.Response, found: dict[str, Any]) -> None:
        if answer.is_error:
            found = {"error": found.get("detail") or answer.text.strip()}
        self.answer(answer.status_code, {"Content-Type": "application/json"}, as_json(found).encode())


def _path(kind: str, name: str | None) -> str:
    return f"{PREFIX}/{kind}" + ("" if name is None else f"/{quote(name, safe='')}")
