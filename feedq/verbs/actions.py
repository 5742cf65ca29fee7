"""The verbs that people use on feeds and workers, as the command line carries them out.

Each checks what it is given, says what is wrong in words, and leaves the rest to the next reconcile pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed, FeedView, Reason, WorkerState, WorkerTarget, WorkerView
from feedq.core.placement import placing
from feedq.core.placement.base import EligibleWorker, Rules, WaitingFeed
from feedq.core.remedies import command
from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.settings import Settings
from feedq.verbs.wording import ID_SHOWN


def find_worker(store: PostgresStore, name: str) -> WorkerView:
    """A live worker by its name, the part of it before the ``@``, its id, or the first eight or more characters of
    its id, as lists show them.

    Raises `NotFound`, `InvalidInput`.
    """
    live = store.workers.views()
    found = [v for v in live if v.worker.name == name] or [
        v for v in live if v.worker.name.partition("@")[0] == name
    ]
    if not found and len(name) >= ID_SHOWN:
        found = [v for v in live if str(v.worker.id).startswith(name.lower())]
    if not found:
        names = ", ".join(sorted(v.worker.name for v in live)) or "none"
        raise NotFound(f"no worker {name!r}; alive are: {names}")
    if len(found) > 1:
        meant = ", ".join(f"{v.worker.name} ({v.worker.id})" for v in found)
        raise InvalidInput(f"{name!r} means {len(found)} workers; give the whole name or the id: {meant}")
    return found[0]


def set_worker_target(store: PostgresStore, name: str, target: WorkerTarget) -> WorkerView:
    """Whether a worker serves. Cordoned, it is given no more feeds and keeps what it has; drained, it hands over
    what it has, each feed as soon as there is another place for it, and its process goes on.

    Raises as `find_worker`, and `Conflict`: it is ending.
    """
    found = find_worker(store, name)
    if found.worker.state is not WorkerState.ACTIVE:
        raise Conflict(f"worker {found.worker.name!r} is ending: it lets go of its feeds and takes no more")
    if found.worker.target_state is target:
        return found
    if not store.workers.set_target(found.worker.id, target):
        raise NotFound(f"worker {found.worker.name!r} has just ended")
    return replace(found, worker=replace(found.worker, target_state=target))


def move_feed(store: PostgresStore, name: str, worker_name: str, settings: Settings) -> WorkerView:
    """Have a feed go on on this worker; one that waits goes there as soon as it may start.

    Raises as `find_worker`, and `Conflict`: the worker may not have it, or the feed cannot be moved now.
    """
    feed = store.feeds.get(name)
    found = find_worker(store, worker_name)
    if (objection := _objection_to_target(store, feed, found, settings.rules)) is not None:
        raise Conflict(f"feed {name!r} cannot go to worker {found.worker.name!r}: {objection}")
    store.feeds.move(name, found.worker.id, stop_within_s=settings.handoff_timeout_s)
    return found


def _objection_to_target(store: PostgresStore, feed: Feed, found: WorkerView, rules: Rules) -> str | None:
    """Placement decides, as for a feed that waits and this worker alone; here its answer becomes words."""
    worker, tenant, selector = found.worker, feed.spec.tenant, feed.spec.selector
    if worker.state is not WorkerState.ACTIVE:
        return "it is ending"
    if worker.target_state is not WorkerTarget.SERVING:
        return (
            f"it is {worker.target_state}; `{command('worker', 'uncordon', worker.name)}` lets it serve again"
        )
    cap = rules.cap_of(tenant)
    theirs = () if cap is None else store.feeds.views(tenant=tenant)
    candidate = as_candidate(found, held=theirs)
    decision = placing.place(
        [WaitingFeed(feed.id, tenant=tenant, selector=selector)],
        [candidate],
        now=worker.started_at,
        rules=replace(rules, settle_s=0.0),
    )
    if not decision.unplaced:
        return None
    if decision.unplaced[0][1] is Reason.NO_MATCH:
        lacking = {k: v for k, v in selector.required.items() if worker.labels.get(k) != v}
        return "it lacks the label " + ", ".join(f"{k}={v}" for k, v in sorted(lacking.items()))
    if candidate.feeds >= candidate.capacity:
        return f"it is full ({candidate.feeds} of {candidate.capacity} feeds)"
    return f"it has as many feeds of tenant {tenant!r} as it may ({cap})"


def as_candidate(view: WorkerView, *, held: Sequence[FeedView] = (), given: int = 0) -> EligibleWorker:
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


def worker_names(views: Sequence[WorkerView]) -> dict[UUID, str]:
    return {view.worker.id: view.worker.name for view in views}
