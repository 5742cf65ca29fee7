"""The pages: *Feeds*, one feed, *Fleet*, *Schedules*, and one schedule with its runs.

Each is a frame around a live part, and a script listens to a stream of events (``live=stream``) that has the part
whenever it has changed; with ``live=1`` it comes once, and an error comes as JSON. All text is escaped by the
templates, and a content security policy forbids scripts and styles that are not files of ours or Flower's: names,
errors and cursors come from elsewhere.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from flower.views import BaseHandler
from tornado import web
from tornado.iostream import StreamClosedError

from feedq import __version__
from feedq.api.answers import status_of
from feedq.connectors.base import show_cursor
from feedq.control.store.feed_listing import PAGE_MAX, Query, Sort, StatusCount
from feedq.core.landed import Span
from feedq.core.lease import stillness_of
from feedq.core.model import FeedView, Status, WorkerView, known_as
from feedq.core.schedule.model import RunState, ScheduleState, ScheduleView
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import settings
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.verbs import wording
from feedq.verbs.diagnosis.placement_checks import serves
from feedq.verbs.report.details import (
    author_of,
    changes_of,
    declaration_lines,
    event_detail,
    lease_lines,
    schedule_declaration_lines,
    standing_lines,
)
from feedq.verbs.troubles import TONES, TROUBLED, Tone
from feedq.verbs.wording import timing_words
from feedq.web.buttons import (
    PageAction,
    backfill_actions,
    bulk_actions,
    cancel_action,
    cursor_actions,
    dead_letter_actions,
    edit_action,
    feed_actions,
    remedies,
    schedule_actions,
    worker_actions,
)
from feedq.web.charts import landed_charts, owner_chart, sparkline
from feedq.web.guard import refusal
from feedq.web.mounted_api import caller_of, user_of
from feedq.web.params import address, parse_query, parse_schedules, parse_span, parse_states
from feedq.web.queries import WebQueries

FEEDS_SHOWN = 50
"""Rows of one page of feeds, unless the address asks for more: on a phone each is a card."""
FEEDS_MORE = 4
"""Times as many rows, whoever asks for more gets."""
REFRESH_MS = 3000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
BADGES = {
    Tone.GOOD: "success",
    Tone.UNDER_WAY: "info",
    Tone.ODD: "warning",
    Tone.BAD: "danger",
    Tone.WORST: "danger",
    Tone.ASIDE: "secondary",
}
"""Bootstrap's colours. The word always stands beside the colour."""
COLOURS = {word: BADGES[tone] for word, tone in TONES.items()}
"""Of a status or state; the others are grey."""
SCHEDULES_SHOWN = 50
"""Rows of one page of schedules, unless the address asks for more."""
HOT = 1.25
"""Times the mean load, from which on a worker is named as a hot spot: placement lets them differ by a tenth."""

STREAMS_MAX = 200
"""Pages that are kept live at a time: each asks the control database at most once in `REFRESH_MS`."""
STREAM_S = 600.0
"""A stream ends after this, and the browser begins another: one that nobody reads any more ends, too."""
FAILED = "This page failed; the log of Flower says why."

logger = log(__name__)


