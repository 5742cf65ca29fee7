"""What feeds have in their sinks: where each stands in its source and how to have it go on from elsewhere;
backfills, a bounded second stream beside that of a feed; and refused records."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, Field

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import AskedMoment, Cursor, Limit, place_of
from feedq.api.callers import LiveFeed, SeenFeed, Served, Viewer
from feedq.api.changing import AskedOfFeed, FeedChange, Reasoned
from feedq.control.store.jobs.schedules import KEY_MAX
from feedq.errors import InvalidInput, NotFound
from feedq.verbs.report.rows import changed_cursor_row, dead_letter_row

cursors = APIRouter(prefix="/feeds/{name:name}/cursor", tags=["cursors"])


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


@cursors.get("", responses=returns(CursorDocument), summary="Where it stands")
def show_cursor(backend: Served, feed: LiveFeed) -> Response:
    return answer(backend.sink_verbs.cursor(feed.name))


@cursors.post("/set", responses=returns(CursorChangeRow), summary="Go on after this cursor")
def set_cursor(asked: FeedChange, given: SetCursor) -> Response:
    return _change(asked, "set", cursor=given.cursor)


@cursors.post("/reset", responses=returns(CursorChangeRow), summary="Begin again where the feed began")
def reset_cursor(asked: FeedChange, given: Reasoned | None = None) -> Response:
    return _change(asked, "reset")


@cursors.post("/rewind", responses=returns(CursorChangeRow), summary="Go back, by records or to a time")
def rewind_cursor(asked: FeedChange, given: RewindCursor) -> Response:
    if (given.records is None) == (given.to is None):
        raise InvalidInput("say either records or to")
    return _change(asked, "rewind", records=given.records, to=given.to)


def _change(asked: AskedOfFeed, verb: str, **given: Any) -> Response:
    name = asked.feed.name
    done = asked.backend.sink_verbs.change_cursor(name, verb, dry_run=asked.dry_run, **given)
    return answer(changed_cursor_row(done) | {"name": name, "dry_run": asked.dry_run})


backfills = APIRouter(tags=["backfills"])


class FeedBackfillRow(BaseModel):
    """A backfill, under way or ended."""

    name: str = Field(description="Of the feed that it is of.")
    tenant: str
    status: str = Field(description="That of a feed; or `planned`, `finished` or `cancelled`.")
    because: str | None
    worker: str | None
    begins_after: Any
    ends_at: Any
    cursor: Any
    part: float | None = Field(description="How far it has come, from 0 to 1, where that can be told.")
    records: int | None
    dead_letters: int | None
    rows_per_s: float | None
    limit_rows_per_s: float | None
    begun_at: datetime | None
    ended_at: datetime | None
    took_s: float | None


class FeedBackfillList(BaseModel):
    """The backfills that are under way, by name of the feed; the first thousand."""

    backfills: list[FeedBackfillRow]


class BeginBackfill(Reasoned):
    """What to import again: cursors, or times where the connector's cursors tell them."""

    from_: Any = Field(alias="from", description="Begin after this one.")
    to: Any = Field(None, description="Nothing after this one; where the feed stands, unless given.")
    rows_per_s: float | None = Field(None, gt=0, le=1e12, description="10,000 unless given.")


@backfills.get("/backfills", responses=returns(FeedBackfillList), summary="All backfills under way")
def list_backfills(
    backend: Served, caller: Viewer, tenant: Annotated[str | None, Query(max_length=1000)] = None
) -> Response:
    found = backend.sink_verbs.backfills.running(tenant=tenant)
    return answer({"backfills": [row for row in found if caller.sees(row["tenant"])]})


@backfills.get(
    "/feeds/{name:name}/backfill", responses=returns(FeedBackfillRow), summary="How it goes, or ended"
)
def show_backfill(backend: Served, feed: SeenFeed) -> Response:
    return answer(backend.sink_verbs.backfills.of(feed.name))


