"""Changes of many feeds, a few hundred in a transaction, each with its own outcome.

A feed that cannot be changed does not hold up the others. A server that is unavailable ends the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar
from uuid import UUID

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import ChosenFeed, FeedView, Reason, Worker, WorkerState, WorkerView
from feedq.core.placement import placing
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Rules
from feedq.core.remedies import command
from feedq.errors import Conflict, FeedqError, Unavailable
from feedq.settings import Settings
from feedq.verbs.diagnosis.fleet_checks import serves
from feedq.verbs.registry import Told
from feedq.verbs.wording import pairs

TOGETHER_MAX = 500
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
    workers = store.workers.views()
    targets, refused = _targets(store, chosen, workers, settings.rules, to=to)
    by_id = {view.worker.id: view for view in workers}

    def go(feeds: Sequence[ChosenFeed]) -> list[WorkerView | FeedqError]:
        there = [(feed.name, targets[feed.id]) for feed in feeds]
        refusals = store.feeds.move(there, stop_within_s=settings.handoff_timeout_s)
        return [refusal or by_id[target] for refusal, (_, target) in zip(refusals, there, strict=True)]

    found = each([feed for feed in chosen if feed.id in targets], go, told=told)
    return [*found, *((feed, refused[feed.id]) for feed in chosen if feed.id in refused)]


def _targets(
    store: PostgresStore,
    chosen: Sequence[ChosenFeed],
    workers: Sequence[WorkerView],
    rules: Rules,
    *,
    to: WorkerView | None,
) -> tuple[dict[int, UUID], dict[int, Conflict]]:
    """The worker that each feed goes to, by the id of the feed, and why the others go nowhere."""
    targets: dict[int, UUID] = {}
    refused: dict[int, Conflict] = {}
    tenants = {feed.tenant for feed in chosen}
    capped = [tenant for tenant in tenants if rules.cap_of(tenant) is not None]
    held = [view for tenant in capped for view in store.feeds.views(tenant=tenant)]
    for owner in {feed.worker for feed in chosen}:
        group = {feed.id: feed for feed in chosen if feed.worker == owner}
        if to is not None and to.worker.name == owner:
            targets |= dict.fromkeys(group, to.worker.id)  # it need not have room for another one
            continue
        given = Counter(targets.values())
        others = [
            _candidate(w, held=held, given=given[w.worker.id])
            for w in workers
            if serves(w) and (w.worker.name != owner if to is None else w.worker.id == to.worker.id)
        ]
        decision = placing.place(
            [
                FeedToPlace(feed_id, tenant=feed.tenant, selector=feed.selector)
                for feed_id, feed in group.items()
            ],
            others,
            now=datetime.now(UTC),
            rules=replace(rules, settle_s=0.0),
        )
        targets |= dict(decision.assignments)
        for feed_id, reason in decision.unplaced:
            refused[feed_id] = _no_place(group[feed_id], reason, others)
    return targets, refused


def _candidate(view: WorkerView, *, held: Sequence[FeedView], given: int) -> EligibleWorker:
    """A worker as placement sees it, with the ``given`` feeds that it was just given. ``held`` are all feeds of
    tenants with a cap."""
    worker = view.worker
    feeds = view.leases + view.promised + given
    theirs = (v for v in held if (v.lease.promised_to or v.lease.worker_id) == worker.id)
    return EligibleWorker(
        worker.id,
        worker.name,
        worker.queue,
        worker.capacity,
        feeds,
        float(feeds),
        worker.started_at,
        worker.labels,
        Counter(v.feed.spec.tenant for v in theirs),
        frozenset(map(str.lower, worker.load.sinks_down)),
    )


def _why_closed(worker: Worker) -> str:
    if not worker.capacity:
        return "it only runs jobs"
    if worker.state is not WorkerState.ACTIVE:
        return "it is ending"
    return f"it is {worker.target_state}; `{command('worker', 'uncordon', worker.name)}` lets it serve again"


def _no_place(feed: ChosenFeed, reason: Reason, others: Sequence[EligibleWorker]) -> Conflict:
    if not others:
        why = "no other worker serves: start one, or feedq worker uncordon NAME"
    elif reason is Reason.NO_MATCH:
        why = f"no worker that it may go to has {pairs(feed.selector.required)}, which it requires"
    else:
        why = "every worker that it may go to is full, or at the cap of its tenant"
    return Conflict(f"feed {feed.name!r} cannot be moved: {why}")