class PageHandler(BaseHandler):
    """Holds what all pages share: who may see them, their frame, their headers and how they fail."""

    title = ""
    tab = ""
    frame = "feedq_page.html"
    queries: WebQueries

    def initialize(self, queries: WebQueries) -> None:
        self.queries = queries
        self._is_gone = False

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Referrer-Policy", "same-origin")

    @property
    def is_live(self) -> bool:
        return self.argument("live") == "1"

    def argument(self, name: str) -> str | None:
        # Not Flower's get_argument, which escapes: our templates do that, once.
        value: str | None = self.get_query_argument(name, None, strip=False)
        return value

    @abstractmethod
    async def show(self) -> str:
        """Renders the live part."""

    @web.authenticated
    async def get(self) -> None:
        if self.argument("live") == "stream":
            await self._stream()
            return
        try:
            live = await self.show()
        except FeedqError as error:
            self.fail(status_of(error), str(error))
        else:
            if self.is_live:
                self.finish(live)
            else:
                self.frame_with(live=live, trouble="")

    async def _stream(self) -> None:
        """Sends the live part whenever it has changed, until the browser goes away or `STREAM_S` are over."""
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        # A proxy in front must not keep it back until the end.
        self.set_header("X-Accel-Buffering", "no")
        if len(_streams) >= STREAMS_MAX:
            self.finish(_event("trouble", f"{STREAMS_MAX} pages are live already; trying again."))
            return
        _streams.add(self)
        loop, sent = asyncio.get_running_loop(), ""
        until = loop.time() + STREAM_S
        try:
            while not self._is_gone and loop.time() < until:
                found = await self._part_now()
                # The comment shows both sides that the other one is there.
                self.write(found if found != sent else ": unchanged\n\n")
                sent = found
                await self.flush()
                await asyncio.sleep(REFRESH_MS / 1000)
            self.write(_event("end", ""))
        except StreamClosedError:
            pass
        finally:
            _streams.discard(self)

    async def _part_now(self) -> str:
        try:
            return _event("part", await self.show())
        except FeedqError as error:
            return _event("trouble", mask_url(str(error)))
        except Exception:  # noqa: BLE001 -- the stream outlives it; the log has it
            trace = mask_url(traceback.format_exc())
            logger.error(LogEvent.UNEXPECTED, where=self.request.path, traceback=trace)
            return _event("trouble", FAILED)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._is_gone = True

    def fail(self, status: int, trouble: str) -> None:
        """Says what is wrong; the script goes on asking, so that the page comes back by itself."""
        trouble = mask_url(trouble)
        self.set_status(status)
        if self.is_live:
            self.set_header("Content-Type", "application/json")
            self.finish(orjson.dumps({"error": trouble}))
        else:
            self.frame_with(live="", trouble=trouble)

    def frame_with(self, *, live: str, trouble: str) -> None:
        auto = self.application.options.auto_refresh
        self.render(
            self.frame,
            title=self.title,
            tab=self.tab,
            live=live,
            trouble=trouble,
            refresh_ms=REFRESH_MS if auto else 0,
            own_static=self.own_static,
            argument=self.argument,
            quoted=partial(quote, safe=""),
            Status=Status,
            api=self.reverse_url("feedq_api", "/"),
        )

    def button(self, action: PageAction) -> str:
        """Renders the button of a change; refused, it says why (`feedq.web.buttons`)."""
        caller = caller_of(user_of(self), settings().flower_roles, action.path)
        refused = refusal(self.application.options, is_open=self.unauthenticated_api)
        refused = refused or action.why_refused(caller)
        rendered: bytes = self.render_string("action_button.html", action=action, refused=refused)
        return rendered.decode().strip()

    def part(self, template: str, **names: Any) -> str:
        """Renders a template by itself, with the words that all of them use."""
        rendered: bytes = self.render_string(
            template,
            tones=COLOURS,
            wording=wording,
            why=wording.why,
            stillness_of=stillness_of,
            timing_words=timing_words,
            feed_url=self.feed_url,
            feed_part_url=self.feed_part_url,
            feeds_url=self.feeds_url,
            schedule_url=self.schedule_url,
            RunState=RunState,
            ScheduleState=ScheduleState,
            Status=Status,
            button=self.button,
            **names,
        )
        return rendered.decode()

    def own_static(self, file: str) -> str:
        """Makes the address of a static file, with the version in it: a browser's cache hides no update."""
        return f"{self.reverse_url('feedq_static', file)}?v={quote(__version__)}"

    def feed_url(self, name: str) -> str:
        # As an argument: a name may hold slashes, dots and whatever else paths are rewritten for.
        return f"{self.reverse_url('feed')}?name={quote(name, safe='')}"

    def feed_part_url(self, name: str, span: Span, *, in_numbers: bool) -> str:
        """Makes the address of a feed's page with these charts, as pictures alone or in numbers, too."""
        return f"{self.feed_url(name)}&span={span}{'&numbers=1' if in_numbers else ''}"

    def feeds_url(self, **changes: Any) -> str:
        usual = Query(limit=FEEDS_SHOWN)
        return f"{self.reverse_url('feeds')}{address(usual, usual_limit=FEEDS_SHOWN, **changes)}"

    def schedule_url(self, name: str, *, state: RunState | None = None) -> str:
        chosen = "" if state is None else "&" + urlencode({"state": state})
        return f"{self.reverse_url('schedule')}?name={quote(name, safe='')}{chosen}"

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code == 500:
            # Flower would show the traceback, which may quote a URL with its password.
            logger.error(
                LogEvent.UNEXPECTED,
                where=self.request.path,
                traceback=mask_url("".join(traceback.format_exception(*kwargs["exc_info"]))),
            )
            self.fail(500, FAILED)
        else:
            super().write_error(status_code, **kwargs)


