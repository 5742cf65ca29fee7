"""What the loss of one worker would do: where its feeds would go, and what the others would then have.

The code that places feeds decides, as `feedq simulate` has it decide on paper; here about the feeds and workers
that are there. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from feedq import verbs
from feedq.diagnosis.fleet_checks import wants_place
from feedq.diagnosis.placement_checks import serves
from feedq.model import FeedView, Reason, WorkerView
from feedq.placement.base import Rules, WaitingFeed
from feedq.placement.placing import place
from feedq.selection import Selection
from feedq.settings import DEFAULT_SINK, Settings
from feedq.store.postgresql import PostgresStore

FEEDS_MAX: Final = 5_000
"""Feeds of the worker that are placed: a page must not wait for more."""


@dataclass(frozen=True, slots=True)
class StayingWorker:
    """A worker that stays, before and after."""

    name: str
    gets: int
    feeds: int
    """That it has then."""
    capacity: int
    load_before: float
    load_after: float


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """What becomes of the feeds of a worker that is lost."""

    worker: str
    feeds: int
    placed: int
    unplaced: Mapping[Reason, int]
    others: Sequence[StayingWorker]
    left_out: int
    """Feeds beyond `FEEDS_MAX`, about which nothing is said."""


def loss_document(loss: WorkerLoss) -> dict[str, Any]:
    """Makes `feedq worker loss --json`."""
    unplaced = {reason.value: count for reason, count in sorted(loss.unplaced.items())}
    return asdict(loss) | {"unplaced": unplaced}


def read_loss(store: PostgresStore, settings: Settings, name: str) -> WorkerLoss:
    """Raises `NotFound`, `InvalidInput`, `Unavailable`."""
    lost, rules = verbs.find_worker(store, name), settings.rules
    feeds = store.feeds.selected(Selection(worker=lost.worker.name), limit=FEEDS_MAX)
    capped = {view.feed.spec.tenant for view in feeds if rules.cap_of(view.feed.spec.tenant) is not None}
    tenants = store.workers.by_tenant(capped) if capped else {}
    return loss_of(lost, feeds, store.workers.views(), tenants, now=store.now(), rules=rules)


def loss_of(
    lost: WorkerView,
    feeds: Sequence[FeedView],
    workers: Sequence[WorkerView],
    tenants: Mapping[UUID, Mapping[str, int]],
    *,
    now: datetime,
    rules: Rules,
) -> WorkerLoss:
    """Pure."""
    waiting = [_waiting(view) for view in feeds if wants_place(view)]
    stay = {v.worker.id: v for v in workers if serves(v) and v.worker.id != lost.worker.id}
    rules = replace(rules, settle_s=0.0)  # this fleet does not start cold
    eligible = [
        replace(verbs.as_candidate(view, tenants.get(worker_id, {})), load=view.load)
        for worker_id, view in stay.items()
    ]
    decision = place(waiting, eligible, now=now, rules=rules)
    weights = {feed.feed_id: feed.weight for feed in waiting}
    gets: Counter[UUID] = Counter()
    load: dict[UUID, float] = defaultdict(float)
    for feed_id, worker_id in decision.assignments:
        gets[worker_id] += 1
        load[worker_id] += weights[feed_id]
    others = [
        StayingWorker(
            view.worker.name,
            gets[worker_id],
            view.leases + gets[worker_id],
            view.worker.capacity,
            view.load,
            view.load + load[worker_id],
        )
        for worker_id, view in stay.items()
    ]
    return WorkerLoss(
        lost.worker.name,
        len(waiting),
        len(decision.assignments),
        Counter(reason for _, reason in decision.unplaced),
        sorted(others, key=lambda one: (-one.gets, one.name)),
        max(0, lost.leases - FEEDS_MAX),
    )


def _waiting(view: FeedView) -> WaitingFeed:
    spec = view.feed.spec
    sink = str(spec.sink.get("name", DEFAULT_SINK)).lower()
    return WaitingFeed(view.feed.id, view.lease.weight, None, spec.tenant, spec.selector, sink=sink)
