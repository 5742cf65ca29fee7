"""History of everything: what happened to feeds, workers and schedules, and who did it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.backend import Served
from feedq.api.callers import Viewer
from feedq.api.moments import AskedMoment
from feedq.api.paging import Cursor, Limit, place_of
from feedq.event_names import EventKind
from feedq.report.rows import event_row
from feedq.store.event_listing import EventFilter, ListedEvent

KINDS_MAX = len(EventKind)

router = APIRouter(prefix="/events", tags=["events"])


@router.get("", responses=returns(documents.EVENT_PAGE), summary="History, newest first")
def list_events(
    backend: Served,
    caller: Viewer,
    kind: Annotated[list[EventKind], Query(max_length=KINDS_MAX)] = [],  # noqa: B006 -- FastAPI copies it
    tenant: str | None = None,
    since: AskedMoment | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    (place,) = place_of(cursor, int) or (None,)
    if tenant is not None and not caller.sees(tenant):
        return answer({"events": [], "next": None})
    whose = tenant if caller.tenant is None else caller.tenant
    which = EventFilter(tuple(kind), tenant=whose, since=since)
    found = backend.store.history.before(which, place=place, limit=limit + 1)
    return answer_page("events", found, limit, listed_event_row, lambda one: (one.id,))


def listed_event_row(listed: ListedEvent) -> dict[str, Any]:
    names = {"id": listed.id, "feed": listed.feed, "worker": listed.worker}
    return event_row(listed.event) | names