_streams: set[PageHandler] = set()


def _event(kind: str, text: str) -> str:
    # JSON has no line breaks, whatever is in the text.
    return f"event: {kind}\ndata: {orjson.dumps(text).decode()}\n\n"


class FeedsPage(PageHandler):
    """Shows all feeds, a page at a time."""

    title = "Feeds"
    tab = "feeds"
    frame = "feeds.html"

    async def show(self) -> str:
        query = parse_query(self.argument, limit=FEEDS_SHOWN)
        page = await self.queries.page(query)
        # Whoever has just chosen others sees them first; their pictures come with the stream that follows.
        is_first = self.is_live and self.application.options.auto_refresh
        landed = {} if is_first else await self.queries.landed(tuple(view.feed.id for view in page.views))
        counts: Counter[Status] = Counter()
        for tally in page.tallies:
            counts[tally.status] += tally.feeds
        return self.part(
            "feeds_live.html",
            query=query,
            page=page,
            counts=counts,
            waiting=reasons(page.tallies),
            found=counts.total(),
            records=sum(t.records_total for t in page.tallies if query.status in (None, t.status)),
            link=lambda **changes: address(query, usual_limit=FEEDS_SHOWN, **changes),
            Sort=Sort,
            more=min(FEEDS_MORE * query.limit, PAGE_MAX),
            sparks={feed_id: sparkline(buckets) for feed_id, buckets in landed.items()},
            actions=bulk_actions(query, page.matching),
        )


class FeedPage(PageHandler):
    """Shows one feed: declaration, lease, progress and history."""

    title = "Feed"
    tab = "feeds"
    frame = "feed.html"

    async def show(self) -> str:
        name = self.argument("name")
        if not name:
            raise InvalidInput("name: say which feed, as in ?name=acme/orders")
        self.title = name
        span = parse_span(self.argument("span"))
        data = await self.queries.feed(name, span)
        return self.part(
            "feed_live.html",
            data=data,
            view=data.view,
            remedy=data.explanation,
            cards={
                "Lease": lease_lines(data.view, now=data.now, workers=data.workers),
                "Declaration": declaration_lines(data.view, now=data.now),
            },
            show_cursor=show_cursor,
            parent=None if data.view.feed.backfill is None else known_as(name),
            actions=actions_of(data.view, is_filling=data.backfill is not None),
            detail=event_detail,
            changes_of=changes_of,
            author_of=author_of,
            span=span,
            Span=Span,
            charts=landed_charts(data.landed, span),
            owners=owner_chart(data.events, data.workers, now=data.now),
            in_numbers=self.argument("numbers") == "1",
        )


def actions_of(view: FeedView, *, is_filling: bool) -> list[PageAction]:
    """All buttons of a feed's own page. A backfill has none: it follows its feed."""
    if view.feed.removed_at is not None or view.feed.backfill is not None:
        return []
    letters = dead_letter_actions(view) if view.lease.dead_letters_total else []
    backfill = backfill_actions(view, is_running=is_filling)
    return [*feed_actions(view), edit_action(view), *cursor_actions(view), *backfill, *letters]


