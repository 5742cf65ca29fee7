"""Records that the sink refused: lists, one of them, landing them after all, and dropping them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from feedq import verbs
from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.backend import Served
from feedq.api.callers import Viewer, changed, seen
from feedq.api.changing import Change, Reasoned, heed
from feedq.api.names import NamePath
from feedq.api.paging import Cursor, Limit, place_of
from feedq.errors import NotFound
from feedq.event_names import EventKind
from feedq.refused_records import parts, replay_parts
from feedq.report.rows import dead_letter_row
from feedq.sinks.base import parse_sink

IDS_MAX = 10_000
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
    request: Request,
    backend: Served,
    caller: Viewer,
    name: NamePath,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    feed = backend.store.feeds.get(name)
    seen(caller, feed, backend, request)
    (after,) = place_of(cursor, int) or (0,)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        letters = sink.dead_letters(name, after=after, limit=limit + 1)
    return answer_page("dead_letters", letters, limit, dead_letter_row, lambda letter: (letter.id,))


@router.get("/{letter_id}", responses=returns(documents.DEAD_LETTER), summary="One refused record")
def show_dead_letter(
    request: Request,
    backend: Served,
    caller: Viewer,
    name: NamePath,
    letter_id: Annotated[int, Path(ge=1, le=ID_MAX)],
) -> Response:
    feed = backend.store.feeds.get(name)
    seen(caller, feed, backend, request)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        letters = sink.dead_letters(name, ids=[letter_id], limit=1)
    if not letters:
        raise NotFound(f"{name} has no dead letter {letter_id}")
    return answer(dead_letter_row(letters[0]))


@router.post("/replay", responses=returns(ReplayRow), summary="Land them after all")
def replay_dead_letters(asked: Change, name: NamePath, given: ChosenLetters) -> Response:
    """Each lands in the transaction that takes it from the dead letters: asked twice, none lands twice."""
    heed(given)
    store = asked.backend.store
    feed = verbs.live_feed(store, name)
    changed(asked.caller, feed)
    with asked.backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        chosen = parts(sink, name, given.ids, given.all)
        if asked.dry_run:
            count = sum(map(len, chosen))
            return answer(
                ReplayRow(name=name, landed=count, refused={}, passed_over=0, dry_run=True).model_dump()
            )
        found = replay_parts(feed.spec, sink, chosen)
    told = {"landed": found.landed, "refused": len(found.refused)}
    store.feeds.tell(name, EventKind.DEAD_LETTERS_REPLAYED, told)
    return answer({"name": name, **asdict(found), "dry_run": False})


@router.post("/drop", responses=returns(DropRow), summary="Delete them for good")
def drop_dead_letters(asked: Change, name: NamePath, given: ChosenLetters) -> Response:
    heed(given)
    store = asked.backend.store
    feed = verbs.live_feed(store, name)
    changed(asked.caller, feed)
    with asked.backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        chosen = parts(sink, name, given.ids, given.all)
        dropped = sum(len(part) if asked.dry_run else sink.drop(part) for part in chosen)
    if not asked.dry_run:
        store.feeds.tell(name, EventKind.DEAD_LETTERS_DROPPED, {"dropped": dropped})
    return answer({"name": name, "dropped": dropped, "dry_run": asked.dry_run})
