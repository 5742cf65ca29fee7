"""The fleet as the tables show it: how many feeds fare how, and whether the workers suffice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from feedq.diagnosis.checks import Check, counted, fail, ok, warn
from feedq.diagnosis.placing import placing_checks, serves
from feedq.model import FeedView, Reason, Status, TargetState, WorkerState, WorkerTarget, WorkerView
from feedq.placement import Rules
from feedq.store.insight import FleetState
from feedq.store.listing import Tally
from feedq.telemetry import mask_url

NAMED_MAX = 5
"""Feeds named in one warning; `feedq feed list --status` has them all."""
MOVING = (Reason.MOVED, Reason.DRAINED)
"""Why an owner lets go of a feed that is to go on elsewhere."""
PASS_OVERDUE = 3
"""Intervals without a reconcile pass before it counts as missing: the watchdog's own measure."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The fleet in numbers."""

    feeds: int
    by_status: Mapping[Status, int]
    wanted: int
    """Feeds that ask for a place on a worker: neither paused nor failed nor being removed."""
    waiting: Mapping[Reason, int]
    """Feeds that wait for a worker, by reason; those that back off, failed or are paused are not among them."""
    moving: int
    """Feeds whose owner was asked to let go so that another worker may have them."""
    active: int
    serving: int
    """Workers that may be given feeds."""
    cordoned: int
    drained: int
    draining: int
    """Processes that are ending."""
    capacity: int
    """Feeds that the serving workers can hold."""
    held: int
    """Leases that serving workers hold."""
    spread: tuple[int, int] | None
    """Fewest and most feeds on a serving worker; None without any."""
    capacity_after_loss: int
    """What is left of the capacity when the largest serving worker dies."""
    lacking: int
    """Feeds that want a place and for which there is none."""
    lacking_after_loss: int
    """The same once the worker is dead whose loss would be the hardest."""
    records_total: int
    rows_per_s: float
    """Rows that land, as the workers measure them."""
    bytes_per_s: float

    @property
    def utilisation(self) -> float | None:
        """Feeds by capacity of the serving workers; None without any."""
        return self.held / self.capacity if self.capacity else None


def overview(feeds: Sequence[FeedView], workers: Sequence[WorkerView]) -> Overview:
    return summary(tallies_of(feeds), workers)


def summary(tallies: Sequence[Tally], workers: Sequence[WorkerView]) -> Overview:
    """`overview` of feeds that were counted where they are, in the database."""
    by_status: Counter[Status] = Counter()
    waiting: Counter[Reason] = Counter()
    for tally in tallies:
        by_status[tally.status] += tally.feeds
        if tally.status is Status.WAITING and tally.reason is not None:
            waiting[tally.reason] += tally.feeds
    active = [view for view in workers if view.worker.state is WorkerState.ACTIVE]
    by_target = {t: [v for v in active if v.worker.target_state is t] for t in WorkerTarget}
    serving = [view for view in by_target[WorkerTarget.SERVING] if serves(view)]
    held = [view.leases for view in serving]
    capacities = [view.worker.capacity for view in serving]
    # What runs on a cordoned worker stays there and asks for no other place, unless that worker dies.
    kept = [view.leases for view in by_target[WorkerTarget.CORDONED]]
    wanted = sum(tally.wanted for tally in tallies)
    lacking = wanted - sum(kept) - sum(capacities)
    return Overview(
        feeds=by_status.total(),
        by_status=by_status,
        wanted=wanted,
        waiting=waiting,
        moving=sum(t.feeds for t in tallies if t.status is Status.STOPPING and t.reason in MOVING),
        active=len(active),
        serving=len(serving),
        cordoned=len(by_target[WorkerTarget.CORDONED]),
        drained=len(by_target[WorkerTarget.DRAINED]),
        draining=sum(view.worker.state is WorkerState.DRAINING for view in workers),
        capacity=sum(capacities),
        held=sum(held),
        spread=(min(held), max(held)) if held else None,
        capacity_after_loss=sum(capacities) - max(capacities, default=0),
        lacking=max(lacking, 0),
        lacking_after_loss=max(lacking + max([*capacities, *kept], default=0), 0),
        records_total=sum(tally.records_total for tally in tallies),
        rows_per_s=sum(view.worker.load.rows_per_s for view in active),
        bytes_per_s=sum(view.worker.load.bytes_per_s for view in active),
    )


