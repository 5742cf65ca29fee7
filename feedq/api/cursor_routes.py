"""Where a feed stands in its source, and having it go on from elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from feedq.api.answers import answer, returns
from feedq.api.arguments import AskedMoment
from feedq.api.backend import Served
from feedq.api.callers import LiveFeed
from feedq.api.changing import AskedOfFeed, FeedChange, Reasoned
from feedq.errors import InvalidInput
from feedq.report.rows import changed_cursor_row

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
def show_cursor(backend: Served, feed: LiveFeed) -> Response:
    return answer(backend.sink_verbs.cursor(feed.name))


@router.get("/history", responses=returns(ChangedCursorList), summary="Its last changes")
def show_cursor_history(backend: Served, feed: LiveFeed) -> Response:
    found = backend.sink_verbs.cursor_changes(feed.name, limit=HISTORY_SHOWN)
    return answer({"changes": list(map(changed_cursor_row, found))})


@router.post("/set", responses=returns(CursorChangeRow), summary="Go on after this cursor")
def set_cursor(asked: FeedChange, given: SetCursor) -> Response:
    return _change(asked, "set", given, cursor=given.cursor)


@router.post("/reset", responses=returns(CursorChangeRow), summary="Begin again where the feed began")
def reset_cursor(asked: FeedChange, given: Moved | None = None) -> Response:
    return _change(asked, "reset", given or Moved())


@router.post("/rewind", responses=returns(CursorChangeRow), summary="Go back, by records or to a time")
def rewind_cursor(asked: FeedChange, given: RewindCursor) -> Response:
    if (given.records is None) == (given.to is None):
        raise InvalidInput("say either records or to")
    return _change(asked, "rewind", given, records=given.records, to=given.to)


@router.post(
    "/undo", responses=returns(CursorChangeRow), summary="Go back to the cursor before the last change"
)
def undo_cursor(asked: FeedChange, given: Undo | None = None) -> Response:
    chosen = given or Undo()
    return _change(asked, "undo", chosen, force=chosen.force)


def _change(asked: AskedOfFeed, verb: str, moved: Moved, /, **given: Any) -> Response:
    name = asked.feed.name
    done = asked.backend.sink_verbs.change_cursor(
        name, verb, delete=moved.delete, dry_run=asked.dry_run, **given
    )
    return answer(changed_cursor_row(done) | {"name": name, "dry_run": asked.dry_run})
