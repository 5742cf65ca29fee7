"""Fields of a feed's records that no column takes, and columns for them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from feedq import new_columns, verbs
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import Viewer, changed, seen
from feedq.api.changing import Change, Reasoned, heed
from feedq.api.names import NamePath
from feedq.report.rows import drift_document
from feedq.sinks.base import parse_sink
from feedq.store.base import require_version

router = APIRouter(prefix="/feeds/{name:name}/drift", tags=["feeds"])


class DriftDocument(BaseModel):
    """Fields that no column takes with the types of columns for them, and the statements that add these."""

    name: str
    drift: str
    fields: dict[str, str]
    statements: list[str]
    applied: bool


@router.get("", responses=returns(DriftDocument), summary="Fields that no column takes")
def show_drift(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Response:
    feed = verbs.live_feed(backend.store, name)
    seen(caller, feed, backend, request)
    view = backend.store.feeds.view(name)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        return answer(drift_document(view, new_columns.proposed(sink, view), applied=False))


@router.post("", responses=returns(DriftDocument), summary="Add columns for them")
def add_columns(asked: Change, name: NamePath, given: Reasoned | None = None) -> Response:
    store = asked.backend.store
    feed = verbs.live_feed(store, name)
    changed(asked.caller, feed)
    heed(given)
    require_version(f"feed {name!r}", feed.version, asked.expected)
    view = store.feeds.view(name)
    with asked.backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        if asked.dry_run:
            return answer(drift_document(view, new_columns.proposed(sink, view), applied=False))
        return answer(drift_document(view, new_columns.add_columns(store, sink, view), applied=True))
