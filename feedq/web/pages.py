"""The pages: *Feeds*, one feed, *Fleet*, *Schedules*, and one schedule with its runs.

Each is a frame around a live part, which a script fetches again every few seconds (``live=1``). Who may see a page
is who may call the verb that answers with the same. All text is escaped by the templates, and a content security
policy forbids scripts and styles that are not files of ours or Flower's: names, errors and cursors come from
elsewhere.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from flower.views import BaseHandler
from msgspec import Struct, structs, to_builtins
from tornado import web

from feedq import __version__
from feedq.api.authentication import asker_of
from feedq.api.endpoint import BODY_MAX, Endpoint, arguments_in, problem_of
from feedq.api.handler import Calls
from feedq.connectors.base import show_cursor
from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.landed_counts import Span
from feedq.control.store.postgresql import PostgresStore
from feedq.core.authorship import acting
from feedq.core.lease import stillness_of
from feedq.core.model import Status, known_as
from feedq.core.roles import Caller
from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.selection import SelectionOrder
from feedq.errors import FeedqError, Forbidden, InvalidInput, NotFound
from feedq.settings import Settings, settings
from feedq.telemetry.event_names import EventKind
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.verbs import backfills, details, feeds, fleet, schedules, wording
from feedq.verbs.diagnosis.checks import TONES, Tone, problems
from feedq.verbs.landing import tap_feed
from feedq.verbs.registry import OF, PAGE_MAX, At, Verb, encode, query_of
from feedq.web import buttons, charts, guard
from feedq.web.buttons import Dialog

P = ParamSpec("P")
T = TypeVar("T")

FEEDS_USUAL = {"limit": 50}
"""Of one page of feeds, unless the address asks for more: on a phone each is a card."""
FEEDS_MORE = 4
"""Times as many rows, whoever asks for more gets."""
REFRESH_MS = 3000
FIRST = "first"
"""``live=first`` asks for what is there at once; the rest is fetched right afterwards."""
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
SCHEDULES_USUAL = {"limit": 50, "runs": 20}
"""Of one page of schedules, unless the address asks for more."""
EVENTS_SHOWN = 100
GENERATIONS_SHOWN = 20
GENERATIONS = (
    EventKind.FEED_ADDED,
    EventKind.FEED_EDITED,
    EventKind.FEED_PAUSED,
    EventKind.FEED_RESUMED,
    EventKind.FEED_RESTARTED,
    EventKind.CURSOR_CHANGED,
)
"""What makes the next generation of a declaration, or the first."""
TICKS_SHOWN = 5
RUNS_SHOWN = 100
"""Runs on the page of one schedule."""

READ_TIMEOUT_S = 10.0
"""Longer than the driver's own time-out for a connection, whose message says more."""
KEPT_S = 1.0
KEPT_TIMES = 10.0
ANSWERS_MAX = 64
"""Answers kept at a time; each may hold a page of feeds."""
FAILED = "This page failed; the log of Flower says why."

logger = log(__name__)


