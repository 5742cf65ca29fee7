"""The control plane: what `reconcile` does.

Nothing here runs a stream (`feedq.worker` does) and nothing here knows Celery: messages leave through a
`Dispatch` callable. Decisions come from the pure policies; this module only carries them out, inside one
transaction a pass, and sends messages after it has committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from time import perf_counter
from uuid import UUID

from feedq.control.store.passes import Fleet, ReconcilePass
from feedq.control.store.postgresql import PostgresStore
from feedq.core import lease, limits
from feedq.core.model import Assignment, Lease, Reason
from feedq.core.placement import placing, rebalancing
from feedq.core.placement.balanced import weight_of_each
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Rules, is_settled
from feedq.core.placement.fleet_loads import Moves
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import RECONCILE_SECONDS, RECONCILED_AT_SECONDS

Dispatch = Callable[[Sequence[Assignment]], None]
"""Sends one ``stream_feed(feed_id, epoch)`` an assignment to its worker's queue; may fail, may repeat."""

PASSES_IN_A_ROW = 10
"""The most passes in a row while there is more to do; then it is somebody else's turn."""
EDITS_PER_PASS = 1_000
"""Bounds a pass after a bulk edit; what is left over wakes the next pass."""
PLACEMENTS_PER_PASS = 10_000
"""Bounds a pass after a cold start or the loss of many workers: it keeps its rows locked for a second at most."""
SWEEP_INTERVAL_S = 60.0
"""How often history is trimmed and feeds are weighed anew."""
MOVABLE_PER_PASS = 20_000
"""Bounds the feeds that a pass chooses from when it moves some; they are shared evenly by the workers that
give."""
MOVABLE_FIRST = 2_000
"""Where all feeds weigh the same, a pass looks at so many first, those that have run longest: one is mostly as
good as another then. The rest is read when more may move than are found among these."""
TURNS = 4
"""How often within the time that feeds avoid a worker it is asked whether that is over."""
CALM_FEEDS = 1.5
"""How many feeds more or less than its even part a worker may have while the same workers are there."""
COUNTS = ("workers_gone", "leases_freed", "edits", "overdue", "reaped", "moves")
"""The counts of a pass, in a report."""

logger = log(__name__)


@dataclass(slots=True)
class PassReport:
    """Reports what one pass did, or several in a row. All zeros is the usual case."""

    workers_gone: int = 0
    leases_freed: int = 0
    edits: int = 0
    overdue: int = 0
    reaped: int = 0
    """Leases whose owner was asked to release them and has not in time."""
    moves: int = 0
    """Running feeds whose owner was asked to hand them over to another worker."""
    assignments: tuple[Assignment, ...] = ()
    unplaced: dict[Reason, int] = field(default_factory=dict)
    more: bool = False
    """Whether a bound was reached and another pass should follow at once."""
    left_out: bool = False
    """Whether more feeds wait than a pass considers."""
    is_fast_path: bool = False
    """Whether feeds of dead workers were placed and nothing else was done."""

    def after(self, before: PassReport) -> PassReport:
        """Return what both passes did, and what is left as this one, the later, found it."""
        sums = {name: getattr(before, name) + getattr(self, name) for name in COUNTS}
        return replace(self, **sums, assignments=before.assignments + self.assignments)

    @property
    def can_wait(self) -> bool:
        """Whether what is left should wait until the feeds of dead workers, which are placed, have connected."""
        return self.is_fast_path and not self.left_out

    @property
    def did_something(self) -> bool:
        return bool(self.assignments or any(getattr(self, name) for name in COUNTS))


def reconcile(
    store: PostgresStore,
    dispatch: Dispatch,
    settings: Settings,
    *,
    passes: int = 1,
    placing_only: bool = False,
) -> PassReport | None:
    """`make_passes`, with what is logged and measured of them."""
    started = perf_counter()
    report = make_passes(store.fleet, dispatch, settings, passes=passes, placing_only=placing_only)
    if report is None:
        return None
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
            unplaced=sum(report.unplaced.values()),
            ms=round(1000 * (perf_counter() - started), 1),
        )
    return report


def make_passes(
    fleet: Fleet, dispatch: Dispatch, settings: Settings, *, passes: int, placing_only: bool
) -> PassReport | None:
    """Bring the fleet closer to what is wanted, in at most so many passes; None when another one is under way.

    With ``placing_only`` feeds of dead workers and feeds that wait get their places, and nothing else is done.

    Idempotent, and cheap when nothing changed. Killed before a commit, that pass did nothing; killed after it
    and before the messages are out, the dispatch time-out sends them again. For what is left it wakes whoever
    makes passes; if that can wait, the caller does so in a moment.
    """
    report = PassReport(more=True)
    done = fast_path_limit = 0
    try:
        while report.more and done < passes and len(report.assignments) < PLACEMENTS_PER_PASS:
            this_pass = _pass(fleet, settings, fast_path_limit=fast_path_limit, placing_only=placing_only)
            if this_pass is None:
                break
            report = this_pass.after(report)
            done += 1
            if report.can_wait:
                break
            fast_path_limit = (
                limits.PLACED_GROWTH * (fast_path_limit or limits.PLACED_FIRST) if report.is_fast_path else 0
            )
    finally:
        # Committed, if a later pass was not. Only now may a message leave: an epoch that was rolled back must
        # never be heard of.
        if report.assignments:
            dispatch(report.assignments)
    if not done:
        return None
    if report.more and not report.can_wait:
        fleet.wake()
    return report


