"""Where a feed stands in its source, and having it go on from elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from feedq import feed_cursor, verbs
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import Viewer, changed, seen
from feedq.api.changing import Asked, Change, Reasoned, heed
from feedq.api.moments import AskedMoment
from feedq.api.names import NamePath
from feedq.errors import InvalidInput
from feedq.feed_cursor import Wish
from feedq.model import ChangedCursor, Feed
from feedq.report.rows import changed_cursor_row
from feedq.sinks.base import parse_sink

HISTORY_SHOWN = 50
"""No more are kept."""

router = APIRouter(prefix="/feeds/{name:name}/cursor", tags=["cursors"])


class CursorDocument(BaseModel):
    """Where a feed stands; null and 0 when it has not begun."""

    name: str
    cursor: Any
    records: int
    updated_at: datetime | None
    epoch: int | None


class ChangedCursorRow(BaseModel):
    """A change of a cursor."""

    verb: str
    at: datetime
    before: Any
    after: Any
    records: int
    deleted: int


class ChangedCursorList(BaseModel):
    """The last changes of a cursor, newest first."""

    changes: list[ChangedCursorRow]


class CursorChangeRow(ChangedCursorRow):
    """A change of a cursor that was made now, or would be."""

    name: str
    dry_run: bool


class Moved(Reasoned):
    """What any change of a cursor may say."""

    delete: bool = Field(False, description="Also delete what it has landed after that, in the same commit.")


class SetCursor(Moved):
    """The cursor to go on after."""

    cursor: Any


class RewindCursor(Moved):
    """How far to go back: either of them."""

    records: int | None = Field(None, ge=1, le=2**62)
    to: AskedMoment | None = None


class Undo(Moved):
    """To take the last change back."""

    force: bool = Field(False, description="Also if rows were deleted, which then are missing.")


@router.get("", responses=returns(CursorDocument), summary="Where it stands")
def show_cursor(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Response:
    feed = verbs.live_feed(backend.store, name)
    seen(caller, feed, backend, request)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        found = feed_cursor.checkpoint_of(sink, feed)
    keys = ("cursor", "records", "updated_at", "epoch")
    known = {key: getattr(found, key, None) for key in keys}
    return answer({"name": name, **known, "records": known["records"] or 0})


@router.get("/history", responses=returns(ChangedCursorList), summary="Its last changes")
def show_cursor_history(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Response:
    feed = verbs.live_feed(backend.store, name)
    seen(caller, feed, backend, request)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        found = sink.cursor_changes(feed.id, limit=HISTORY_SHOWN)
    return answer({"changes": list(map(changed_cursor_row, found))})


@router.post("/set", responses=returns(CursorChangeRow), summary="Go on after this cursor")
def set_cursor(asked: Change, name: NamePath, given: SetCursor) -> Response:
    feed = _live(asked, name)
    return _change(asked, feed, feed_cursor.set_to(feed, given.cursor), given)


@router.post("/reset", responses=returns(CursorChangeRow), summary="Begin again where the feed began")
def reset_cursor(asked: Change, name: NamePath, given: Moved | None = None) -> Response:
    feed = _live(asked, name)
    return _change(asked, feed, feed_cursor.reset(feed), given or Moved())


@router.post("/rewind", responses=returns(CursorChangeRow), summary="Go back, by records or to a time")
def rewind_cursor(asked: Change, name: NamePath, given: RewindCursor) -> Response:
    if (given.records is None) == (given.to is None):
        raise InvalidInput("say either records or to")
    feed = _live(asked, name)
    return _change(asked, feed, feed_cursor.rewind(feed, records=given.records, to=given.to), given)


@router.post(
    "/undo", responses=returns(CursorChangeRow), summary="Go back to the cursor before the last change"
)
def undo_cursor(asked: Change, name: NamePath, given: Undo | None = None) -> Response:
    chosen = given or Undo()
    feed = _live(asked, name)
    return _change(asked, feed, feed_cursor.undo(feed, force=chosen.force), chosen)


def _live(asked: Asked, name: str) -> Feed:
    found = verbs.live_feed(asked.backend.store, name)
    changed(asked.caller, found)
    return found


def _change(asked: Asked, feed: Feed, wish: Wish, given: Moved) -> Response:
    heed(given)
    with asked.backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        done: ChangedCursor = feed_cursor.change(
            asked.backend.store, sink, feed, wish, delete=given.delete, dry_run=asked.dry_run
        )
    return answer(changed_cursor_row(done) | {"name": feed.name, "dry_run": asked.dry_run})