class PageHandler(BaseHandler):
    """Holds what all pages share: who may see them, their frame, their headers and how they fail."""

    title = ""
    tab = ""
    frame = "feedq_page.html"
    verb: Verb
    """The verb that answers with the same: who may not call it may not see the page."""
    queries: WebQueries

    def initialize(self, queries: WebQueries) -> None:
        self.queries = queries

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Referrer-Policy", "same-origin")

    @property
    def is_live(self) -> bool:
        return self.argument("live") in ("1", FIRST)

    def argument(self, name: str) -> str | None:
        # Not Flower's get_argument, which escapes: our templates do that, once.
        value: str | None = self.get_query_argument(name, None, strip=False)
        return value

    @abstractmethod
    async def show(self) -> bytes:
        """Renders the live part."""

    def caller(self, verb: Verb) -> Caller:
        return guard.caller_of(guard.user_of(self), settings().flower_roles, verb.path)

    @property
    def at(self) -> At:
        return self.queries.at(self.caller(self.verb))

    def required(self, name: str, example: str) -> str:
        """An argument that says what the page is about, and is its title. Raises `InvalidInput`."""
        found = self.argument(name)
        if not found:
            raise InvalidInput(f"{name}: say which {self.title.lower()}, as in ?{name}={example}")
        self.title = found
        return found

    def asked(self, verb: Verb, usual: Mapping[str, Any], *own: str) -> Any:
        """The arguments of a verb that the address asks for, see `arguments_of`; ``own`` are other arguments."""
        return arguments_of(verb, self.request.query, usual, own=("live", *own))

    async def answer(self, verb: Verb, asked: Struct) -> Any:
        """What a verb answers to whoever is logged in. Raises as `WebQueries.answer`."""
        return await self.queries.answer(self.at, verb, asked)

    async def ask(self, function: Callable[Concatenate[At, P], T], *args: P.args, **arguments: P.kwargs) -> T:
        """The same for a verb by its function, whose types are checked."""
        assert not args, "verbs take arguments by name"
        answer: T = await self.answer(OF[function], OF[function].arguments(**arguments))
        return answer

    @web.authenticated
    async def get(self, *_: str) -> None:
        try:
            self.verb.require(self.at.caller)
            live = await self.show()
        except FeedqError as error:
            problem = problem_of(error)
            self.fail(problem.status, problem.detail)
        else:
            if self.is_live:
                self.finish(live)
            else:
                self.frame_with(live=live, trouble="")

    def fail(self, status: int, trouble: str) -> None:
        """Says what is wrong; the script goes on asking, so that the page comes back by itself."""
        self.set_status(status)
        if self.is_live:
            self.finish(self.render_string("trouble.html", trouble=trouble))
        else:
            self.frame_with(live=b"", trouble=trouble)

    def frame_with(self, *, live: bytes, trouble: str) -> None:
        auto = self.application.options.auto_refresh
        self.render(self.frame, live=live, trouble=trouble, refresh_ms=REFRESH_MS if auto else 0)

    def get_template_namespace(self) -> dict[str, Any]:
        """The names that all templates know beside Tornado's own, of which `handler` is the page."""
        tornados: dict[str, Any] = super().get_template_namespace()
        return tornados | {
            "tones": COLOURS,
            "wording": wording,
            "details": details,
            "now": now(),
            "stillness_of": stillness_of,
            "RunState": RunState,
            "ScheduleState": ScheduleState,
            "Status": Status,
            "url": self.url,
            "button": self.button,
        }

    def render_string(self, template_name: str, **names: Any) -> bytes:
        rendered: bytes = super().render_string(template_name, **names)
        return rendered

    def why_refused(self, verb: Verb) -> str:
        """Say why whoever is logged in may not call a verb here; empty when they may."""
        if verb.changes and (
            why := guard.refusal(self.application.options, is_open=self.unauthenticated_api)
        ):
            return why
        try:
            verb.require(self.caller(verb))
        except Forbidden as error:
            return str(error)
        return ""

    def button(self, button: buttons.Button) -> bytes:
        """Renders a button; refused, it says why, as its dialog does."""
        refused = self.why_refused(button.ask.verb) or button.refused
        asked = urlencode({"refused": refused} if refused else button.arguments, doseq=True)
        address = f"{self.reverse_url('feedq_ask', button.kind)}?{asked}"
        return self.render_string("button.html", button=button, address=address, refused=refused).strip()

    def own_static(self, file: str) -> str:
        """Makes the address of a static file, with the version in it: a browser's cache hides no update."""
        return f"{self.reverse_url('feedq_static', file)}?v={quote(__version__)}"

    def url(self, page: str, **arguments: Any) -> str:
        """Makes the address of a page; arguments without a value are left out."""
        given = {name: value for name, value in arguments.items() if value}
        # A name is an argument: it may hold slashes, dots and whatever else paths are rewritten for.
        return f"{self.reverse_url(page)}?{urlencode(query_of(to_builtins(given)), doseq=True)}"

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


