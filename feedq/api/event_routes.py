"""History of everything: what happened to feeds, workers and schedules, and who did it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime

from feedq.api import documents
from feedq.api.answers import answer_page, returns
from feedq.api.backend import Served
from feedq.api.paging import Cursor, Limit, place_of
from feedq.report.rows import event_row
from feedq.store.event_listing import EventFilter, ListedEvent
from feedq.telemetry import EventKind

KINDS_MAX = len(EventKind)

router = APIRouter(prefix="/events", tags=["events"])


@router.get("", responses=returns(documents.EVENT_PAGE), summary="History, newest first")
def list_events(
    backend: Served,
    kind: Annotated[list[EventKind], Query(max_length=KINDS_MAX)] = [],  # noqa: B006 -- FastAPI copies it
    tenant: str | None = None,
    since: AwareDatetime | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    (place,) = place_of(cursor, int) or (None,)
    which = EventFilter(tuple(kind), tenant=tenant, since=since)
    found = backend.store.history.before(which, place=place, limit=limit + 1)
    return answer_page("events", found, limit, listed_event_row, lambda one: (one.id,))


def listed_event_row(listed: ListedEvent) -> dict[str, Any]:
    names = {"id": listed.id, "feed": listed.feed, "worker": listed.worker}
    return event_row(listed.event) | names
