"""The verbs for many feeds at once: some hundred of them in a transaction, each outcome by name.

A feed that cannot be changed keeps no other from it. A server that is away ends it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import ChosenFeed, FeedView, Reason, Worker, WorkerState, WorkerView
from feedq.core.placement import placing
from feedq.core.placement.base import EligibleWorker, Rules, WaitingFeed
from feedq.core.remedies import command
from feedq.errors import Conflict, FeedqError, Forbidden, InvalidInput, Unavailable
from feedq.settings import Settings
from feedq.verbs.diagnosis.fleet_checks import serves
from feedq.verbs.wording import pairs

TOGETHER_MAX = 500
"""Changes of one transaction: their rows stay locked until it ends, which passes of reconcile wait for."""

T = TypeVar("T")
R = TypeVar("R")
Done = Callable[[int], object]
"""Told how many are done so far, failures included."""


@dataclass(slots=True)
class BulkResult(Generic[T, R]):
    """What came of it, for each; those that failed with their errors."""

    done: list[tuple[T, R]] = field(default_factory=list)
    failed: list[tuple[T, FeedqError]] = field(default_factory=list)


def each(
    items: Sequence[T],
    act: Callable[[Sequence[T]], Sequence[R | FeedqError]],
    *,
    told: Done = lambda done: None,
    at_once: int | None = None,
) -> BulkResult[T, R]:
    """Do ``act`` to all, some hundred or so many at once; it answers each with what came of it.

    Raises `Unavailable`: what was done before stays done.
    """
    result: BulkResult[T, R] = BulkResult()
    length = at_once or TOGETHER_MAX
    for start in range(0, len(items), length):
        part = items[start : start + length]
        try:
            outcomes = act(part)
        except Unavailable as away:
            raise _broken_off(away, result, len(items)) from away
        for item, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, FeedqError):
                result.failed.append((item, outcome))
            else:
                result.done.append((item, outcome))
        told(start + len(part))
    return result


def one_by_one(
    items: Sequence[T], act: Callable[[T], R], *, told: Done = lambda done: None
) -> BulkResult[T, R]:
    """Do ``act`` to each, which is a transaction of its own. Raises as `each`."""

    def tried(part: Sequence[T]) -> list[R | FeedqError]:
        try:
            return [act(part[0])]
        except (InvalidInput, Conflict, Forbidden) as error:
            return [error]

    return each(items, tried, told=told, at_once=1)


def _broken_off(away: Unavailable, result: BulkResult[T, R], total: int) -> Unavailable:
    done = f"{len(result.done)} of {total} were changed before; doing it again changes the rest"
    return type(away)(f"{done}: {away}" if total > 1 else str(away))


def move(
    store: PostgresStore,
    chosen: Sequence[ChosenFeed],
    settings: Settings,
    *,
    to: WorkerView | None,
    told: Done = lambda done: None,
) -> BulkResult[ChosenFeed, WorkerView]:
    """Have feeds go on on this worker or, without one, on others than those that have them, as placement chooses.
    A feed that may not go there fails with the reason. Raises `Conflict` when the worker takes no feeds."""
    if to is not None and not serves(to):
        raise Conflict(f"worker {to.worker.name!r} takes no feeds: {_why_closed(to.worker)}")
    workers = store.workers.views()
    targets, refused = _targets(store, chosen, workers, settings.rules, to=to)
    by_id = {view.worker.id: view for view in workers}

    def go(feeds: Sequence[ChosenFeed]) -> list[WorkerView | FeedqError]:
        there = [(feed.name, targets[feed.id]) for feed in feeds]
        refusals = store.feeds.move(there, stop_within_s=settings.handoff_timeout_s)
        return [refusal or by_id[target] for refusal, (_, target) in zip(refusals, there, strict=True)]

    result = each([feed for feed in chosen if feed.id in targets], go, told=told)
    result.failed += [(feed, refused[feed.id]) for feed in chosen if feed.id in refused]
    return result


def _targets(
    store: PostgresStore,
    chosen: Sequence[ChosenFeed],
    workers: Sequence[WorkerView],
    rules: Rules,
    *,
    to: WorkerView | None,
) -> tuple[dict[int, UUID], dict[int, Conflict]]:
    """Where each feed goes, by its id, and why those that may go nowhere do not."""
    targets: dict[int, UUID] = {}
    refused: dict[int, Conflict] = {}
    tenants = {feed.tenant for feed in chosen}
    capped = [tenant for tenant in tenants if rules.cap_of(tenant) is not None]
    held = [view for tenant in capped for view in store.feeds.views(tenant=tenant)]
    for owner in {feed.worker for feed in chosen}:
        group = {feed.id: feed for feed in chosen if feed.worker == owner}
        given = Counter(targets.values())
        others = [
            _candidate(w, held=held, given=given[w.worker.id])
            for w in workers
            if serves(w) and (w.worker.name != owner if to is None else w.worker.id == to.worker.id)
        ]
        decision = placing.place(
            [
                WaitingFeed(feed_id, tenant=feed.tenant, selector=feed.selector)
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
    """Describe a worker to placement, with ``given`` feeds that it was just given. Of capped tenants it has those
    feeds that are its own among ``held``."""
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
        why = "each worker that it may go to is full, or has as many feeds of its tenant as it may"
    return Conflict(f"feed {feed.name!r} cannot be moved: {why}")
