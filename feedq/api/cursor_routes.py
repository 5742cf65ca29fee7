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
from feedq.verbs.report.rows import changed_cursor_row

router = APIRouter(prefix="/feeds/{name:name}/cursor", tags=["cursors"])


class CursorDocument(BaseModel):
    """Where a feed stands; null and 0 when it has not begun."""

    name: str
    cursor: Any
    records: int
    updated_at: datetime | None
    epoch: int | None


class CursorChangeRow(BaseModel):
    """A change of a cursor that was made now, or would be."""

    name: str
    verb: str
    before: Any
    after: Any
    records: int
    duplicates: bool = Field(
        description="Whether what the source sends again lands twice: the sink has no key."
    )
    dry_run: bool


class SetCursor(Reasoned):
    """The cursor to go on after."""

    cursor: Any


class RewindCursor(Reasoned):
    """How far to go back: either of them."""

    records: int | None = Field(None, ge=1, le=2**62)
    to: AskedMoment | None = None


@router.get("", responses=returns(CursorDocument), summary="Where it stands")
def show_cursor(backend: Served, feed: LiveFeed) -> Response:
    return answer(backend.sink_verbs.cursor(feed.name))


@router.post("/set", responses=returns(CursorChangeRow), summary="Go on after this cursor")
def set_cursor(asked: FeedChange, given: SetCursor) -> Response:
    return _change(asked, "set", cursor=given.cursor)


@router.post("/reset", responses=returns(CursorChangeRow), summary="Begin again where the feed began")
def reset_cursor(asked: FeedChange, given: Reasoned | None = None) -> Response:
    return _change(asked, "reset")


@router.post("/rewind", responses=returns(CursorChangeRow), summary="Go back, by records or to a time")
def rewind_cursor(asked: FeedChange, given: RewindCursor) -> Response:
    if (given.records is None) == (given.to is None):
        raise InvalidInput("say either records or to")
    return _change(asked, "rewind", records=given.records, to=given.to)


def _change(asked: AskedOfFeed, verb: str, **given: Any) -> Response:
    name = asked.feed.name
    done = asked.backend.sink_verbs.change_cursor(name, verb, dry_run=asked.dry_run, **given)
    return answer(changed_cursor_row(done) | {"name": name, "dry_run": asked.dry_run})