class FeedsPage(PageHandler):
    """Shows feeds, a page at a time; its address has the arguments of the verb that lists them."""

    title = "Feeds"
    tab = "feeds"
    frame = "feeds.html"
    verb = OF[feeds.list_feeds]

    async def show(self) -> bytes:
        asked = self.asked(self.verb, FEEDS_USUAL)
        select, text = asked.select, asked.text
        # Those that are being removed, too, until they are gone; links and buttons leave them alone.
        shown = replace(select, removing=True)
        page, counted = await asyncio.gather(
            self.answer(self.verb, structs.replace(asked, select=shown)),
            self.ask(feeds.count_feeds, select=replace(shown, statuses=()), text=text),
        )
        of_all = counted.counts
        if not page.items and (text or not select.is_empty):
            of_all = (await self.ask(feeds.count_feeds)).counts
        # Whoever has just chosen others sees them first, and their pictures as soon as they are asked for again.
        is_first = self.argument("live") == FIRST and self.application.options.auto_refresh
        names = () if is_first else tuple(view.feed.name for view in page.items)
        landed = await self.ask(fleet.list_landed, names=names) if names else {}
        found = [one for one in counted.counts if one.status in (select.statuses or Status)]
        counts: Counter[Status] = Counter()
        for tally in counted.counts:
            counts[tally.status] += tally.feeds
        matching = sum(one.feeds for one in found)
        return self.render_string(
            "feeds_live.html",
            asked=asked,
            chosen=select.statuses,
            page=page,
            declared=sum(one.feeds for one in of_all),
            counts=counts,
            waiting=reasons(counted.counts),
            matching=matching,
            records=sum(one.records_total for one in found),
            rows_per_s=sum(one.rows_per_s for one in found),
            link=partial(address_of, asked, FEEDS_USUAL),
            statuses=lambda *wanted: replace(select, statuses=wanted),
            Order=SelectionOrder,
            more=min(FEEDS_MORE * asked.limit, PAGE_MAX),
            sparks={name: charts.sparkline(buckets) for name, buckets in landed.items()},
            buttons=buttons.bulk_buttons(select, text, matching),
        )


class FeedPage(PageHandler):
    """Shows one feed: declaration, lease, progress and history."""

    title = "Feed"
    tab = "feeds"
    frame = "feed.html"
    verb = OF[feeds.show_feed]

    @property
    def tap_address(self) -> str:
        name = quote(self.argument("name") or "", safe="")
        return f"{self.reverse_url('feedq_api', '/')}feeds/{name}/tap?seconds=600"

    @property
    def why_no_tap(self) -> str:
        return self.why_refused(OF[tap_feed])

    async def show(self) -> bytes:
        name = self.required("name", "acme/orders")
        landed_of = OF[fleet.show_landed]
        asked = self.asked(landed_of, {}, "numbers")
        found, events, generations, landed, backfill = await asyncio.gather(
            self.ask(feeds.show_feed, name=name),
            self.ask(fleet.list_events, feed=name, limit=EVENTS_SHOWN),
            self.ask(fleet.list_events, feed=name, kinds=GENERATIONS, limit=GENERATIONS_SHOWN),
            self.answer(landed_of, asked),
            self._backfill(name),
        )
        return self.render_string(
            "feed_live.html",
            found=found,
            card=("Lease", details.feed_lines(found, now=now())),
            show_cursor=show_cursor,
            parent=None if found.view.feed.backfill is None else known_as(name),
            filling=backfill,
            buttons=buttons.page_buttons(found.view, is_filling=backfill is not None),
            history=events.items,
            generations=[listed.event for listed in generations.items],
            span=asked.span,
            Span=Span,
            landed=landed.buckets,
            charts=charts.landed_charts(landed.buckets, asked.span),
            owners=charts.owner_chart(events.items, now=now()),
            in_numbers=self.argument("numbers") == "1",
        )

    async def _backfill(self, name: str) -> backfills.BackfillDocument | None:
        """Its backfill, if there is one under way."""
        try:
            found = await self.ask(backfills.show_backfill, name=name)
        except NotFound:
            return None
        return None if found.status in backfills.ENDED.values() else found


