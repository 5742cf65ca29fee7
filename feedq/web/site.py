"""The table of feedq's addresses, feedq's templates before Flower's, and their installation into Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.template import Loader, Template
from tornado.web import StaticFileHandler, url

from feedq.settings import settings
from feedq.telemetry.logs import LogEvent, log
from feedq.verbs import registry
from feedq.web import pages
from feedq.web.guard import TASKS_KEPT, FlowerApi, GuardedFlower

STATIC = Path(__file__).with_name("static")
OWN_TEMPLATES = Path(__file__).with_name("templates")
NAVIGATION = "navbar.html"
TABS = "feedq_tabs.html"
LIST_BEGIN = b'<ul class="app-nav navbar-nav">'
"""Where Flower's own tabs begin; ours come first."""

logger = log(__name__)


class OverlayLoader(Loader):
    """Loads feedq's templates before Flower's. A Flower whose navigation has changed shows without our tabs."""

    def _create_template(self, name: str) -> Template:
        own = OWN_TEMPLATES / name
        if own.is_file():
            return Template(own.read_bytes(), name=name, loader=self)
        if name == NAVIGATION:
            return Template(self._with_tabs(), name=name, loader=self)
        template: Template = super()._create_template(name)
        return template

    def _with_tabs(self) -> bytes:
        markup = (Path(self.root) / NAVIGATION).read_bytes()
        before, begin, after = markup.partition(LIST_BEGIN)
        if not begin:
            logger.warning(LogEvent.TABS_LEFT_OUT)
            return markup
        return before + begin + (OWN_TEMPLATES / TABS).read_bytes() + after


def addresses(queries: pages.WebQueries) -> list[Any]:
    """Lists the addresses, each as `url`, never as a tuple: with ``--url-prefix`` Flower drops what else a tuple
    holds."""
    shared: dict[str, Any] = {"queries": queries}
    served = {"endpoint": queries.endpoint, "calls": queries.calls, "changed": queries.forget}
    return [
        url(r"/feeds", pages.FeedsPage, shared, name="feeds"),
        url(r"/feed", pages.FeedPage, shared, name="feed"),
        url(r"/fleet", pages.FleetPage, shared, name="fleet"),
        url(r"/problems", pages.ProblemsPage, shared, name="problems"),
        url(r"/api/v1(/.*)", FlowerApi, served, name="feedq_api"),
        url(r"/feedq/ask/([a-z-]+)", pages.DialogPage, shared, name="feedq_ask"),
        url(r"/schedules", pages.SchedulesPage, shared, name="schedules"),
        url(r"/schedule", pages.SchedulePage, shared, name="schedule"),
        url(r"/feedq/static/(.*)", StaticFileHandler, {"path": str(STATIC)}, name="feedq_static"),
    ]


def install() -> None:
    """Add the pages to Flower's tables, and the guard to its command. To be called before that command begins."""
    from flower import command, urls
    from flower.options import options

    if isinstance(urls.settings.get("template_loader"), OverlayLoader):
        return
    registry.load()
    # In front: Flower's last address matches everything.
    urls.handlers[:0] = addresses(pages.WebQueries(settings()))
    urls.settings["template_loader"] = OverlayLoader(urls.settings["template_path"])
    command.Flower = GuardedFlower
    # Before the command reads its options: whatever is said there counts.
    options.max_tasks = TASKS_KEPT
