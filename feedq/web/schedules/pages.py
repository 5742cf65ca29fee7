"""The pages: *Schedules*, and one schedule with its runs and its buttons."""

from __future__ import annotations

from secrets import token_hex
from typing import Any
from urllib.parse import quote, urlencode

from tornado import web

from feedq.errors import Conflict, FeedqError, InvalidInput, NotFound
from feedq.report import run_report as run_words
from feedq.schedule.model import RunState, ScheduleState
from feedq.schedule.words import timing_words
from feedq.web.pages import PageHandler
from feedq.web.particulars import stamp
from feedq.web.schedules import schedule_words
from feedq.web.schedules.asking import parse_run_id, parse_schedules, parse_states
from feedq.web.schedules.changing import refusal
from feedq.web.schedules.particulars import declaration_lines, standing_lines

SCHEDULES_SHOWN = 200
"""Rows of one page of schedules, unless the address asks for more."""
PAUSED_HERE = "paused on the web page"


class _SchedulesFrame(PageHandler):
    """What both pages share."""

    tab = "schedules"

    def part(self, template: str, **names: Any) -> str:
        return super().part(
            template,
            words=schedule_words,
            run_words=run_words,
            timing_words=timing_words,
            stamp=stamp,
            schedule_url=self.schedule_url,
            RunState=RunState,
            ScheduleState=ScheduleState,
            **names,
        )

    def schedule_url(self, name: str, *, state: RunState | None = None) -> str:
        # As an argument, as with feeds: a name may hold slashes, dots and whatever else paths are rewritten for.
        chosen = "" if state is None else "&" + urlencode({"state": state})
        return f"{self.reverse_url('schedule')}?name={quote(name, safe='')}{chosen}"


class SchedulesPage(_SchedulesFrame):
    """All schedules, a page at a time, by name."""

    title = "Schedules"
    frame = "schedules.html"

    async def show(self) -> str:
        query = parse_schedules(self.argument, limit=SCHEDULES_SHOWN)
        part = await self.facts.schedules.part(query)
        here = query.address(usual_limit=SCHEDULES_SHOWN)
        return self.part(
            "schedules_live.html",
            query=query,
            part=part,
            first_page=here,
            next_page=query.address(usual_limit=SCHEDULES_SHOWN, after=part.next_after or ""),
        )


class SchedulePage(_SchedulesFrame):
    """One schedule: where it stands, its declaration and its runs. Its buttons come back here by POST."""

    title = "Schedule"

    @property
    def name(self) -> str:
        name = self.argument("name")
        if not name:
            raise InvalidInput("name: say which schedule, as in ?name=acme/rollup")
        return name

    def check_xsrf_cookie(self) -> None:
        # Not Flower's own, which asks for the token under some kinds of login only.
        web.RequestHandler.check_xsrf_cookie(self)

    async def show(self) -> str:
        name, states = self.name, parse_states(self.argument("state"))
        self.title = name
        facts = await self.facts.schedules.schedule(name, states=states)
        return self.part(
            "schedule_live.html",
            facts=facts,
            view=facts.view,
            states=states,
            cards={
                "Now": list(standing_lines(facts.view, now=facts.now)),
                "Declaration": list(declaration_lines(facts.view.schedule.spec)),
            },
            may_change=refusal(self.application.options, is_open=self.unauthenticated_api) is None,
            # A button that is pressed twice sends the same key, and triggers once.
            key=f"web-{token_hex(6)}",
        )

    @web.authenticated
    async def post(self) -> None:
        try:
            refused = refusal(self.application.options, is_open=self.unauthenticated_api)
            if refused is not None:
                self.fail(403, refused)
                return
            name = self.name
            self.title = name
            await self._change(name)
            live = await self.show() if self.is_live else ""
        except NotFound as error:
            self.fail(404, str(error))
        except InvalidInput as error:
            self.fail(400, str(error))
        except Conflict as error:
            self.fail(409, str(error))
        except FeedqError as error:
            self.fail(503, str(error))
        else:
            if self.is_live:
                self.finish(live)
            else:
                self.redirect(self.schedule_url(name), status=303)

    async def _change(self, name: str) -> None:
        schedules, verb = self.facts.schedules, self._said("do")
        match verb:
            case "trigger":
                await schedules.trigger(name, key=self._said("key") or None)
            case "pause":
                await schedules.pause(name, reason=PAUSED_HERE)
            case "resume":
                await schedules.resume(name)
            case "cancel":
                await schedules.cancel(parse_run_id(self._said("run")))
            case _:
                raise InvalidInput(f"do={verb!r}: must be trigger, pause, resume or cancel")

    def _said(self, name: str) -> str:
        said: str = self.get_body_argument(name, "")
        return said