class FleetPage(PageHandler):
    """Shows workers, the elected beat, reconcile, and what is wrong with them."""

    title = "Fleet"
    tab = "fleet"
    verb = OF[fleet.show_status]

    async def show(self) -> bytes:
        data = await self.ask(fleet.show_status)
        return self.render_string("fleet_live.html", buttons_of=buttons.worker_buttons, data=data)


class ProblemsPage(PageHandler):
    """Shows everything that needs attention, worst first."""

    title = "Problems"
    tab = "problems"
    verb = OF[fleet.list_problems]

    @property
    def is_count(self) -> bool:
        """Whether this is for the tab alone, which says nothing where the page is refused or fails."""
        return self.argument("part") == "count"

    def fail(self, status: int, trouble: str) -> None:
        if self.is_count:
            self.finish("")
        else:
            super().fail(status, trouble)

    async def show(self) -> bytes:
        data = await self.ask(fleet.show_status)
        found = problems(data.warnings)
        if self.is_count:
            return f"({len(found):,})".encode() if found else b""
        return self.render_string("problems_live.html", listed=found, buttons_of=buttons.problem_buttons)


def now() -> datetime:
    return datetime.now(UTC)


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
    verb = OF[schedules.list_schedules]

    async def show(self) -> bytes:
        asked = self.asked(self.verb, SCHEDULES_USUAL)
        page = await self.answer(self.verb, asked)
        return self.render_string(
            "schedules_live.html",
            asked=asked,
            page=page,
            buttons_of=buttons.schedule_buttons,
            link=partial(address_of, asked, SCHEDULES_USUAL),
        )


class SchedulePage(PageHandler):
    """Shows one schedule: where it stands, its declaration and its runs."""

    title = "Schedule"
    tab = "schedules"
    verb = OF[schedules.show_schedule]

    async def show(self) -> bytes:
        name = self.required("name", "acme/rollup")
        runs_of = OF[schedules.list_runs]
        asked = self.asked(runs_of, {"schedule": name, "limit": RUNS_SHOWN}, "name")
        found, runs = await asyncio.gather(
            self.ask(schedules.show_schedule, name=name),
            self.answer(runs_of, asked),
        )
        fires = found.schedule.state is ScheduleState.ACTIVE and not found.schedule.unreadable
        ticks = (
            (await self.ask(schedules.show_next_ticks, name=name, count=TICKS_SHOWN)).ticks if fires else ()
        )
        return self.render_string(
            "schedule_live.html",
            found=found,
            row=found.schedule,
            ticks=ticks,
            runs=runs.items,
            buttons=buttons.schedule_buttons(found.schedule),
            cancel_button=buttons.cancel_button,
            chosen=asked.states,
            card=("Now", details.schedule_lines(found, now=now())),
        )


# -- dialogs -----------------------------------------------------------------------------------------


class DialogPage(PageHandler):
    """Shows the dialog of a button (`feedq.web.buttons`), and performs it."""

    is_live = True

    @web.authenticated
    async def get(self, kind: str) -> None:
        self._show(await self._after(kind, buttons.opened))

    @web.authenticated
    async def post(self, kind: str) -> None:
        if len(self.request.body) > BODY_MAX:
            raise web.HTTPError(413)
        given = self.request.body_arguments
        typed = {name: values[-1].decode(errors="replace") for name, values in given.items()}
        reason = typed.pop("reason", "")
        if typed.pop(buttons.DRY_RUN, ""):
            self._show(await self._after(kind, partial(buttons.rehearsed, typed=typed)))
            return
        dialog = await self._after(kind, partial(buttons.sent, typed=typed), reason)
        self.queries.forget()
        if dialog.problem is not None:
            self.set_status(dialog.problem.status)
        self._show(dialog)

    async def _after(
        self, kind: str, step: Callable[[At, buttons.Ask, str], Dialog], reason: str = ""
    ) -> Dialog:
        if kind not in buttons.ASKS:
            raise web.HTTPError(404)
        ask = buttons.ASKS[kind]
        at = self.queries.at(self.caller(ask.verb))
        try:
            if why := self.why_refused(ask.verb) or self.argument("refused"):
                raise Forbidden(why)
            with acting(asker_of(at.caller, self.request.remote_ip, reason)):
                return await self.queries.calls.call(partial(step, at, ask, self.request.query))
        except FeedqError as error:
            return buttons.refused(ask, error)

    def _show(self, dialog: Dialog) -> None:
        self.finish(self.render_string("dialog.html", dialog=dialog, address=self.request.uri))