def tallies_of(feeds: Sequence[FeedView]) -> list[Tally]:
    groups: dict[tuple[Status, Reason | None], list[FeedView]] = {}
    for view in feeds:
        groups.setdefault((view.status, view.lease.reason), []).append(view)
    return [
        Tally(
            status=status,
            reason=reason,
            feeds=len(views),
            wanted=sum(map(wants_place, views)),
            records_total=sum(view.lease.records_total for view in views),
        )
        for (status, reason), views in groups.items()
    ]


def wants_place(view: FeedView) -> bool:
    """Whether the feed asks for a place on a worker."""
    return (
        view.feed.removed_at is None
        and view.feed.spec.target_state is TargetState.RUNNING
        and view.status is not Status.FAILED
    )


def fleet_checks(
    feeds: Sequence[FeedView],
    workers: Sequence[WorkerView],
    state: FleetState | None,
    *,
    reconcile_interval_s: float,
    rules: Rules,
) -> Iterator[Check]:
    """Workers, capacity, beat, reconcile, placement, and each kind of trouble that feeds are in."""
    numbers = overview(feeds, workers)
    yield from number_checks(numbers, state, reconcile_interval_s=reconcile_interval_s)
    yield from placing_checks([view.feed for view in feeds if wants_place(view)], workers, rules)
    troubles = list(_troubles(feeds))
    yield from troubles
    if not troubles:
        yield ok("feeds", _statuses(numbers))


def number_checks(
    numbers: Overview, state: FleetState | None, *, reconcile_interval_s: float
) -> Iterator[Check]:
    """Those that take no more than numbers: workers, capacity, beat and reconcile."""
    yield _workers(numbers)
    if numbers.serving:
        yield _capacity(numbers)
    if state is not None:
        yield _beat(state)
        yield _reconcile(state, reconcile_interval_s)


def tally_checks(tallies: Sequence[Tally]) -> Iterator[Check]:
    """Each kind of trouble that feeds are in, by number alone."""
    counts: Counter[tuple[Status, Reason | None]] = Counter()
    for tally in tallies:
        if tally.status in _ADVICE:
            counts[_trouble(tally.status, tally.reason)] += tally.feeds
    for (status, reason), count in sorted(counts.items(), key=_by_name):
        yield warn("feeds", f"{count} {_described(status, reason)}", _advice(status, reason))


def _workers(numbers: Overview) -> Check:
    if not numbers.active:
        return fail(
            "workers",
            f"no active worker ({numbers.draining} draining); nothing streams",
            "start workers: celery -A feedq worker -c 500",
        )
    if not numbers.serving:
        return fail(
            "workers",
            f"none of the {counted(numbers.active, 'worker')} serves "
            f"({numbers.cordoned} cordoned, {numbers.drained} drained); nothing is placed",
            "feedq worker uncordon NAME, or start others: celery -A feedq worker -c 500",
        )
    spread = "" if numbers.spread is None else f", {numbers.spread[0]} to {numbers.spread[1]} feeds each"
    return ok("workers", f"{described(numbers)}{spread}")


def described(numbers: Overview) -> str:
    """How many workers there are, by what they do."""
    counts = [("cordoned", numbers.cordoned), ("drained", numbers.drained), ("draining", numbers.draining)]
    return ", ".join([f"{numbers.serving} serving", *(f"{count} {what}" for what, count in counts if count)])


def _capacity(numbers: Overview) -> Check:
    wanted, workers = counted(numbers.wanted, "feed"), counted(numbers.serving, "worker")
    places = f"places: {numbers.capacity} on {workers} for {wanted}"
    more = "start another worker, or give workers a larger -c"
    if numbers.lacking:
        return fail("capacity", f"{places}; {numbers.lacking} cannot run", more)
    if numbers.lacking_after_loss:
        return warn(
            "capacity",
            f"{places}; when the largest worker dies, only {numbers.capacity_after_loss} are left "
            f"and {counted(numbers.lacking_after_loss, 'feed')} cannot run",
            more,
        )
    return ok("capacity", f"{places}; {numbers.capacity_after_loss} when the largest worker dies")


