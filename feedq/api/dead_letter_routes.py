"""Records that the sink refused: lists, one of them, landing them after all, and dropping them."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import Cursor, Limit, place_of
from feedq.api.backend import Served
from feedq.api.callers import SeenFeed
from feedq.api.changing import FeedChange, Reasoned
from feedq.errors import NotFound
from feedq.verbs.report.rows import dead_letter_row

IDS_MAX = 10_000
NEWEST_MAX = 10_000
ID_MAX = 2**63 - 1

router = APIRouter(prefix="/feeds/{name:name}/dead-letters", tags=["dead letters"])
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


@router.get("", responses=returns(documents.DEAD_LETTER_PAGE), summary="Refused records, oldest first")
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


@router.get("/{letter_id}", responses=returns(documents.DEAD_LETTER), summary="One refused record")
def show_dead_letter(
    backend: Served, feed: SeenFeed, letter_id: Annotated[int, Path(ge=1, le=ID_MAX)]
) -> Response:
    letters = backend.sink_verbs.letters(feed.name, ids=[letter_id])
    if not letters:
        raise NotFound(f"{feed.name} has no dead letter {letter_id}")
    return answer(dead_letter_row(letters[0]))


@router.post("/replay", responses=returns(ReplayRow), summary="Land them after all")
def replay_dead_letters(asked: FeedChange, given: ChosenLetters) -> Response:
    """Each lands in the transaction that takes it from the dead letters: asked twice, none lands twice."""
    name = asked.feed.name
    found = asked.backend.sink_verbs.replay(name, given.ids, given.all, dry_run=asked.dry_run)
    return answer({"name": name, **asdict(found), "dry_run": asked.dry_run})


@router.post("/drop", responses=returns(DropRow), summary="Delete them for good")
def drop_dead_letters(asked: FeedChange, given: ChosenLetters) -> Response:
    name = asked.feed.name
    dropped = asked.backend.sink_verbs.drop(name, given.ids, given.all, dry_run=asked.dry_run)
    return answer({"name": name, "dropped": dropped, "dry_run": asked.dry_run})
