"""The control plane: what `reconcile` does, and the verbs that people use on feeds and workers.

Nothing here runs a stream (`feedq.runtime` does) and nothing here knows Celery: messages leave through a
`Dispatch` callable. Decisions come from the pure policies; this module only carries them out, inside one
transaction a pass, and sends messages after it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from time import perf_counter
from uuid import UUID

from feedq import lease, placement
from feedq.declaration import Action, Change, validate
from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.model import Assignment, Feed, FeedSpec, Reason, WorkerState, WorkerTarget, WorkerView
from feedq.placement import Candidate, Held, Rules, Waiting
from feedq.placement.base import is_settled
from feedq.reach import connected_in_time, within_reach
from feedq.settings import Settings
from feedq.store.base import ReconcilePass, Store
from feedq.telemetry import (
    FEEDS_UNPLACED,
    RECONCILE_SECONDS,
    RECONCILED_AT_SECONDS,
    LogEvent,
    log,
)

Dispatch = Callable[[Sequence[Assignment]], None]
"""Sends one ``stream_feed(feed_id, epoch)`` an assignment to its worker's queue; may fail, may repeat."""

EDITS_PER_PASS = 1_000
"""Bounds a pass after a bulk edit; what is left over wakes the next pass."""
PLACEMENTS_PER_PASS = 10_000
"""New feeds that a pass takes in, and feeds that it places: after a cold start or the loss of many workers it
keeps its rows locked for a second at most."""
MOVABLE_PER_PASS = 20_000
"""Bounds the feeds that a pass chooses from when it moves some; they are shared evenly by the workers that
give."""
CALM_FEEDS = 1.5
"""How many feeds more or less than its even part a worker may have while the same workers are there."""
COUNTED_ELSEWHERE = frozenset({Reason.HELD, Reason.BACKOFF, Reason.PAUSED, Reason.FAILED})
UNPLACED_REASONS = (Reason.NO_CAPACITY, Reason.NO_MATCH, Reason.SETTLING, *sorted(COUNTED_ELSEWHERE))

logger = log(__name__)


@dataclass(slots=True)
class PassReport:
    """What one pass did. All zeros is the usual case."""

    workers_gone: int = 0
    leases_freed: int = 0
    edits: int = 0
    overdue: int = 0
    reaped: int = 0
    """Leases whose owner was asked to let go and has not in time."""
    moves: int = 0
    """Running feeds whose owner was asked to hand them over to another worker."""
    repaired: int = 0
    assignments: tuple[Assignment, ...] = ()
    unplaced: dict[Reason, int] = field(default_factory=dict)
    more: bool = False
    """Whether a bound was reached and another pass should follow at once."""
    left_out: bool = False
    """Whether more feeds wait than a pass looks at."""

    @property
    def did_something(self) -> bool:
        return any(
            (
                self.workers_gone,
                self.edits,
                self.overdue,
                self.reaped,
                self.moves,
                self.repaired,
                self.assignments,
            )
        )


