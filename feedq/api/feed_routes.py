"""Feeds: lists, one of them, and its history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import AskedMoment, Cursor, Kinds, Limit, place_of
from feedq.api.backend import Served
from feedq.api.callers import SeenFeed, Viewer
from feedq.control.store.event_listing import EventFilter
from feedq.core.landed import Span
from feedq.core.model import Status
from feedq.core.selection import Selection
from feedq.core.values import NAME_MAX
from feedq.errors import InvalidInput
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.report.rows import feed_document, feed_row, landed_document, listed_event_row

TEXT_MAX = 200
LABELS_MAX = 20
STATUSES_MAX = len(Status)

router = APIRouter(prefix="/feeds", tags=["feeds"])


@router.get("", responses=returns(documents.FEED_PAGE), summary="Feeds by name")
def list_feeds(
    backend: Served,
    caller: Viewer,
    status: Annotated[list[Status], Query(max_length=STATUSES_MAX)] = [],  # noqa: B006 -- FastAPI copies it
    tenant: str | None = None,
    worker: Annotated[str | None, Query(description="The whole name of the worker that has it.")] = None,
    connector: str | None = None,
    match: Annotated[str | None, Query(max_length=NAME_MAX, description="Names like `acme/*`.")] = None,
    failing: Annotated[
        bool, Query(description="Only those in trouble, which somebody has to look at.")
    ] = False,
    label: Annotated[
        list[str], Query(max_length=LABELS_MAX, description="As `key=value`; all of them.")
    ] = [],  # noqa: B006
    text: Annotated[
        str, Query(max_length=TEXT_MAX, description="Looked for wherever a feed shows some, in any case.")
    ] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    if tenant is not None and not caller.sees(tenant):
        return answer({"feeds": [], "next": None})
    chosen = Selection(
        tenant=tenant if caller.tenant is None else caller.tenant,
        labels=labels_of(label),
        worker=worker,
        statuses=tuple(status),
        connector=connector,
        match=match,
        failing=failing,
        removing=True,
    )
    place = place_of(cursor, str, int) or ("", 0)
    found = backend.store.listing.after(chosen, text_=text.strip(), place=place, limit=limit + 1)
    return answer_page("feeds", found, limit, feed_row, lambda view: (view.feed.name, view.feed.id))


@router.get("/{name:name}", responses=returns(documents.FEED), summary="Everything about one feed")
def show_feed(backend: Served, feed: SeenFeed) -> Response:
    view = backend.store.feeds.view(feed.name)
    workers, now = backend.store.workers.views(), backend.store.now()
    why = explain(view, workers, now=now, rules=backend.settings.rules)
    return answer(feed_document(view, explanation=why))


@router.get("/{name:name}/events", responses=returns(documents.EVENT_PAGE), summary="History of one feed")
def list_events_of_feed(
    backend: Served,
    feed: SeenFeed,
    kind: Kinds = [],  # noqa: B006 -- FastAPI copies it
    since: AskedMoment | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    (place,) = place_of(cursor, int) or (None,)
    which = EventFilter(tuple(kind), feed=feed, since=since)
    found = backend.store.history.before(which, place=place, limit=limit + 1)
    return answer_page("events", found, limit, listed_event_row, lambda one: (one.id,))


@router.get(
    "/{name:name}/history",
    responses=returns(documents.LANDED),
    summary="What one feed landed in an hour or a day",
)
def show_landed(
    backend: Served,
    feed: SeenFeed,
    span: Annotated[Span, Query(description="By minutes, or by quarters of an hour.")] = Span.HOUR,
) -> Response:
    return answer(landed_document(span, backend.store.landed.of_feed(feed.id, span)))


def labels_of(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, pairs, strict=True):
        if not key or not equals:
            raise InvalidInput(f"label {text!r}: write it as key=value")
    return {key: value for key, _, value in pairs}
