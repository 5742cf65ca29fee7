"""Verbs for many feeds, chosen by what they have in common: first what they would touch, then a report each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from feedq import bulk, verbs
from feedq.api.answers import answer, returns
from feedq.api.callers import changed
from feedq.api.changing import Asked, Change, Reasoned, heed
from feedq.bulk import BulkResult
from feedq.errors import InvalidInput, Outdated
from feedq.model import FeedView, Status, TargetState, WorkerView
from feedq.selection import Selection
from feedq.store.base import Feeds
from feedq.telemetry import mask_url
from feedq.values import NAME_MAX
from feedq.wording import printable

FEEDS_MAX: Final = 20_000
"""Feeds of one request: more would not end within its time."""
NAMED_MAX: Final = 1_000
"""Names that a request may give, and that a dry run answers with."""
LABELS_MAX: Final = 20

router = APIRouter(prefix="/bulk", tags=["bulk"])
Text = str | None


class ChosenFeeds(BaseModel):
    """Which feeds: all that is given must hold, and something must be."""

    model_config = ConfigDict(extra="forbid")

    names: list[str] = Field([], max_length=NAMED_MAX)
    tenant: Text = None
    labels: dict[str, str] = Field({}, max_length=LABELS_MAX)
    worker: Text = None
    statuses: list[Status] = []
    connector: Text = None
    match: Text = Field(None, max_length=NAME_MAX, description="Names like `acme/*`.")
    failing: bool = False

    @property
    def selection(self) -> Selection:
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return Selection(**given | {"names": tuple(self.names), "statuses": tuple(self.statuses)})


class BulkAction(Reasoned):
    """What to do, to which feeds."""

    verb: Literal["pause", "resume", "restart", "move", "remove"]
    selection: ChosenFeeds
    count: int | None = Field(None, ge=0, description="How many that are, as the dry run said.")
    worker: Text = Field(None, description="Where they are to move; left out, placement chooses for each.")


class DoneRow(BaseModel):
    """A feed to which it was done, or would be."""

    name: str
    result: str


class FailedRow(BaseModel):
    """A feed to which it could not be done."""

    name: str
    error: str
    detail: str


class BulkReport(BaseModel):
    """What came of it, for each; of a dry run the first thousand names."""

    verb: str
    dry_run: bool
    count: int
    done: list[DoneRow]
    failed: list[FailedRow]


DONE = {"pause": "paused", "resume": "resumed", "restart": "restarted", "move": "moving", "remove": "removed"}


@router.post("/feeds", responses=returns(BulkReport), summary="Do something to many feeds")
def act_on_feeds(asked: Change, given: BulkAction) -> Response:
    """Asked with `dry_run` first, it says how many feeds there are; to go through with it, that number has to be
    given as `count`, and still be right."""
    heed(given)
    views = _views(asked, given.selection.selection)
    if asked.dry_run:
        would = [DoneRow(name=view.feed.name, result=DONE[given.verb]) for view in views[:NAMED_MAX]]
        return _report(asked, given.verb, len(views), would, [])
    if given.count is None:
        raise InvalidInput(
            f"count: is missing; it would be done to {len(views)} feeds, ask with dry_run=true"
        )
    if given.count != len(views):
        raise Outdated(
            f"count: there are {len(views)} such feeds by now, and not {given.count}; nothing was done"
        )
    result = _act(asked, given, views)
    done = [DoneRow(name=view.feed.name, result=_result(given.verb, to)) for view, to in result.done]
    failed = [
        FailedRow(name=view.feed.name, error=type(error).__name__, detail=printable(mask_url(str(error))))
        for view, error in result.failed
    ]
    return _report(asked, given.verb, len(views), done, failed)


def _result(verb: str, outcome: Any) -> str:
    """What was done; of a move, also where to, as the answer to the move of one feed has it."""
    return f"{DONE[verb]} to {outcome.worker.name}" if isinstance(outcome, WorkerView) else DONE[verb]


def _report(
    asked: Asked, verb: str, count: int, done: Sequence[DoneRow], failed: Sequence[FailedRow]
) -> Response:
    found = BulkReport(verb=verb, dry_run=asked.dry_run, count=count, done=[*done], failed=[*failed])
    return answer(found.model_dump())


def _views(asked: Asked, selection: Selection) -> list[FeedView]:
    """Raises `InvalidInput`, `Forbidden` when another tenant or a feed of it is named."""
    if selection.is_empty:
        raise InvalidInput("selection: which feeds? give names, tenant, match or another key")
    if selection.tenant is not None:
        asked.caller.require_tenant(selection.tenant, f"a feed of tenant {selection.tenant!r}")
    found = asked.backend.store.feeds.selected(selection, limit=FEEDS_MAX + 1)
    if selection.names:
        for view in found:
            changed(asked.caller, view.feed)
    # What is another tenant's, and chosen by what it has in common with others, is as if it was not there.
    found = [view for view in found if asked.caller.sees(view.feed.spec.tenant)]
    if len(found) > FEEDS_MAX:
        raise InvalidInput(f"selection: chooses more than {FEEDS_MAX} feeds; do it in parts, by match say")
    return found


def _act(asked: Asked, given: BulkAction, views: Sequence[FeedView]) -> BulkResult[FeedView, Any]:
    store, settings = asked.backend.store, asked.backend.settings
    if given.verb == "move":
        if given.worker is None:
            return bulk.move_elsewhere(store, views, settings)
        target = given.worker
        return bulk.one_by_one(views, lambda view: verbs.move_feed(store, view.feed.name, target, settings))
    # As they were when they were chosen: whose somebody else has made one meanwhile is left alone.
    acts: dict[str, Callable[[Feeds, FeedView], Any]] = {
        "pause": partial(_target, TargetState.PAUSED),
        "resume": partial(_target, TargetState.RUNNING),
        "restart": lambda feeds, view: feeds.restart(view.feed.name, expected=view.feed.version),
        "remove": lambda feeds, view: feeds.remove(view.feed.name, expected=view.feed.version),
    }
    return bulk.each(store.feeds, views, acts[given.verb])


def _target(target: TargetState, feeds: Feeds, view: FeedView) -> Any:
    return feeds.set_target(view.feed.name, target, expected=view.feed.version)