def reconcile(store: Store, dispatch: Dispatch, settings: Settings) -> PassReport | None:
    """Bring the fleet one step closer to what is wanted; None when another pass is under way.

    Idempotent, and cheap when nothing changed. Killed before the commit it did nothing; killed after it and
    before the messages are out, the dispatch time-out sends them again.
    """
    started = perf_counter()
    with store.fleet.reconcile_pass(measured_load=settings.measured_load) as p:
        if p is None:
            return None
        report = PassReport()
        stop_within_s = settings.handoff_timeout_s
        if p.sweep_is_due(interval_s=settings.sweep_interval_s):
            report.repaired = p.sweep(stop_within_s=stop_within_s)
        _bury_the_gone(p, report, ttl_s=settings.ttl_s)
        report.reaped = p.reap()
        _absorb_edits(p, report, stop_within_s=stop_within_s)
        silent = p.overdue(timeout_s=settings.dispatch_timeout_s)
        report.overdue = len(silent)
        _place_the_waiting(p, report, rules=settings.rules, silent=frozenset(silent))
        counts = p.waiting_by_reason()
        if not report.more and Reason.SETTLING not in report.unplaced:
            held = counts.get(Reason.HELD, 0)
            _even_out(p, report, settings, held=held)
        _count_the_waiting(report, counts)
    # Committed. Only now may a message leave: an epoch that was rolled back must never be heard of.
    if report.assignments:
        dispatch(report.assignments)
    if report.more:
        store.fleet.wake()
    RECONCILE_SECONDS.observe(perf_counter() - started)
    RECONCILED_AT_SECONDS.set_to_current_time()
    if report.did_something:
        logger.info(
            LogEvent.RECONCILED,
            assigned=len(report.assignments),
            gone=report.workers_gone,
            freed=report.leases_freed,
            reaped=report.reaped,
            edits=report.edits,
            overdue=report.overdue,
            moves=report.moves,
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


def _absorb_edits(p: ReconcilePass, report: PassReport, *, stop_within_s: float) -> None:
    new = p.absorb_new(limit=PLACEMENTS_PER_PASS)
    # A pass full of new feeds leaves edits to the next: those of older feeds have come before them.
    dirty = p.dirty(limit=EDITS_PER_PASS) if new < PLACEMENTS_PER_PASS else []
    if dirty:
        edits = [(feed.id, lease.on_edit(feed, its_lease)) for feed, its_lease in dirty]
        p.apply_edits(edits, stop_within_s=stop_within_s)
    report.edits = new + len(dirty)
    report.more |= new == PLACEMENTS_PER_PASS or len(dirty) == EDITS_PER_PASS


def _place_the_waiting(
    p: ReconcilePass, report: PassReport, *, rules: Rules, silent: Collection[UUID]
) -> None:
    """``silent`` workers have let assignments run out of time: somebody else shall have them, if there is
    anybody.

    Such a worker may be cut off from the broker and holds few feeds, which would make it everybody's first
    choice.
    """
    waiting = p.waiting(limit=PLACEMENTS_PER_PASS)
    if waiting:
        candidates = p.candidates(_capped(waiting, rules))
        if silent:
            heard = [c for c in candidates if c.worker_id not in silent]
            if any(c.feeds < c.capacity for c in heard):
                candidates = heard
            # Assignments have run out of time: this fleet does not start cold.
            rules = replace(rules, settle_s=0.0)
        decision = placement.place(waiting, candidates, now=p.now, rules=rules)
        report.assignments = tuple(p.assign(decision.assignments)) if decision.assignments else ()
        known = {w.feed_id: w.reason for w in waiting}
        p.explain([(feed_id, why) for feed_id, why in decision.unplaced if known[feed_id] is not why])
        for _, why in decision.unplaced:
            report.unplaced[why] = report.unplaced.get(why, 0) + 1
        report.left_out = len(waiting) == PLACEMENTS_PER_PASS
        report.more |= report.left_out and bool(report.assignments)


def _capped(feeds: Iterable[Waiting | Held], rules: Rules) -> frozenset[str]:
    """Tenants of these feeds of which a worker may have only so many."""
    return frozenset(feed.tenant for feed in feeds if rules.cap_of(feed.tenant) is not None)


def _even_out(p: ReconcilePass, report: PassReport, settings: Settings, *, held: int) -> None:
    """Move running feeds to where there is more room for them, and off the workers that are to be empty.

    That other feeds wait is no reason not to: they have been placed before, so whatever room is left is of no
    use to them. Otherwise one feed that matches no worker would keep every drain from ending. Only while feeds
    are held for the successor of a worker, of which there are ``held``, nothing moves but what has to: the fleet
    is even again when that is there.
    """
    rules, under_way = settings.rules, p.moves_under_way(within_s=settings.handoff_timeout_s)
    budget = rules.moves - sum(under_way.values())
    if budget <= 0:
        return
    candidates, leaving = p.candidates(), p.leaving()
    looks = _Looks.of(candidates, leaving, rules=rules, now=p.now, held=held)
    if p.evened_out == str(looks):
        return
    is_known = p.evened_out is not None and p.evened_out.startswith(looks.workers)
    sources = set(leaving)
    if not held and not (is_known and _is_calm(candidates, rules)):
        sources.update(placement.donors(candidates, now=p.now, rules=rules))
    running = p.movable(sources, limit=MOVABLE_PER_PASS) if sources and candidates else []
    if tenants := _capped(running, rules):
        candidates = p.candidates(tenants)
    decide = partial(placement.rebalance, running, candidates, now=p.now, rules=rules)
    transfers = decide(moves=budget) if running else ()
    if not transfers:
        p.note_evened_out(str(looks))
        return
    pace = connected_in_time(settings.connects_per_s, settings.host_connects_per_s, len(candidates))
    if (moves := within_reach(transfers, under_way, pace)) < len(transfers):
        transfers = decide(moves=moves)
    report.moves = p.transfer(transfers, stop_within_s=settings.handoff_timeout_s)


@dataclass(frozen=True, slots=True)
class _Looks:
    """Fingerprints of all that decides whether some feed should move, but for what the feeds themselves ask of
    their workers: who is there, and what they have."""

    workers: str
    counts: str

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        leaving: Mapping[UUID, int],
        *,
        rules: Rules,
        now: datetime,
        held: int,
    ) -> _Looks:
        ordered = sorted(candidates, key=lambda c: c.worker_id)
        settled = [
            (c.worker_id, c.capacity, is_settled(c, now=now, settle_s=rules.settle_s)) for c in ordered
        ]
        # When nothing is held any more, the fleet is evened out as far as it gets.
        rule = (bool(held), rules.strategy.value, rules.band, sorted(rules.tenant_caps.items()))
        counts = [(c.feeds, round(c.load, 3)) for c in ordered]
        return cls(_digest(settled, rule), _digest(counts, sorted(leaving.items())))

    def __str__(self) -> str:
        return f"{self.workers}:{self.counts}"