@backfills.post("/feeds/{name:name}/backfill", responses=returns(FeedBackfillRow), summary="Begin one")
def begin_backfill(
    asked: FeedChange,
    given: BeginBackfill,
    idempotency_key: Annotated[
        str | None,
        Header(max_length=KEY_MAX, description="Asked again with the same key, nothing is begun again."),
    ] = None,
) -> Response:
    """The key is kept for as long as the history of the feed."""
    asked.require_version()
    row = asked.backend.sink_verbs.backfills.begin(
        asked.feed.name,
        begin=given.from_,
        end=given.to,
        rows_per_s=given.rows_per_s,
        key=idempotency_key,
        dry_run=asked.dry_run,
    )
    return answer(row)


@backfills.post(
    "/feeds/{name:name}/backfill/cancel", responses=returns(FeedBackfillRow), summary="End it now"
)
def cancel_backfill(asked: FeedChange, given: Reasoned | None = None) -> Response:
    """What it has landed stays."""
    asked.require_version()
    return answer(asked.backend.sink_verbs.backfills.cancel(asked.feed.name, dry_run=asked.dry_run))


IDS_MAX = 10_000
NEWEST_MAX = 10_000
ID_MAX = 2**63 - 1

dead_letters = APIRouter(prefix="/feeds/{name:name}/dead-letters", tags=["dead letters"])
LetterId = Annotated[int, Field(ge=1, le=ID_MAX)]


class ChosenLetters(Reasoned):
    """Which of a feed's dead letters: these, or all."""

    ids: list[LetterId] = Field([], max_length=IDS_MAX)
    all: bool = False


class ReplayRow(BaseModel):
    """What became of records that were to land after all."""

    name: str
    landed: int
    refused: dict[str, str]
    passed_over: int
    dry_run: bool


class DropRow(BaseModel):
    """How many were deleted, or would be."""

    name: str
    dropped: int
    dry_run: bool


@dead_letters.get("", responses=returns(documents.DEAD_LETTER_PAGE), summary="Refused records, oldest first")
def list_dead_letters(
    backend: Served,
    feed: SeenFeed,
    newest: Annotated[
        int | None,
        Query(ge=1, le=NEWEST_MAX, description="So many, newest first, instead; there is no next page."),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    letters = partial(backend.sink_verbs.letters, feed.name)
    if newest is not None:
        return answer({"dead_letters": list(map(dead_letter_row, letters(limit=newest))), "next": None})
    (after,) = place_of(cursor, int) or (0,)
    found = letters(after=after, limit=limit + 1)
    return answer_page("dead_letters", found, limit, dead_letter_row, lambda letter: (letter.id,))


@dead_letters.get("/{letter_id}", responses=returns(documents.DEAD_LETTER), summary="One refused record")
def show_dead_letter(
    backend: Served, feed: SeenFeed, letter_id: Annotated[int, Path(ge=1, le=ID_MAX)]
) -> Response:
    letters = backend.sink_verbs.letters(feed.name, ids=[letter_id])
    if not letters:
        raise NotFound(f"{feed.name} has no dead letter {letter_id}")
    return answer(dead_letter_row(letters[0]))


@dead_letters.post("/replay", responses=returns(ReplayRow), summary="Land them after all")
def replay_dead_letters(asked: FeedChange, given: ChosenLetters) -> Response:
    """Each lands in the transaction that takes it from the dead letters: asked twice, none lands twice."""
    name = asked.feed.name
    found = asked.backend.sink_verbs.replay(name, given.ids, given.all, dry_run=asked.dry_run)
    return answer({"name": name, **asdict(found), "dry_run": asked.dry_run})


@dead_letters.post("/drop", responses=returns(DropRow), summary="Delete them for good")
def drop_dead_letters(asked: FeedChange, given: ChosenLetters) -> Response:
    name = asked.feed.name
    dropped = asked.backend.sink_verbs.drop(name, given.ids, given.all, dry_run=asked.dry_run)
    return answer({"name": name, "dropped": dropped, "dry_run": asked.dry_run})
