"""Feeds: to list, show and act on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.feeds import FeedChange
from feedq.core.model import JSON, ChosenFeed, FeedView, Version, WorkerView, require_version
from feedq.core.passwords import mask_url, masked
from feedq.core.roles import AccessRole
from feedq.core.selection import ALL, Selection, SelectionOrder
from feedq.errors import FeedqError, InvalidInput, Outdated
from feedq.telemetry.event_names import EventKind
from feedq.verbs import bulk
from feedq.verbs.details import masked_view
from feedq.verbs.diagnosis.feed_checks import explain
from feedq.verbs.fleet import find_worker
from feedq.verbs.registry import (
    At,
    Cursor,
    Expected,
    Limit,
    NameArgument,
    Page,
    Text,
    etag_of,
    page_of,
    page_place,
    verb,
    version_of,
)


class FeedAction(StrEnum):
    """Actions on feeds."""

    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    MOVE = "move"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class FeedDocument:
    """Everything about a feed."""

    view: FeedView
    explanation: str | None
    """Why it does not stream, and what to do about that."""
    goes_to: str | None
    """The name of the worker that it is moving to, if that is known."""
    declaration: JSON
    """As it stands in a manifest."""
    etag: str


@dataclass(frozen=True, slots=True)
class Done:
    """A feed that was changed, or would be."""

    name: str
    generation: int | None = None
    worker: str | None = None
    """The worker that it moves to."""
    already: bool = False
    """Whether it was on that worker before."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A feed that could not be changed, and why."""

    name: str
    error: str
    detail: str


@dataclass(frozen=True, slots=True)
class Acted:
    """The result for each feed of a selection; in a dry run, what it would be."""

    count: int
    done: list[Done]
    failed: list[Failed]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class FeedCounts:
    """Feeds by status and reason, counted."""

    counts: list[StatusCount]


@verb("GET /feeds")
def list_feeds(
    at: At,
    *,
    select: Selection = ALL,
    text: Text = "",
    order: SelectionOrder = SelectionOrder.NAME,
    reverse: bool = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[FeedView]:
    """List feeds by name or in another order; ``reverse`` turns the order around.

    ``text`` is searched in everything that a feed shows. In an order that changes meanwhile, a feed may appear on
    two pages or on none.
    """
    if (seen := at.seen(select)) is None:
        return Page([])
    if order is SelectionOrder.NAME and not reverse:
        place = page_place(cursor, str, int)
        found = at.store.listing.after(seen, text_=text, place=place, limit=limit + 1)
        page = page_of(found, limit, lambda view: (view.feed.name, view.feed.id))
    else:
        (offset,) = page_place(cursor, int) or (0,)
        found = at.store.listing.ordered(
            seen, order, reverse=reverse, text_=text, offset=offset, limit=limit + 1
        )
        page = page_of(found, limit, lambda view: (offset + limit,))
    return Page(list(map(masked_view, page.items)), page.next)


@verb("GET /counts")
def count_feeds(at: At, *, select: Selection = ALL, text: Text = "") -> FeedCounts:
    """Count feeds by status and by the reason why they wait."""
    seen = at.seen(select)
    return FeedCounts([] if seen is None else at.store.listing.tallies(seen, text_=text))


@verb("GET /feeds/{name}")
def show_feed(at: At, *, name: NameArgument) -> FeedDocument:
    """Show everything about one feed."""
    view = at.store.feeds.view(at.feed(name).name)
    workers = at.store.workers.views()
    why = explain(view, workers, now=at.store.now(), rules=at.settings.rules)
    promised = (one.worker.name for one in workers if one.worker.id == view.lease.promised_to)
    declaration = masked(view.feed.spec.plain())
    return FeedDocument(masked_view(view), why, next(promised, None), declaration, etag_of(view.feed.version))


@verb("POST /feeds/act", role=AccessRole.OPERATOR)
def act_on_feeds(
    at: At,
    *,
    action: FeedAction,
    select: Selection,
    worker: NameArgument | None = None,
    count: int | None = None,
    expected: Expected = None,
    dry_run: bool = False,
) -> Acted:
    """Pause, resume, restart, move or remove feeds.

    ``worker`` is the target of a move; without it, placement chooses one for each feed. A selection without names
    needs two calls: one with ``dry_run``, and then one with the ``count`` that the first returned. If another
    number of feeds matches by then, nothing is done. ``expected`` is the ETag of a single feed.
    """
    chosen = at.chosen(select)
    if expected is not None:
        if len(chosen) != 1 or not select.names:
            raise InvalidInput("expected: is for a single feed, by its name")
        # Each is changed as it was chosen, or not at all.
        require_version(f"feed {chosen[0].name!r}", chosen[0].version, version_of(expected))
    if dry_run:
        return Acted(len(chosen), [Done(feed.name) for feed in chosen], [], dry_run=True)
    if not select.names and count is None:
        raise InvalidInput(f"count: is missing; {len(chosen)} feeds match, ask with dry_run first")
    if count is not None and count != len(chosen):
        raise Outdated(f"count: {len(chosen)} feeds match now, not {count}; nothing was done")

    outcomes: bulk.Outcomes[ChosenFeed, Any]
    if action is FeedAction.MOVE:
        to = None if worker is None else find_worker(at.store, worker)
        outcomes = bulk.move(at.store, chosen, at.settings, to=to, told=at.told)
    else:
        kind = _KINDS[action]
        # Each as it was when it was chosen: what somebody else has changed meanwhile is left alone.
        outcomes = bulk.each(
            chosen,
            lambda part: at.store.feeds.change(
                [FeedChange(kind, feed.name, expected=feed.version) for feed in part]
            ),
            told=at.told,
        )
    done = [_done(*one) for one in bulk.made(outcomes)]
    return Acted(len(chosen), done, [_failed(*one) for one in bulk.failed(outcomes)])


_KINDS: Final = {
    FeedAction.PAUSE: EventKind.FEED_PAUSED,
    FeedAction.RESUME: EventKind.FEED_RESUMED,
    FeedAction.RESTART: EventKind.FEED_RESTARTED,
    FeedAction.REMOVE: EventKind.FEED_REMOVED,
}


def _done(feed: ChosenFeed, outcome: Version | WorkerView) -> Done:
    if isinstance(outcome, WorkerView):
        to = outcome.worker.name
        return Done(feed.name, worker=to, already=to == feed.worker)
    return Done(feed.name, generation=outcome[1])


def _failed(feed: ChosenFeed, error: FeedqError) -> Failed:
    return Failed(feed.name, type(error).__name__, mask_url(str(error)))
