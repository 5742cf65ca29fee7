"""Changes of many feeds, a few hundred in a transaction, each with its own outcome.

A feed that cannot be changed does not hold up the others. A server that is unavailable ends the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import ChosenFeed, Worker, WorkerState, WorkerView
from feedq.core.placement import placing
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Rules
from feedq.core.remedies import command
from feedq.errors import Conflict, FeedqError, Unavailable
from feedq.settings import Settings
from feedq.verbs.diagnosis.fleet_checks import serves
from feedq.verbs.registry import Told
from feedq.verbs.wording import pairs

ALWAYS: Final = datetime.max.replace(tzinfo=UTC)
"""Later than any worker began: none is too new to be avoided."""
TOGETHER_MAX: Final = 500
"""Changes of one transaction: their rows stay locked until it ends, which passes of reconcile wait for."""

T = TypeVar("T")
R = TypeVar("R")
Outcomes: TypeAlias = list[tuple[T, R | FeedqError]]
"""Each item with its result, or with the error that it failed with."""


def each(
    items: Sequence[T],
    act: Callable[[Sequence[T]], Sequence[R | FeedqError]],
    *,
    told: Told,
    at_once: int | None = None,
) -> Outcomes[T, R]:
    """Apply ``act`` to all items, a few hundred or ``at_once`` at a time; it returns a result or error for each.

    Raises `Unavailable`; what was done before that stays done.
    """
    found: Outcomes[T, R] = []
    length = at_once or TOGETHER_MAX
    for start in range(0, len(items), length):
        part = items[start : start + length]
        try:
            found += zip(part, act(part), strict=True)
        except Unavailable as away:
            if len(items) == 1:
                raise
            done = (
                f"{len(made(found))} of {len(items)} were changed before that; repeat it to change the rest"
            )
            raise type(away)(f"{done}: {away}") from away
        told(len(found), len(items))
    return found


def made(outcomes: Outcomes[T, R]) -> list[tuple[T, R]]:
    """The items that did not fail, each with its result."""
    return [(item, came) for item, came in outcomes if not isinstance(came, FeedqError)]


def failed(outcomes: Outcomes[T, R]) -> list[tuple[T, FeedqError]]:
    """The items that failed, each with its error."""
    return [(item, came) for item, came in outcomes if isinstance(came, FeedqError)]


def move(
    store: PostgresStore,
    chosen: Sequence[ChosenFeed],
    settings: Settings,
    *,
    to: WorkerView | None,
    told: Told,
) -> Outcomes[ChosenFeed, WorkerView]:
    """Move feeds to this worker or, if none is given, to others than their present ones, as placement chooses.
    A feed that may not go there fails with the reason, and one that is there already stays. Raises `Conflict` when
    the worker takes no feeds."""
    if to is not None and not serves(to):
        raise Conflict(f"worker {to.worker.name!r} takes no feeds: {_why_closed(to.worker)}")
    capped = {feed.tenant for feed in chosen if settings.rules.cap_of(feed.tenant) is not None}
    by_id = {view.worker.id: view for view in (store.workers.views() if to is None else (to,))}
    workers = [worker for worker in store.workers.eligible(capped) if worker.worker_id in by_id]
    targets = _targets(chosen, workers, settings.rules, to=to)

    def go(feeds: Sequence[ChosenFeed]) -> list[WorkerView | FeedqError]:
        there = [(feed.name, targets[feed.id]) for feed in feeds]
        refusals = store.feeds.move(there, stop_within_s=settings.handoff_timeout_s)
        return [refusal or by_id[target] for refusal, (_, target) in zip(refusals, there, strict=True)]

    found = each([feed for feed in chosen if feed.id in targets], go, told=told)
    return [*found, *((feed, _no_place(feed, workers)) for feed in chosen if feed.id not in targets)]


def _targets(
    chosen: Sequence[ChosenFeed], workers: Sequence[EligibleWorker], rules: Rules, *, to: WorkerView | None
) -> dict[int, UUID]:
    """The worker that each feed goes to, by the id of the feed; those that have no place elsewhere are missing."""
    targets: dict[int, UUID] = {}
    waiting = []
    for feed in chosen:
        if to is not None and to.worker.name == feed.worker:
            targets[feed.id] = to.worker.id  # it need not have room for another one
        else:
            owner = () if feed.worker is None else ((feed.worker, ALWAYS),)
            waiting.append(FeedToPlace(feed.id, tenant=feed.tenant, selector=feed.selector, avoid=owner))
    decision = placing.place(waiting, workers, now=ALWAYS, rules=replace(rules, settle_s=0.0))
    owners = {feed.id: feed.worker for feed in chosen}
    names = {worker.worker_id: worker.name for worker in workers}
    # One for which there is no other place would stay.
    return targets | {id_: target for id_, target in decision.assignments if names[target] != owners[id_]}


def _why_closed(worker: Worker) -> str:
    if not worker.capacity:
        return "it only runs jobs"
    if worker.state is not WorkerState.ACTIVE:
        return "it is ending"
    return f"it is {worker.target_state}; `{command('worker', 'uncordon', worker.name)}` lets it serve again"


def _no_place(feed: ChosenFeed, workers: Sequence[EligibleWorker]) -> Conflict:
    others, required = [w for w in workers if w.name != feed.worker], feed.selector.required
    if not others:
        why = "no other worker serves: start one, or feedq worker uncordon NAME"
    elif not any(required.items() <= worker.labels.items() for worker in others):
        why = f"no worker that it may go to has {pairs(required)}, which it requires"
    else:
        why = "every worker that it may go to is full, or at the cap of its tenant"
    return Conflict(f"feed {feed.name!r} cannot be moved: {why}")