def _digest(*facts: object) -> str:
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _is_calm(candidates: Sequence[Candidate], rules: Rules) -> bool:
    """Whether no worker is so far from its even part that feeds should move because of that alone.

    When workers come or go, the fleet is evened out as far as it gets. In between somebody adds a feed, pauses
    one, one fails: to move another each time would make every change of one feed a restart of a second.
    """
    capacity, load = sum(c.capacity for c in candidates), sum(c.load for c in candidates)
    feeds = sum(c.feeds for c in candidates)
    if not capacity or not feeds:
        return True
    slack = CALM_FEEDS * load / feeds
    parts = ((c.load, load * c.capacity / capacity) for c in candidates)
    return all(abs(its_load - part) <= max(slack, rules.band * part) for its_load, part in parts)


def _count_the_waiting(report: PassReport, counts: Mapping[Reason, int]) -> None:
    for reason in UNPLACED_REASONS:
        here = report.unplaced.get(reason, 0)
        # Of many, a pass looks at some only: then what the sweep counted is nearer to the truth.
        counted = counts.get(reason, 0) if reason in COUNTED_ELSEWHERE or report.left_out else 0
        FEEDS_UNPLACED.labels(reason.value).set(max(here, counted))


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


def cordon_worker(store: Store, name: str) -> WorkerView:
    """Give a worker no more feeds; it keeps what it has. Raises as `find_worker`, and `Conflict`: it is
    ending."""
    return _set_target(store, name, WorkerTarget.CORDONED)


def uncordon_worker(store: Store, name: str) -> WorkerView:
    """Let a cordoned or drained worker serve again. Raises as `cordon_worker`."""
    return _set_target(store, name, WorkerTarget.SERVING)


def drain_worker(store: Store, name: str) -> WorkerView:
    """Hand over what a worker has, each feed as soon as there is another place for it, and give it no more;
    its process goes on. Raises as `cordon_worker`."""
    return _set_target(store, name, WorkerTarget.DRAINED)


def _set_target(store: Store, name: str, target: WorkerTarget) -> WorkerView:
    found = find_worker(store, name)
    if found.worker.state is not WorkerState.ACTIVE:
        raise Conflict(f"worker {found.worker.name!r} is ending: it lets go of its feeds and takes no more")
    if found.worker.target_state is target:
        return found
    if not store.workers.set_target(found.worker.id, target):
        raise NotFound(f"worker {found.worker.name!r} has just ended")
    return replace(found, worker=replace(found.worker, target_state=target))


def move_feed(store: Store, name: str, worker_name: str, settings: Settings) -> WorkerView:
    """Have a feed go on on this worker; one that waits goes there as soon as it may start.

    Raises as `find_worker`, and `Conflict`: the worker may not have it, or the feed cannot be moved now.
    """
    feed = store.feeds.get(name)
    found = find_worker(store, worker_name)
    if (objection := _objection_to_target(store, feed, found, settings.rules)) is not None:
        raise Conflict(f"feed {name!r} cannot go to worker {found.worker.name!r}: {objection}")
    store.feeds.move(name, found.worker.id, stop_within_s=settings.handoff_timeout_s)
    return found


def _objection_to_target(store: Store, feed: Feed, found: WorkerView, rules: Rules) -> str | None:
    worker = found.worker
    if worker.state is not WorkerState.ACTIVE:
        return "it is ending"
    if worker.target_state is not WorkerTarget.SERVING:
        return f"it is {worker.target_state}; `feedq worker uncordon {worker.name}` lets it serve again"
    lacking = {k: v for k, v in feed.spec.selector.required.items() if worker.labels.get(k) != v}
    if lacking:
        return "it lacks the label " + ", ".join(f"{k}={v}" for k, v in sorted(lacking.items()))
    if found.leases + found.promised >= worker.capacity:
        return f"it is full ({found.leases + found.promised} of {worker.capacity} feeds)"
    cap = rules.cap_of(feed.spec.tenant)
    if cap is not None:
        theirs = store.feeds.views(tenant=feed.spec.tenant)
        if sum(v.lease.worker_id == worker.id for v in theirs) >= cap:
            return f"it has as many feeds of tenant {feed.spec.tenant!r} as it may ({cap})"
    return None


def worker_names(views: Sequence[WorkerView]) -> dict[UUID, str]:
    return {view.worker.id: view.worker.name for view in views}
