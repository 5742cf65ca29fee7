"""The fleet as the tables show it: how many feeds fare how, whether the workers suffice, and what keeps feeds from
being placed or moved although there are workers. Pure.

The settings are those of the machine that asks; workers and beats may have others, which is itself a mistake that
nobody else can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from feedq.control.store.feed_listing import RequiredLabels, StatusCount
from feedq.control.store.fleet_state import FleetState
from feedq.core.lease import stillness_of
from feedq.core.model import Reason, Status, WorkerState, WorkerTarget, WorkerView
from feedq.core.placement.base import Rules
from feedq.verbs.diagnosis.checks import Check, fail, not_checked, ok, warn
from feedq.verbs.wording import counted, pairs, some

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


def serves(view: WorkerView) -> bool:
    """Whether the worker may be given feeds. One that runs jobs only has no place for any."""
    worker = view.worker
    serving = worker.state is WorkerState.ACTIVE and worker.target_state is WorkerTarget.SERVING
    return serving and worker.capacity > 0


def has_labels(view: WorkerView, required: Mapping[str, str]) -> bool:
    return required.items() <= view.worker.labels.items()


def summary(tallies: Sequence[StatusCount], workers: Sequence[WorkerView]) -> Overview:
    """The fleet in numbers, of feeds that were counted where they are, in the database."""
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


def fleet_checks(
    numbers: Overview, workers: Sequence[WorkerView], state: FleetState, *, reconcile_interval_s: float
) -> Iterator[Check]:
    """Workers, capacity, beat and reconcile."""
    yield _workers(numbers)
    if numbers.active:
        yield from _loops(workers)
        yield from _sinks(workers)
    if numbers.serving:
        yield _capacity(numbers)
    yield _beat(state)
    yield _reconcile(state, reconcile_interval_s)


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


def _loops(workers: Sequence[WorkerView]) -> Iterator[Check]:
    """Whether every worker moves: a feed on one that does not is not streaming, whatever its lease says."""
    still = [(view, said) for view in workers if (said := stillness_of(view)) is not None]
    for view, said in still:
        yield fail(
            "loops",
            f"{view.worker.name} {said}, and so have its {counted(view.leases, 'feed')}",
            f"something on it or on its machine blocks its loop, and its log says what; pid {view.worker.pid} on "
            f"{view.worker.host}. It ends itself after FEEDQ_STALL_S, and others take its feeds",
        )
    if not still:
        slowest = max(view.worker.load.loop_lag_s for view in workers)
        yield ok("loops", f"no worker is stuck; the latest timer ran {1000 * slowest:.0f} ms late")


def _sinks(workers: Sequence[WorkerView]) -> Iterator[Check]:
    """Sinks that some worker cannot write to, as the workers say it: `feedq doctor` itself may well reach them."""
    down = {name for view in workers for name in view.worker.load.sinks_down}
    up = {name for view in workers for name in view.worker.load.sinks_up}
    for name in sorted(down):
        cut_off = some([view.worker.name for view in workers if name in view.worker.load.sinks_down])
        able = some([view.worker.name for view in workers if name in view.worker.load.sinks_up])
        if name in up:
            yield warn(
                "sinks of workers",
                f"{cut_off} cannot write to sink {name}, and {able} can",
                f"look at the network between them and the sink, and at FEEDQ_SINKS__{name.upper()} there; the "
                "feeds go to workers that can, after a few seconds",
            )
        else:
            yield fail(
                "sinks of workers",
                f"{cut_off} cannot write to sink {name}, and no other worker is known to",
                "see that the sink is up; what was received is kept, and its sources are held back",
            )
    if not down and up:
        yield ok(
            "sinks of workers", f"no worker is cut off from a sink; written to lately: {some(sorted(up))}"
        )
    elif not down:
        yield not_checked(
            "sinks of workers",
            "no worker has written to a sink lately",
            "this is known once a feed lands records",
        )


# -- placement -----------------------------------------------------------------------------------------


def placing_checks(
    required: Sequence[RequiredLabels],
    workers: Sequence[WorkerView],
    rules: Rules,
) -> Iterator[Check]:
    """``required`` counts the feeds that want a place. Yields nothing while all is well."""
    serving = [view for view in workers if serves(view)]
    if serving:
        yield from _labels(required, serving)
    if rules.moves == 0:
        yield warn(
            "moves",
            "FEEDQ_MOVES_PER_PASS is 0: the load is not evened out, a new worker fills only with new feeds, and a "
            "drained one hands over none",
            "leave it at its default, or move feeds by hand: feedq feed move NAME --to WORKER",
        )


def _labels(groups: Sequence[RequiredLabels], serving: Sequence[WorkerView]) -> Iterator[Check]:
    """Whether required labels outlast the largest worker that has them; without any such worker feeds wait."""
    for group in groups:
        places = [view.worker.capacity for view in serving if has_labels(view, group.required)]
        named = some(group.names, of=group.feeds)
        who = f"{counted(group.feeds, 'feed')} with selector.required {pairs(group.required)} ({named})"
        if places and group.feeds > sum(places) - max(places):
            left = sum(places) - max(places)
            yield warn(
                "labels",
                f"{sum(places)} places on {counted(len(places), 'worker')} for {who}; "
                f"{left} when the largest of these dies",
                "give more workers these labels (FEEDQ_WORKER_LABELS)",
            )