def _pass(fleet: Fleet, settings: Settings, *, fast_path_limit: int, placing_only: bool) -> PassReport | None:
    """Make one pass, which is one transaction.

    With a ``fast_path_limit`` it places so many feeds whose workers have died, and does nothing else: the rest can
    wait until those connect.
    """
    with fleet.reconcile_pass(ttl_s=settings.ttl_s, measured_load=settings.measured_load) as p:
        if p is None:
            return None
        report = PassReport()
        if _expire_gone_workers(p, report, ttl_s=settings.ttl_s) or fast_path_limit:
            place_waiting_feeds(p, report, rules=settings.rules, limit=fast_path_limit or limits.PLACED_FIRST)
            report.more = report.is_fast_path = True
            return report
        if placing_only:
            place_waiting_feeds(p, report, rules=settings.rules)
            return report
        stop_within_s = settings.handoff_timeout_s
        if p.sweep_is_due(interval_s=SWEEP_INTERVAL_S):
            p.sweep()
        stock = p.take_stock(edits=EDITS_PER_PASS)
        report.reaped, report.overdue = stock.reaped, len(stock.silent)
        report.edits = len(stock.dirty)
        report.more = report.edits == EDITS_PER_PASS
        if stock.dirty:
            edits = [(feed.id, lease.on_edit(feed, its_lease)) for feed, its_lease in stock.dirty]
            p.apply_edits(edits, stop_within_s=stop_within_s)
        _separate_quarantined(p, stock.quarantined, stop_within_s=stop_within_s)
        place_waiting_feeds(
            p, report, rules=settings.rules, silent=frozenset(stock.silent), limit=PLACEMENTS_PER_PASS
        )
        if not report.more and Reason.SETTLING not in report.unplaced:
            rebalance_fleet(p, report, settings)
        return report


def _expire_gone_workers(p: ReconcilePass, report: PassReport, *, ttl_s: float) -> bool:
    """Expire the workers that are gone, and return whether there were any."""
    gone = [
        s.worker.id
        for s in p.suspects
        if lease.is_gone(
            s.worker, has_session=s.has_session, now=p.now, served_since=p.served_since, ttl_s=ttl_s
        )
    ]
    if gone:
        report.workers_gone = len(gone)
        report.leases_freed = p.expire_workers(gone)
    return bool(gone)


def _separate_quarantined(p: ReconcilePass, leases: Sequence[Lease], *, stop_within_s: float) -> None:
    """Restart feeds in quarantine apart from all others, and those that have behaved for long enough among
    them."""
    pardoned = [replace(one, quarantined=False) for one in leases if lease.is_pardoned(one, now=p.now)]
    asked = [one for one in leases if lease.is_in_company(one)] + pardoned
    if asked:
        p.part(asked, stop_within_s=stop_within_s)


def place_waiting_feeds(
    p: ReconcilePass,
    report: PassReport,
    *,
    rules: Rules,
    silent: Collection[UUID] = frozenset(),
    limit: int = PLACEMENTS_PER_PASS,
) -> None:
    """Give the feeds that wait their places, as far as there are any.

    ``silent`` workers have let assignments run out of time: other workers get these, if any has room.

    Such a worker may be cut off from the broker and holds few feeds, which would make it the first choice for all.
    """
    waiting = p.waiting(limit=limit)
    if waiting:
        candidates = p.candidates(_capped(waiting, rules))
        if silent:
            heard = [c for c in candidates if c.worker_id not in silent]
            if any(c.feeds < c.capacity for c in heard):
                candidates = heard
            # Assignments have run out of time: this fleet does not start cold.
            rules = replace(rules, settle_s=0.0)
        decision = placing.place(waiting, candidates, now=p.now, rules=rules)
        report.assignments = tuple(p.assign(decision.assignments)) if decision.assignments else ()
        known = {w.feed_id: w.reason for w in waiting}
        p.explain([(feed_id, why) for feed_id, why in decision.unplaced if known[feed_id] is not why])
        for _, why in decision.unplaced:
            report.unplaced[why] = report.unplaced.get(why, 0) + 1
        report.left_out = len(waiting) == limit
        report.more |= report.left_out and bool(report.assignments)


def _capped(feeds: Iterable[FeedToPlace], rules: Rules) -> frozenset[str]:
    """Tenants of these feeds of which a worker may have only so many."""
    return frozenset(feed.tenant for feed in feeds if rules.cap_of(feed.tenant) is not None)