def _beat(state: FleetState) -> Check:
    leader = state.leader
    if leader is None or not leader.leads:
        last = "none was ever elected" if leader is None else f"the last was {leader.host}:{leader.pid}"
        return warn(
            "beat",
            f"no beat leads; {last}",
            "start one or more: celery -A feedq beat; until then workers only notice overdue reconciles",
        )
    return ok("beat", f"{leader.host}:{leader.pid} leads since {leader.elected_at:%Y-%m-%d %H:%M:%SZ}")


def _reconcile(state: FleetState, interval_s: float) -> Check:
    limit_s = max(PASS_OVERDUE * interval_s, 1.0)
    advice = "it is a task: see that a beat leads, that workers are up, and that the broker answers"
    if state.pass_age_s is None:
        return fail("reconcile", "no pass has ever finished; feeds are not placed", advice)
    if state.pass_age_s > limit_s:
        return fail("reconcile", f"the last pass finished {state.pass_age_s:.0f} s ago", advice)
    return ok("reconcile", f"the last pass finished {state.pass_age_s:.1f} s ago")


_ADVICE = {
    Status.FAILED: "only an edit helps: feedq feed show NAME, then feedq feed edit NAME --set …",
    Status.STALLED: "connected, but silent beyond idle_timeout_s: look at the source",
    Status.BACKOFF: "the source or the sink refuses; it is tried again by itself",
    Status.WAITING: "feedq feed show NAME says what for",
}
_WAITING_ADVICE = {
    Reason.NO_CAPACITY: "start another worker, or give workers a larger -c",
    Reason.NO_MATCH: "no worker has the labels that the feed asks for: set FEEDQ_WORKER_LABELS",
    Reason.SETTLING: "workers have only just started; feeds are placed after FEEDQ_SETTLE_S",
    Reason.HELD: "their worker was stopped; its successor gets them, or anybody after FEEDQ_RESTART_HOLD_S",
}


def _troubles(feeds: Sequence[FeedView]) -> Iterator[Check]:
    groups: dict[tuple[Status, Reason | None], list[FeedView]] = {}
    for view in feeds:
        if view.status in _ADVICE:
            groups.setdefault(_trouble(view.status, view.lease.reason), []).append(view)
    for (status, reason), views in sorted(groups.items(), key=_by_name):
        named = ", ".join(_named(view) for view in views[:NAMED_MAX])
        more = len(views) - NAMED_MAX
        rest = f" and {more} more" if more > 0 else ""
        yield warn(
            "feeds", f"{len(views)} {_described(status, reason)}: {named}{rest}", _advice(status, reason)
        )


def _trouble(status: Status, reason: Reason | None) -> tuple[Status, Reason | None]:
    # The reason says what a waiting feed waits for; for the others it only repeats the status.
    return status, reason if status is Status.WAITING else None


def _by_name(item: tuple[tuple[Status, Reason | None], object]) -> tuple[str, str]:
    (status, reason), _ = item
    return status, str(reason)


def _described(status: Status, reason: Reason | None) -> str:
    return status if reason is None else f"{status} ({reason})"


def _advice(status: Status, reason: Reason | None) -> str:
    return _ADVICE[status] if reason is None else _WAITING_ADVICE.get(reason, _ADVICE[status])


def _named(view: FeedView) -> str:
    if view.lease.last_error is None or view.status not in (Status.FAILED, Status.BACKOFF):
        return view.feed.name
    return f"{view.feed.name} ({mask_url(view.lease.last_error)[:80]})"


def _statuses(numbers: Overview) -> str:
    if not numbers.feeds:
        return "none declared"
    counts = ", ".join(f"{count} {status}" for status, count in sorted(numbers.by_status.items()))
    return f"{numbers.feeds}: {counts}"
