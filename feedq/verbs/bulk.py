"""The verbs for many feeds at once: some hundred of them in a transaction, each outcome by name.

When one feed of a transaction cannot be changed, the transaction is undone, and its feeds are changed one by one:
the others are changed, and the error is that feed's own. A server that is away ends it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from feedq.control.store.feeds import Feeds
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedView, Reason, WorkerView
from feedq.core.placement import placing
from feedq.core.placement.base import EligibleWorker, Rules, WaitingFeed
from feedq.errors import Conflict, FeedqError, Forbidden, InvalidInput, Unavailable
from feedq.settings import Settings
from feedq.verbs.actions import as_candidate
from feedq.verbs.diagnosis.placement_checks import serves

TOGETHER_MAX = 250
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
    feeds: Feeds, items: Sequence[T], act: Callable[[Feeds, T], R], *, told: Done = lambda done: None
) -> BulkResult[T, R]:
    """Do ``act`` to each. Raises `Unavailable`: what was done before stays done."""
    result: BulkResult[T, R] = BulkResult()
    for start in range(0, len(items), TOGETHER_MAX):
        part = items[start : start + TOGETHER_MAX]
        try:
            with feeds.together() as several:
                made = [(item, act(several, item)) for item in part]
        except (InvalidInput, Conflict, Forbidden):
            one_by_one(part, partial(act, feeds), result)
        except Unavailable as away:
            raise _broken_off(away, result, len(items)) from away
        else:
            result.done += made
        told(start + len(part))
    return result


def one_by_one(
    items: Sequence[T],
    act: Callable[[T], R],
    result: BulkResult[T, R] | None = None,
    *,
    told: Done = lambda done: None,
) -> BulkResult[T, R]:
    """Do ``act`` to each, which is a transaction of its own. Raises as `each`."""
    result = BulkResult() if result is None else result
    for number, item in enumerate(items, 1):
        try:
            result.done.append((item, act(item)))
        except (InvalidInput, Conflict, Forbidden) as error:
            result.failed.append((item, error))
        except Unavailable as away:
            raise _broken_off(away, result, len(items)) from away
        told(number)
    return result


def _broken_off(away: Unavailable, result: BulkResult[T, R], total: int) -> Unavailable:
    done = f"{len(result.done)} of {total} were changed before; doing it again changes the rest"
    return type(away)(f"{done}: {away}" if total > 1 else str(away))


def move_elsewhere(
    store: PostgresStore, chosen: Sequence[FeedView], settings: Settings, *, told: Done = lambda done: None
) -> BulkResult[FeedView, WorkerView]:
    """Have feeds go on on other workers than those that have them, as placement chooses. A feed that may go
    nowhere fails with the reason."""
    workers = {view.worker.id: view for view in store.workers.views()}
    targets, refused = _targets(store, chosen, list(workers.values()), settings.rules)

    def go(feeds: Feeds, view: FeedView) -> WorkerView:
        target = targets[view.feed.id]
        feeds.move(view.feed.name, target, stop_within_s=settings.handoff_timeout_s)
        return workers[target]

    result = each(store.feeds, [view for view in chosen if view.feed.id in targets], go, told=told)
    result.failed += [(v, Conflict(refused[v.feed.id])) for v in chosen if v.feed.id in refused]
    return result


def _targets(
    store: PostgresStore, chosen: Sequence[FeedView], workers: Sequence[WorkerView], rules: Rules
) -> tuple[dict[int, UUID], dict[int, str]]:
    """Where each feed goes, by its id, and why those that may go nowhere do not."""
    targets: dict[int, UUID] = {}
    refused: dict[int, str] = {}
    tenants = {view.feed.spec.tenant for view in chosen}
    capped = [tenant for tenant in tenants if rules.cap_of(tenant) is not None]
    held = [view for tenant in capped for view in store.feeds.views(tenant=tenant)]
    for owner in {view.lease.worker_id for view in chosen}:
        group = [view for view in chosen if view.lease.worker_id == owner]
        given = Counter(targets.values())
        others = [
            as_candidate(w, held=held, given=given[w.worker.id])
            for w in workers
            if serves(w) and w.worker.id != owner
        ]
        decision = placing.place(
            [WaitingFeed(v.feed.id, tenant=v.feed.spec.tenant, selector=v.feed.spec.selector) for v in group],
            others,
            now=datetime.now(UTC),
            rules=replace(rules, settle_s=0.0),
        )
        targets |= dict(decision.assignments)
        refused |= {feed_id: _no_place(reason, others) for feed_id, reason in decision.unplaced}
    return targets, refused


def _no_place(reason: Reason, others: Sequence[EligibleWorker]) -> str:
    if not others:
        return "no other worker serves: start one, or feedq worker uncordon NAME"
    if reason is Reason.NO_MATCH:
        return "no other worker that serves has the labels that it requires"
    return "the other workers that may have it are full, or have as many feeds of its tenant as they may"
