"""The pages: *Feeds*, one feed, *Fleet*.

Each is a frame around a live part, and a script asks for the live part again and again: with ``live=1`` it comes
alone, and an error comes as JSON. All text is escaped by the templates, and a content security policy forbids
scripts and styles that are not files of ours or Flower's: names, errors and cursors come from elsewhere.
"""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import orjson
from flower.views import BaseHandler
from tornado import web

from feedq import __version__, wording
from feedq.errors import FeedqError, InvalidInput, NotFound
from feedq.lease import stillness_of
from feedq.model import Status
from feedq.store.feed_listing import Query, Sort, StatusCount
from feedq.telemetry import LogEvent, log, mask_url
from feedq.web.asking import address, parse_query
from feedq.web.facts import Facts
from feedq.web.particulars import declaration_lines, detail, lease_lines, stamp

FEEDS_SHOWN = 200
"""Rows of one page of feeds, unless the address asks for more."""
REFRESH_MS = 3000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
TONES = {
    "streaming": "success",
    "active": "success",
    "serving": "success",
    "connecting": "info",
    "starting": "info",
    "stalled": "warning",
    "backoff": "warning",
    "waiting": "warning",
    "draining": "warning",
    "cordoned": "warning",
    "drained": "warning",
    "failing": "danger",
    "refusing": "danger",
    "sink_unavailable": "danger",
    "quarantined": "danger",
    "failed": "danger",
    "running": "info",
    "succeeded": "success",
    "timed_out": "danger",
    "lost": "danger",
    "missed_deadline": "warning",
    "missed_catchup": "warning",
}
"""Bootstrap's colour of a status or state; the others are grey. The word always stands beside the colour."""

logger = log(__name__)


class PageHandler(BaseHandler):
    """What all pages share: who may see them, their frame, their headers and how they fail."""

    title = ""
    tab = ""
    frame = "feedq_page.html"
    facts: Facts

    def initialize(self, facts: Facts) -> None:
        self.facts = facts

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
        """The live part."""

    @web.authenticated
    async def get(self) -> None:
        try:
            live = await self.show()
        except NotFound as error:
            self.fail(404, str(error))
        except InvalidInput as error:
            self.fail(400, str(error))
        except FeedqError as error:
            self.fail(503, str(error))
        else:
            if self.is_live:
                self.finish(live)
            else:
                self.frame_with(live=live, trouble="")

    def fail(self, status: int, trouble: str) -> None:
        """Say what is wrong; the script goes on asking, so that the page comes back by itself."""
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
            Status=Status,
        )

    def part(self, template: str, **names: Any) -> str:
        """A template by itself, with the words that all of them use."""
        rendered: bytes = self.render_string(
            template,
            tones=TONES,
            wording=wording,
            why=wording.why,
            stillness_of=stillness_of,
            feed_url=self.feed_url,
            feeds_url=self.feeds_url,
            **names,
        )
        return rendered.decode()

    def own_static(self, file: str) -> str:
        """The version is in the address, so that an update is not hidden by a browser's cache."""
        return f"{self.reverse_url('feedq_static', file)}?v={quote(__version__)}"

    def feed_url(self, name: str) -> str:
        # As an argument: a name may hold slashes, dots and whatever else paths are rewritten for.
        return f"{self.reverse_url('feed')}?name={quote(name, safe='')}"

    def feeds_url(self, **changes: Any) -> str:
        return f"{self.reverse_url('feeds')}{address(Query(limit=FEEDS_SHOWN), limit=FEEDS_SHOWN, **changes)}"

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code == 500:
            # Flower would show the traceback, which may quote a URL with its password.
            logger.error(
                LogEvent.UNEXPECTED,
                where=self.request.path,
                traceback=mask_url("".join(traceback.format_exception(*kwargs["exc_info"]))),
            )
            self.fail(500, "This page failed; the log of Flower says why.")
        else:
            super().write_error(status_code, **kwargs)


class FeedsPage(PageHandler):
    """All feeds, a page at a time."""

    title = "Feeds"
    tab = "feeds"
    frame = "feeds.html"

    async def show(self) -> str:
        query = parse_query(self.argument, limit=FEEDS_SHOWN)
        page = await self.facts.page(query)
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
            link=lambda **changes: address(query, limit=FEEDS_SHOWN, **changes),
            Sort=Sort,
            Status=Status,
        )


class FeedPage(PageHandler):
    """One feed: declaration, lease, progress and history."""

    title = "Feed"
    tab = "feeds"

    async def show(self) -> str:
        name = self.argument("name")
        if not name:
            raise InvalidInput("name: say which feed, as in ?name=acme/orders")
        self.title = name
        facts = await self.facts.feed(name)
        return self.part(
            "feed_live.html",
            facts=facts,
            view=facts.view,
            cards={
                "Lease": list(lease_lines(facts.view, now=facts.now, workers=facts.workers)),
                "Declaration": list(declaration_lines(facts.view, now=facts.now)),
            },
            detail=detail,
            stamp=stamp,
        )


class FleetPage(PageHandler):
    """Workers, the elected beat, reconcile, and what is wrong with them."""

    title = "Fleet"
    tab = "fleet"

    async def show(self) -> str:
        facts = await self.facts.fleet()
        numbers = facts.numbers
        aside = [("cordoned", numbers.cordoned), ("drained", numbers.drained), ("draining", numbers.draining)]
        return self.part(
            "fleet_live.html",
            facts=facts,
            aside=[f"{count} {what}" for what, count in aside if count],
            waiting=reasons(facts.tallies),
            Status=Status,
        )


def reasons(tallies: Iterable[StatusCount]) -> list[tuple[str, int]]:
    """Why feeds wait for a worker, the most frequent first."""
    waiting = [(str(t.reason or "unknown"), t.feeds) for t in tallies if t.status is Status.WAITING]
    return sorted(waiting, key=lambda found: (-found[1], found[0]))
