"""Declarations as they stand in manifests, a page at a time: what `feedq export` prints."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import Cursor, Limit, cursor_of, place_of
from feedq.api.backend import Served
from feedq.api.callers import FleetViewer, Viewer
from feedq.api.feed_changes import Declaration as FeedKeys
from feedq.api.schedule_changes import Declaration as ScheduleKeys
from feedq.core.schedule.entries import plain_schedule
from feedq.core.schedule.model import Beat
from feedq.verbs.adoption import resumes_of
from feedq.verbs.manifest.feed_entry import plain_feed

router = APIRouter(prefix="/declarations", tags=["declarations"])


class FeedDeclarations(BaseModel):
    """A page of feeds as they stand in a manifest."""

    feeds: list[FeedKeys]
    next: str | None


class ScheduleDeclarations(BaseModel):
    """A page of schedules as they stand in a manifest, and why this release cannot read others, by name."""

    schedules: list[ScheduleKeys]
    unreadable: dict[str, str]
    next: str | None


@router.get("/feeds", responses=returns(FeedDeclarations), summary="Feeds as manifests have them")
def export_feeds(
    backend: Served,
    caller: Viewer,
    tenant: str | None = None,
    with_cursors: Annotated[bool, Query(description="Also where each stands in its sink.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    if tenant is not None and not caller.sees(tenant):
        return answer({"feeds": [], "next": None})
    (after,) = place_of(cursor, str) or ("",)
    whose = tenant if caller.tenant is None else caller.tenant
    found = backend.store.feeds.declared(tenant=whose, after=after, limit=limit + 1)
    resumes = resumes_of(found, backend.open_sink) if with_cursors else {}
    return answer_page(
        "feeds",
        found,
        limit,
        lambda feed: plain_feed(feed.spec, resumes.get(feed.name)),
        lambda feed: (feed.name,),
    )


@router.get("/schedules", responses=returns(ScheduleDeclarations), summary="Schedules as manifests have them")
def export_schedules(
    backend: Served, caller: FleetViewer, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    (after,) = place_of(cursor, str) or ("",)
    views = backend.store.jobs.schedules.views(after=after, limit=limit + 1)
    page = [view.schedule for view in views[:limit]]
    declared = [one for one in page if not isinstance(one.spec.timing, Beat)]
    readable = [plain_schedule(one.spec) for one in declared if one.unreadable is None]
    unreadable = {one.spec.name: one.unreadable for one in declared if one.unreadable is not None}
    following = cursor_of(page[-1].spec.name) if len(views) > limit else None
    return answer({"schedules": readable, "unreadable": unreadable, "next": following})