class FleetPage(PageHandler):
    """Shows workers, the elected beat, reconcile, and what is wrong with them."""

    title = "Fleet"
    tab = "fleet"

    async def show(self) -> str:
        data = await self.queries.fleet()
        numbers = data.numbers
        aside = [("cordoned", numbers.cordoned), ("drained", numbers.drained), ("draining", numbers.draining)]
        return self.part(
            "fleet_live.html",
            actions_of=worker_actions,
            data=data,
            moves=await self.queries.moves(),
            hot=hot_spot(data.workers),
            aside=[f"{count} {what}" for what, count in aside if count],
            waiting=reasons(data.tallies),
        )


def hot_spot(workers: Sequence[WorkerView]) -> str:
    """Names the worker with the most load for what it can hold, and says how far above the others' mean it is."""
    serving = [view for view in workers if serves(view)]
    total = sum(view.worker.capacity for view in serving)
    mean = sum(view.load for view in serving) / total if total else 0.0
    if not mean:
        return "none"
    most = max(serving, key=lambda view: view.load / view.worker.capacity)
    times = most.load / most.worker.capacity / mean
    if times < HOT:
        return f"none: the fullest has {times:.2f} times the mean load"
    return f"{most.worker.name}, with {times:.2g} times the mean load for its size"


class ProblemsPage(PageHandler):
    """Shows everything that somebody has to look at, worst first."""

    title = "Problems"
    tab = "problems"

    async def show(self) -> str:
        found, views, data = await self.queries.problems()
        # A feed may be listed twice, and has its buttons once.
        buttons: dict[int, list[PageAction]] = {}
        seen: set[str] = set()
        pressed: set[str] = set()
        for place, one in enumerate(found):
            if one.feed is None:
                acts = [act for act in remedies(one.name, data) if act.id not in pressed]
                pressed |= {act.id for act in acts}
                buttons |= {place: acts} if acts else {}
            elif one.feed not in seen:
                seen.add(one.feed)
                buttons[place] = feed_actions(views[one.feed])[:2]
        return self.part("problems_live.html", found=found, buttons=buttons, TROUBLED=TROUBLED)


def reasons(tallies: Iterable[StatusCount]) -> list[tuple[str, int]]:
    """Counts why feeds wait for a worker, the most frequent reason first."""
    waiting = [(str(t.reason or "unknown"), t.feeds) for t in tallies if t.status is Status.WAITING]
    return sorted(waiting, key=lambda found: (-found[1], found[0]))


# -- schedules ---------------------------------------------------------------------------------------


class SchedulesPage(PageHandler):
    """Shows all schedules, a page at a time, by name."""

    title = "Schedules"
    tab = "schedules"
    frame = "schedules.html"

    async def show(self) -> str:
        query = parse_schedules(self.argument, limit=SCHEDULES_SHOWN)
        part = await self.queries.schedules(query)
        here = query.address(usual_limit=SCHEDULES_SHOWN)
        return self.part(
            "schedules_live.html",
            query=query,
            part=part,
            actions_of=actions_of_schedule,
            first_page=here,
            next_page=query.address(usual_limit=SCHEDULES_SHOWN, after=part.next_after or ""),
        )


def actions_of_schedule(view: ScheduleView) -> list[PageAction]:
    return schedule_actions(view.schedule.spec.name, is_paused=view.schedule.state is ScheduleState.PAUSED)


class SchedulePage(PageHandler):
    """Shows one schedule: where it stands, its declaration and its runs."""

    title = "Schedule"
    tab = "schedules"

    async def show(self) -> str:
        name, states = self.argument("name"), parse_states(self.argument("state"))
        if not name:
            raise InvalidInput("name: say which schedule, as in ?name=acme/rollup")
        self.title = name
        data = await self.queries.schedule(name, states=states)
        return self.part(
            "schedule_live.html",
            data=data,
            view=data.view,
            actions=actions_of_schedule(data.view),
            cancel_action=cancel_action,
            states=states,
            cards={
                "Now": standing_lines(data.view, counts=data.counts, now=data.now),
                "Declaration": schedule_declaration_lines(data.view.schedule.spec),
            },
        )
