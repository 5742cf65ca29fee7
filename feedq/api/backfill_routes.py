"""Backfills: a bounded second stream beside that of a feed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, Field

from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import SeenFeed, Viewer
from feedq.api.changing import FeedChange, Reasoned
from feedq.control.store.jobs.schedules import KEY_MAX

router = APIRouter(tags=["backfills"])


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


@router.get("/backfills", responses=returns(FeedBackfillList), summary="All backfills under way")
def list_backfills(
    backend: Served, caller: Viewer, tenant: Annotated[str | None, Query(max_length=1000)] = None
) -> Response:
    found = backend.sink_verbs.backfills.running(tenant=tenant)
    return answer({"backfills": [row for row in found if caller.sees(row["tenant"])]})


@router.get(
    "/feeds/{name:name}/backfill", responses=returns(FeedBackfillRow), summary="How it goes, or ended"
)
def show_backfill(backend: Served, feed: SeenFeed) -> Response:
    return answer(backend.sink_verbs.backfills.of(feed.name))


@router.post("/feeds/{name:name}/backfill", responses=returns(FeedBackfillRow), summary="Begin one")
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


@router.post("/feeds/{name:name}/backfill/cancel", responses=returns(FeedBackfillRow), summary="End it now")
def cancel_backfill(asked: FeedChange, given: Reasoned | None = None) -> Response:
    """What it has landed stays."""
    asked.require_version()
    return answer(asked.backend.sink_verbs.backfills.cancel(asked.feed.name, dry_run=asked.dry_run))
