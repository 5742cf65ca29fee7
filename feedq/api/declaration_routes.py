"""Declarations as they stand in manifests, a page at a time: what `feedq feed export` prints."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel

from feedq.api.answers import answer, answer_page, returns
from feedq.api.backend import Served
from feedq.api.callers import FleetViewer, Viewer
from feedq.api.feed_changes import Declaration as FeedKeys
from feedq.api.paging import Cursor, Limit, cursor_of, place_of
from feedq.api.schedule_changes import Declaration as ScheduleKeys
from feedq.manifest.feed_entry import plain_feed
from feedq.schedule.entries import plain_schedule

router = APIRouter(prefix="/declarations", tags=["declarations"])


class FeedDeclarations(BaseModel):
    """A page of feeds as they stand in a manifest."""

    feeds: list[FeedKeys]
    next: str | None


class ScheduleDeclarations(BaseModel):
    """A page of schedules as they stand in a manifest, without those that this release cannot read."""

    schedules: list[ScheduleKeys]
    next: str | None


@router.get("/feeds", responses=returns(FeedDeclarations), summary="Feeds as manifests have them")
def export_feeds(
    backend: Served, caller: Viewer, tenant: str | None = None, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    if tenant is not None and not caller.sees(tenant):
        return answer({"feeds": [], "next": None})
    (after,) = place_of(cursor, str) or ("",)
    whose = tenant if caller.tenant is None else caller.tenant
    found = backend.store.feeds.declared(tenant=whose, after=after, limit=limit + 1)
    return answer_page("feeds", found, limit, lambda feed: plain_feed(feed.spec), lambda feed: (feed.name,))


@router.get("/schedules", responses=returns(ScheduleDeclarations), summary="Schedules as manifests have them")
def export_schedules(
    backend: Served, caller: FleetViewer, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    (after,) = place_of(cursor, str) or ("",)
    views = backend.store.jobs.schedules.views(after=after, limit=limit + 1)
    page = [view.schedule for view in views[:limit]]
    readable = [plain_schedule(one.spec) for one in page if one.unreadable is None]
    following = cursor_of(page[-1].spec.name) if len(views) > limit else None
    return answer({"schedules": readable, "next": following})