def rebalance_fleet(p: ReconcilePass, report: PassReport, settings: Settings) -> None:
    """Move running feeds to where there is more room for them, and off the workers that are to be empty.

    Feeds that still wait do not hinder this: they were tried before, so the room that is left is of no use to
    them, and one feed that matches no worker would otherwise keep every drain from ending. While feeds are held
    for the successor of a worker only those move that have to: the fleet is even again once the successor is
    there.
    """
    rules, moving = settings.rules, p.moving(within_s=settings.handoff_timeout_s)
    budget = rules.moves - sum(moving.under_way.values())
    if budget <= 0:
        return
    candidates, leaving, held = moving.candidates, moving.leaving, moving.held
    workers, counts = _fingerprints(candidates, leaving, rules=rules, now=p.now, held=held)
    evened_out, fingerprint = p.state.evened_out or "", f"{workers}:{counts}"
    if evened_out == fingerprint:
        return
    is_known = evened_out.startswith(workers)
    sources = set(leaving)
    if not held and not (is_known and _is_calm(candidates, rules)):
        sources.update(rebalancing.donors(candidates, now=p.now, rules=rules))
    together = limits.moves_together(settings.connects_per_s, settings.host_connects_per_s, len(candidates))
    decide = partial(
        rebalancing.rebalance, rules=rules, moves=budget, under_way=moving.under_way, together=together
    )
    running, moves = _choose_moves(p, sources, candidates, rules, decide)
    if moves is not None and (transfers := moves.transfers()):
        report.moves = p.transfer(transfers, stop_within_s=settings.handoff_timeout_s)
    elif moves is None or moves.left > 0:
        counted = sum(leaving.values()) + sum(c.feeds for c in candidates if c.worker_id in sources)
        # Feeds that are assigned and not claimed yet cannot move, and may have to once they run.
        if running >= min(counted, MOVABLE_PER_PASS):
            p.state.evened_out = fingerprint


def _choose_moves(
    p: ReconcilePass,
    sources: Collection[UUID],
    candidates: Sequence[EligibleWorker],
    rules: Rules,
    decide: Callable[..., Moves],
) -> tuple[int, Moves | None]:
    """Return from how many feeds was chosen, and what; None when there are none."""
    # Which of feeds of different weights fits best, only all of them show.
    limit = MOVABLE_PER_PASS if weight_of_each(candidates) is None else MOVABLE_FIRST
    while True:
        running = p.movable(sources, limit=limit) if sources and candidates else []
        if not running:
            return 0, None
        tenants = _capped(running, rules)
        moves = decide(running, p.candidates(tenants) if tenants else candidates, now=p.now)
        # Whether a worker may be tried again that feeds avoid, only all of them show, too.
        are_enough = moves.left <= 0 and not any(feed.avoid for feed in running)
        if are_enough or limit == MOVABLE_PER_PASS or _are_all(running, limit // len(sources)):
            return len(running), moves
        limit = MOVABLE_PER_PASS


def _are_all(running: Iterable[FeedToPlace], of_each: int) -> bool:
    """Return whether no worker has so many of these that there may be more."""
    return max(Counter(feed.worker_id for feed in running).values()) < of_each


def _fingerprints(
    candidates: Sequence[EligibleWorker],
    leaving: Mapping[UUID, int],
    *,
    rules: Rules,
    now: datetime,
    held: int,
) -> tuple[str, str]:
    """Fingerprints of all that decides whether some feed should move: which workers there are, and what they
    have. What the feeds themselves ask of their workers is not in them."""
    ordered = sorted(candidates, key=lambda c: c.worker_id.int)
    settled = [(c.worker_id, c.capacity, is_settled(c, now=now, settle_s=rules.settle_s)) for c in ordered]
    # When nothing is held any more, the fleet is rebalanced as far as possible.
    rule = (bool(held), rules.strategy.value, rules.band, sorted(rules.tenant_caps.items()))
    counts = [(c.feeds, round(c.load, 3), c.lags, sorted(c.sinks_down)) for c in ordered]
    # It changes now and then: a worker that feeds avoid may be worth another try.
    turn = int(now.timestamp() / max(rules.avoid_s / TURNS, 1.0))
    return _digest(settled, rule), _digest(counts, sorted(leaving.items()), turn)


def _digest(*facts: object) -> str:
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _is_calm(candidates: Sequence[EligibleWorker], rules: Rules) -> bool:
    """Return whether no worker is so far from its even part that feeds should move because of that alone.

    When workers come or go, the fleet is rebalanced as far as possible. In between feeds are added, paused, or
    fail: to move another feed each time would restart a second feed for every change of one.
    """
    capacity, load = sum(c.capacity for c in candidates), sum(c.load for c in candidates)
    feeds = sum(c.feeds for c in candidates)
    if not capacity or not feeds:
        return True
    slack = CALM_FEEDS * load / feeds
    parts = ((c.load, load * c.capacity / capacity) for c in candidates)
    return all(abs(its_load - part) <= max(slack, rules.band * part) for its_load, part in parts)
