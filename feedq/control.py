"""The control plane: what `reconcile` does, and the verbs that people use on feeds and workers.

Nothing here runs a stream (`feedq.runtime` does) and nothing here knows Celery: messages leave through a
`Dispatch` callable. Decisions come from the pure policies; this module only carries them out, inside one
transaction a pass, and sends messages after it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from uuid import UUID

from feedq import lease, placement
from feedq.declaration import Action, Change, validate
from feedq.errors import InvalidInput, NotFound
from feedq.model import Assignment, Feed, FeedSpec, Reason, WorkerState, WorkerView
from feedq.settings import Settings
from feedq.store.base import ReconcilePass, Store
from feedq.telemetry import FEEDS_UNPLACED, RECONCILE_SECONDS, LogEvent, log

Dispatch = Callable[[Sequence[Assignment]], None]
"""Sends one ``stream_feed(feed_id, epoch)`` an assignment to its worker's queue; may fail, may repeat."""

EDITS_PER_PASS = 1_000
"""Bounds a pass after a bulk edit; what is left over wakes the next pass."""
PLACEMENTS_PER_PASS = 20_000
"""Bounds the memory and the transaction of a pass after a cold start or the loss of many workers."""

logger = log(__name__)


@dataclass(slots=True)
class PassReport:
    """What one pass did. All zeros is the usual case."""

    workers_gone: int = 0
    leases_freed: int = 0
    edits: int = 0
    overdue: int = 0
    repaired: int = 0
    assignments: tuple[Assignment, ...] = ()
    unplaced: dict[Reason, int] = field(default_factory=dict)
    more: bool = False
    """Whether a bound was reached and another pass should follow at once."""

    @property
    def did_something(self) -> bool:
        return bool(self.workers_gone or self.edits or self.overdue or self.repaired or self.assignments)


def reconcile(store: Store, dispatch: Dispatch, settings: Settings) -> PassReport | None:
    """Bring the fleet one step closer to what is wanted; None when another pass is under way.

    Idempotent, and cheap when nothing changed. Killed before the commit it did nothing; killed after it and
    before the messages are out, the dispatch time-out sends them again.
    """
    started = perf_counter()
    with store.fleet.reconcile_pass() as p:
        if p is None:
            return None
        report = PassReport()
        if p.sweep_is_due(interval_s=settings.sweep_interval_s):
            report.repaired = p.sweep()
        _bury_the_gone(p, report, ttl_s=settings.ttl_s)
        _absorb_edits(p, report)
        silent = p.overdue(timeout_s=settings.dispatch_timeout_s)
        report.overdue = len(silent)
        _place_the_waiting(p, report, settle_s=settings.settle_s, silent=frozenset(silent))
    # Committed. Only now may a message leave: an epoch that was rolled back must never be heard of.
    if report.assignments:
        dispatch(report.assignments)
    if report.more:
        store.fleet.wake()
    RECONCILE_SECONDS.observe(perf_counter() - started)
    if report.did_something:
        logger.info(
            LogEvent.RECONCILED,
            assigned=len(report.assignments),
            gone=report.workers_gone,
            freed=report.leases_freed,
            edits=report.edits,
            overdue=report.overdue,
            repaired=report.repaired,
            unplaced=sum(report.unplaced.values()),
            ms=round(1000 * (perf_counter() - started), 1),
        )
    return report


def _bury_the_gone(p: ReconcilePass, report: PassReport, *, ttl_s: float) -> None:
    suspects = p.suspects()
    if not suspects:
        return
    quiet = p.quiet(ttl_s=ttl_s)
    gone = [
        s.worker.id
        for s in suspects
        if lease.is_gone(s.worker, has_session=s.has_session, now=p.now, quiet=quiet, ttl_s=ttl_s)
    ]
    if gone:
        report.workers_gone = len(gone)
        report.leases_freed = p.bury(gone)


def _absorb_edits(p: ReconcilePass, report: PassReport) -> None:
    dirty = p.dirty(limit=EDITS_PER_PASS)
    if dirty:
        p.apply_edits([(feed.id, lease.on_edit(feed, its_lease)) for feed, its_lease in dirty])
        report.edits = len(dirty)
        report.more |= len(dirty) == EDITS_PER_PASS


def _place_the_waiting(
    p: ReconcilePass, report: PassReport, *, settle_s: float, silent: Collection[UUID]
) -> None:
    """``silent`` workers have let assignments run out of time: somebody else shall have them, if there is anybody.

    Such a worker may be cut off from the broker and holds few feeds, which would make it everybody's first choice.
    """
    waiting = p.waiting(limit=PLACEMENTS_PER_PASS)
    if waiting:
        candidates = p.candidates()
        if silent:
            heard = [c for c in candidates if c.worker_id not in silent and c.feeds < c.capacity]
            # Assignments have run out of time: this fleet does not start cold.
            candidates, settle_s = heard or candidates, 0.0
        decision = placement.place(waiting, candidates, now=p.now, settle_s=settle_s)
        report.assignments = tuple(p.assign(decision.assignments)) if decision.assignments else ()
        known = {w.feed_id: w.reason for w in waiting}
        p.explain([(feed_id, why) for feed_id, why in decision.unplaced if known[feed_id] is not why])
        for _, why in decision.unplaced:
            report.unplaced[why] = report.unplaced.get(why, 0) + 1
        report.more |= len(waiting) == PLACEMENTS_PER_PASS and bool(report.assignments)
    for reason in (Reason.NO_CAPACITY, Reason.NO_MATCH, Reason.SETTLING):
        FEEDS_UNPLACED.labels(reason.value).set(report.unplaced.get(reason, 0))


# -- verbs -------------------------------------------------------------------------------------------


def add_feed(store: Store, spec: FeedSpec) -> Feed:
    """Declare a new feed. Raises `InvalidInput` or `Conflict` (the name is taken)."""
    validate(spec)
    return store.feeds.add(spec)


def edit_feed(store: Store, spec: FeedSpec) -> Feed:
    """Replace the declaration of the feed of that name. Raises `InvalidInput`, `NotFound`."""
    validate(spec)
    return store.feeds.edit(spec.name, spec)


def carry_out(store: Store, change: Change) -> None:
    """One change of a plan; repeating a plan that broke off half way does what is left of it."""
    if change.action is Action.REMOVE:
        store.feeds.remove(change.name)
        return
    assert change.spec is not None
    if change.action is Action.ADD:
        add_feed(store, change.spec)
    else:
        edit_feed(store, change.spec)


def find_worker(store: Store, name: str) -> WorkerView:
    """A live worker by its name, its id, or the beginning of its id. Raises `NotFound`, `InvalidInput`."""
    live = store.workers.views()
    found = [v for v in live if v.worker.name == name] or [
        v for v in live if str(v.worker.id).startswith(name.lower())
    ]
    if not found:
        names = ", ".join(sorted(v.worker.name for v in live)) or "none"
        raise NotFound(f"no worker {name!r}; alive are: {names}")
    if len(found) > 1:
        raise InvalidInput(f"{name!r} means {len(found)} workers; give more of the id")
    return found[0]


def drain_worker(store: Store, name: str) -> WorkerView:
    """Ask a worker to hand its feeds over and take no more; its process goes on."""
    found = find_worker(store, name)
    if found.worker.state is WorkerState.ACTIVE:
        store.workers.drain(found.worker.id, ask_to_stop=True)
    return found


def worker_names(views: Sequence[WorkerView]) -> dict[UUID, str]:
    return {view.worker.id: view.worker.name for view in views}
