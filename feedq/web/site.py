"""The table of feedq's addresses, and their installation into Flower's, behind `feedq.web.guard`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.web import StaticFileHandler, url

from feedq.settings import settings
from feedq.web.api import FeedDetail, FeedList, FleetStatus, WorkerList
from feedq.web.facts import Facts
from feedq.web.guard import TASKS_KEPT, GuardedFlower
from feedq.web.overlay import OverlayLoader
from feedq.web.pages import FeedPage, FeedsPage, FleetPage
from feedq.web.schedules.api import RunDetail, RunList, ScheduleDetail, ScheduleList
from feedq.web.schedules.pages import SchedulePage, SchedulesPage

STATIC = Path(__file__).with_name("static")


def addresses(facts: Facts) -> list[Any]:
    """Each as `url`, never as a tuple: with ``--url-prefix`` Flower drops what else a tuple holds."""
    shared = {"facts": facts}
    return [
        url(r"/feeds", FeedsPage, shared, name="feeds"),
        url(r"/feed", FeedPage, shared, name="feed"),
        url(r"/fleet", FleetPage, shared, name="fleet"),
        url(r"/api/feedq/feeds", FeedList, shared),
        url(r"/api/feedq/feeds/(.+)", FeedDetail, shared),
        url(r"/api/feedq/workers", WorkerList, shared),
        url(r"/api/feedq/status", FleetStatus, shared),
        url(r"/schedules", SchedulesPage, shared, name="schedules"),
        url(r"/schedule", SchedulePage, shared, name="schedule"),
        url(r"/api/feedq/schedules", ScheduleList, shared),
        url(r"/api/feedq/schedules/(.+)", ScheduleDetail, shared),
        url(r"/api/feedq/runs", RunList, shared),
        url(r"/api/feedq/runs/(\d+)(/cancel)?", RunDetail, shared),
        url(r"/feedq/static/(.*)", StaticFileHandler, {"path": str(STATIC)}, name="feedq_static"),
    ]


def install() -> None:
    """Add the pages to Flower's tables, and the guard to its command. To be called before that command begins."""
    from flower import command, urls
    from flower.options import options

    if isinstance(urls.settings.get("template_loader"), OverlayLoader):
        return
    # In front: Flower's last address matches everything.
    urls.handlers[:0] = addresses(Facts(settings()))
    urls.settings["template_loader"] = OverlayLoader(urls.settings["template_path"])
    command.Flower = GuardedFlower
    # Before the command reads its options: whatever is said there counts.
    options.max_tasks = TASKS_KEPT
