"""Where a feed stands in its source, and having it go on from elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from feedq import verbs
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import Viewer, changed, seen
from feedq.api.changing import Asked, Change, Reasoned, heed
from feedq.api.moments import AskedMoment
from feedq.api.names import NamePath
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
def show_cursor(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Response:
    seen(caller, verbs.live_feed(backend.store, name), backend, request)
    return answer(backend.sink_verbs.cursor(name))


@router.get("/history", responses=returns(ChangedCursorList), summary="Its last changes")
def show_cursor_history(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Response:
    seen(caller, verbs.live_feed(backend.store, name), backend, request)
    found = backend.sink_verbs.cursor_changes(name, limit=HISTORY_SHOWN)
    return answer({"changes": list(map(changed_cursor_row, found))})


@router.post("/set", responses=returns(CursorChangeRow), summary="Go on after this cursor")
def set_cursor(asked: Change, name: NamePath, given: SetCursor) -> Response:
    return _change(asked, name, "set", given, cursor=given.cursor)


@router.post("/reset", responses=returns(CursorChangeRow), summary="Begin again where the feed began")
def reset_cursor(asked: Change, name: NamePath, given: Moved | None = None) -> Response:
    return _change(asked, name, "reset", given or Moved())


@router.post("/rewind", responses=returns(CursorChangeRow), summary="Go back, by records or to a time")
def rewind_cursor(asked: Change, name: NamePath, given: RewindCursor) -> Response:
    if (given.records is None) == (given.to is None):
        raise InvalidInput("say either records or to")
    return _change(asked, name, "rewind", given, records=given.records, to=given.to)


@router.post(
    "/undo", responses=returns(CursorChangeRow), summary="Go back to the cursor before the last change"
)
def undo_cursor(asked: Change, name: NamePath, given: Undo | None = None) -> Response:
    chosen = given or Undo()
    return _change(asked, name, "undo", chosen, force=chosen.force)


def _change(asked: Asked, name: str, verb: str, moved: Moved, /, **given: Any) -> Response:
    changed(asked.caller, verbs.live_feed(asked.backend.store, name))
    heed(moved)
    done = asked.backend.sink_verbs.change_cursor(
        name, verb, delete=moved.delete, dry_run=asked.dry_run, **given
    )
    return answer(changed_cursor_row(done) | {"name": name, "dry_run": asked.dry_run})