# -- what the pages ask --------------------------------------------------------------------------------


class WebQueries:
    """Asks verbs for one Flower, for whoever is logged in. To be used from one event loop.

    Many browsers ask the same, so a question is read once, however many ask it. Its answer is kept for `KEPT_S`,
    or for ten times as long as it took, so that all browsers together cost the database a tenth of one connection
    per question. `forget` drops what was read before: whoever changed something sees so on the next page.
    """

    def __init__(self, settings: Settings) -> None:
        url = settings.database_url.get_secret_value()
        self.store = PostgresStore(url, application_name="feedq-web")
        self.endpoint = Endpoint.of(self.store, settings)
        self.calls = Calls()
        self.reads = Calls(timeout_s=READ_TIMEOUT_S)
        self._known: dict[Hashable, tuple[asyncio.Future[Any], float]] = {}
        """Answers that are kept, and those still to come, by their questions; each with when it will be old."""

    def at(self, caller: Caller) -> At:
        """Where verbs act for a caller."""
        return replace(self.endpoint.at, caller=caller)

    def forget(self) -> None:
        """Forget all answers; a read under way still answers those who wait for it, and nobody else."""
        self._known.clear()

    async def answer(self, at: At, verb: Verb, asked: Struct) -> Any:
        """Returns what a verb answers, which may be a little old: all who may see the same share it.

        Raises `Unavailable`, and what the verb raises.
        """
        question = (verb.name, at.caller.role, at.caller.tenant, encode(asked))
        return await self.read(question, partial(verb.call, at, asked))

    async def read(self, question: Hashable, job: Callable[[], T]) -> T:
        """Returns what ``job`` finds, or has found lately for the same question. Raises as `Calls.call`."""
        known, old_at = self._known.get(question, (None, 0.0))
        if known is None or asyncio.get_running_loop().time() >= old_at:
            known = self._begin(question, job)
        # Shielded: whoever gives up waiting does not take the answer from the others.
        answer: T = await asyncio.shield(known)
        return answer

    def _begin(self, question: Hashable, job: Callable[[], Any]) -> asyncio.Future[Any]:
        now = asyncio.get_running_loop().time
        began, begun = now(), asyncio.ensure_future(self.reads.call(job))

        def keep(_: asyncio.Future[Any]) -> None:
            if self._known.get(question, (None,))[0] is begun:
                failed = begun.cancelled() or begun.exception() is not None
                kept_s = 0.0 if failed else max(KEPT_S, KEPT_TIMES * (now() - began))
                self._known[question] = begun, now() + kept_s

        self._known.pop(question, None)  # the oldest go first
        self._known[question] = begun, inf
        if len(self._known) > ANSWERS_MAX:
            del self._known[next(iter(self._known))]
        begun.add_done_callback(keep)
        return begun


# -- addresses -----------------------------------------------------------------------------------------


def arguments_of(verb: Verb, query: str, usual: Mapping[str, Any], *, own: Collection[str]) -> Any:
    """The arguments of a verb that an address asks for, with what is ``usual`` where it says nothing.

    A form sends its empty fields, too. ``own`` are arguments of the page. Raises `InvalidInput`.
    """
    given = [(name, text) for name, text in parse_qsl(query) if text and name not in own]
    return verb.parse({**usual, **arguments_in(verb, urlencode(given))})


def address_of(arguments: Any, usual: Mapping[str, Any], **changes: Any) -> str:
    """The end of an address that asks for these arguments with ``changes``; what is as usual is left out.

    Whatever else than the page changes begins at the first page.
    """
    wanted = {**to_builtins(arguments), "cursor": None, **to_builtins(changes)}
    defaults = to_builtins(type(arguments)(**usual))
    return "?" + urlencode(query_of({k: v for k, v in wanted.items() if v != defaults[k]}), doseq=True)
