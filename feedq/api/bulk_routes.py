"""Verbs for many feeds, chosen by what they have in common: first what they would touch, then a report each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from feedq.api.answers import answer, returns
from feedq.api.callers import changed
from feedq.api.changing import Asked, Change, Reasoned
from feedq.api.feed_routes import Declaration
from feedq.control.store.feeds import Feeds
from feedq.core.model import Feed, FeedView, Status, TargetState, WorkerView
from feedq.core.selection import Selection
from feedq.core.values import NAME_MAX
from feedq.errors import FeedqError, InvalidInput, Outdated
from feedq.telemetry.logs import mask_url
from feedq.verbs import actions, bulk
from feedq.verbs.bulk import BulkResult
from feedq.verbs.declaring import begun, declare
from feedq.verbs.manifest.changes import Action, plan
from feedq.verbs.manifest.changes import Change as FeedChange
from feedq.verbs.manifest.feed_entry import FeedEntry, validate
from feedq.verbs.wording import printable

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
    generation: int | None = None
    note: Text = None


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


class DeclaredFeeds(Reasoned):
    """Feeds as manifests have them, and names of others."""

    feeds: list[Declaration] = Field([], max_length=FEEDS_MAX)
    remove: list[str] = Field([], max_length=FEEDS_MAX, description="Feeds to be removed.")
    adopt: bool = Field(
        False, description="New feeds go on from what others of their names left in their sinks."
    )


class DeclaredReport(BulkReport):
    """What came of it, for each that is not as declared already."""

    unchanged: int
    unasked: list[str] = Field(description="Why sinks could not be asked whether they know the new feeds.")


DONE = {"pause": "paused", "resume": "resumed", "restart": "restarted", "move": "moving", "remove": "removed"}
ACTED = {Action.ADD: "added", Action.CHANGE: "edited", Action.REMOVE: "removed"}


@router.post("/feeds", responses=returns(BulkReport), summary="Do something to many feeds")
def act_on_feeds(asked: Change, given: BulkAction) -> Response:
    """Asked with `dry_run` first, it says how many feeds there are; to go through with it, that number has to be
    given as `count`, and still be right."""
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
    done = [_done(view.feed.name, DONE[given.verb], outcome) for view, outcome in result.done]
    failed = [_failed(view.feed.name, error) for view, error in result.failed]
    return _report(asked, given.verb, len(views), done, failed)


def _done(name: str, result: str, outcome: Feed | WorkerView | None, note: str | None = None) -> DoneRow:
    """What was done; of a move, also where to, as the answer to the move of one feed has it."""
    if isinstance(outcome, WorkerView):
        return DoneRow(name=name, result=f"{result} to {outcome.worker.name}")
    generation = None if outcome is None else outcome.generation
    return DoneRow(name=name, result=result, generation=generation, note=note)


def _failed(name: str, error: FeedqError) -> FailedRow:
    return FailedRow(name=name, error=type(error).__name__, detail=printable(mask_url(str(error))))


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
        return bulk.one_by_one(views, lambda view: actions.move_feed(store, view.feed.name, target, settings))
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


@router.post("/declarations", responses=returns(DeclaredReport), summary="Declare many feeds")
def declare_feeds(asked: Change, given: DeclaredFeeds) -> Response:
    """Each is added, or made what is declared; what is so already is left alone. All are checked first: one that
    is wrong, and nothing is done."""
    store, open_sink = asked.backend.store, asked.backend.open_sink
    entries = _entries(asked, given)
    names = (*(entry.name for entry in entries), *given.remove)
    there = [view.feed for view in store.feeds.selected(Selection(names=names))] if names else []
    for feed in there:
        changed(asked.caller, feed)
    unsaid = {entry.name for entry in entries if entry.target_state is None}
    planned = plan([entry.spec for entry in entries], there, keep_target=unsaid)
    removals = [FeedChange(Action.REMOVE, "feed", name) for name in given.remove]
    resumes = {entry.name: entry.resume for entry in entries if entry.resume is not None}
    found = begun([*planned.changes, *removals], resumes, open_sink, adopt=given.adopt)
    if asked.dry_run:
        result: BulkResult[FeedChange, Feed | None] = BulkResult([(one, None) for one in found.changes])
    else:
        result = declare(store, open_sink, found.changes, found.starts)
    report = DeclaredReport(
        verb="declare",
        dry_run=asked.dry_run,
        count=len(found.changes),
        done=[_done(one.name, ACTED[one.action], feed, one.note) for one, feed in result.done],
        failed=[_failed(one.name, error) for one, error in result.failed],
        unchanged=planned.unchanged,
        unasked=list(found.unasked),
    )
    return answer(report.model_dump())


def _entries(asked: Asked, given: DeclaredFeeds) -> list[FeedEntry]:
    """Raises `InvalidInput`, `Forbidden`."""
    entries = [FeedEntry.valid(keys) for keys in given.feeds]
    for entry in entries:
        asked.caller.require_tenant(entry.spec.tenant, f"a feed of tenant {entry.spec.tenant!r}")
        validate(entry.spec)
    twice = [n for n, count in Counter([*(e.name for e in entries), *given.remove]).items() if count > 1]
    if twice:
        raise InvalidInput(f"feeds: {twice[0]!r} is there more than once")
    return entries
