"""The fleet as the tables show it: how many feeds fare how, whether the workers suffice, what keeps feeds from
being placed or moved although there are workers, and whether somebody runs what schedules have due. Pure.

The settings are those of the machine that asks; workers and beats may have others, which is itself a mistake that
nobody else can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedq.control.store.feed_listing import LabelsWanted, StatusCount
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.core.lease import stillness_of
from feedq.core.model import Reason, Status, WorkerState, WorkerTarget, WorkerView
from feedq.verbs.diagnosis.checks import Check, fail, not_checked, ok, warn
from feedq.verbs.wording import NAMED_MAX, counted, duration, pairs, some

if TYPE_CHECKING:
    from feedq.control.store.jobs.listing import ScheduledTask

MOVING = (Reason.MOVED, Reason.DRAINED)
"""Why an owner lets go of a feed that is to go on elsewhere."""
PASS_OVERDUE = 3
"""Intervals without a reconcile pass before it counts as missing: the watchdog's own measure."""
OVERDUE_S = 30.0
"""A tick is fired within a second of its time: what is this late is fired by nobody."""
WAITING_S = 60.0
"""A run that has been due for so long waits for more than its turn."""

START_WORKER = (
    "start or uncordon a worker: celery -A feedq worker; for jobs alone, celery -A feedq worker -Q jobs -c 8"
)
TASKS_ADVICE = (
    "set FEEDQ_IMPORTS to the module that defines it, or FEEDQ_WORKER_LABELS, and start the workers again"
)


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
            "start one or more: celery -A feedq beat; until then workers only step in when a pass is overdue",
        )
    return ok("beat", f"{leader.host}:{leader.pid} leads since {leader.elected_at:%Y-%m-%d %H:%M:%SZ}")


def _reconcile(state: FleetState, interval_s: float) -> Check:
    limit_s = max(PASS_OVERDUE * interval_s, 1.0)
    advice = "it is a Celery task: check that a beat leads, workers are up and the broker answers"
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
            f"something on it or on its machine blocks its loop; its log says what (pid {view.worker.pid} on "
            f"{view.worker.host}). It exits after FEEDQ_STALL_S, and other workers take its feeds",
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
                f"check the network between them and the sink, and FEEDQ_SINKS__{name.upper()} there; after a few "
                "seconds the feeds move to workers that can",
            )
        else:
            yield fail(
                "sinks of workers",
                f"{cut_off} cannot write to sink {name}, and no other worker is known to",
                "check that the sink is up; received records are kept, and sources are held back",
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


def placing_checks(required: Sequence[LabelsWanted], workers: Sequence[WorkerView]) -> Iterator[Check]:
    """Whether required labels outlast the largest worker that has them; without any such worker feeds wait.

    ``required`` counts the feeds that want a place. Yields nothing while all is well.
    """
    for group in required:
        places = [w.worker.capacity for w in workers if serves(w) and has_labels(w, group.required)]
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


# -- schedules and runs --------------------------------------------------------------------------------


def job_checks(state: JobState) -> Iterator[Check]:
    """Checks schedules and runs; yields nothing for an installation without any."""
    if not state.are_used:
        return
    if state.slots:
        slots = f"{counted(state.slots, 'job slot')} on {counted(state.workers, 'worker')}"
        yield ok("schedules", f"{described_schedules(state)}; {slots}")
    else:
        yield fail(
            "schedules",
            f"{described_schedules(state)}; no serving worker has job slots, so nothing runs",
            START_WORKER,
        )
    if state.overdue_s is not None and state.overdue_s > OVERDUE_S:
        yield fail(
            "ticks",
            f"a tick fell due {duration(state.overdue_s)} ago and has not been fired",
            "any worker fires them: check that one is up and reaches the control database",
        )
    if state.tripped:
        yield warn(
            "paused",
            f"{counted(len(state.tripped), 'schedule')} paused by failures: {some(state.tripped)}",
            "feedq schedule runs NAME --state failed says why; then feedq schedule resume NAME",
        )
    if state.failing:
        yield warn(
            "failed runs",
            f"the last run of {counted(state.failing, 'schedule')} did not succeed: "
            f"{some(state.failing_names, of=state.failing)}",
            "feedq schedule runs NAME --state failed says why; feedq schedule trigger NAME runs it again",
        )
    if state.slots and state.oldest_due_s is not None and state.oldest_due_s > WAITING_S:
        yield _waiting(state)


def described_schedules(state: JobState) -> str:
    """Counts schedules in words: ``12: 10 active, 2 paused (1 by failures)``."""
    tripped = f" ({len(state.tripped)} by failures)" if state.tripped else ""
    paused = f", {state.paused} paused{tripped}" if state.paused else ""
    return f"{state.schedules}: {state.active} active{paused}"


def described_runs(state: JobState) -> str:
    """Counts runs in words: ``3 running, 5 waiting, the oldest due for 12s``."""
    oldest = "" if state.oldest_due_s is None else f", the oldest due for {duration(state.oldest_due_s)}"
    return f"{state.running} running, {state.waiting} waiting{oldest}"


def _waiting(state: JobState) -> Check:
    assert state.oldest_due_s is not None
    waits = f"{counted(state.due, 'run')} due and not started, the oldest for {duration(state.oldest_due_s)}"
    if state.running >= state.slots:
        return warn(
            "runs",
            f"{waits}; all {counted(state.slots, 'job slot')} are taken",
            "start another worker, or raise FEEDQ_JOB_SLOTS",
        )
    return warn(
        "runs",
        f"{waits}, while {counted(state.slots - state.running, 'job slot')} are free",
        "a limit, an earlier run of their schedule or a task that no worker knows holds them back: "
        "feedq schedule runs --state waiting, feedq schedule list --queues",
    )


def check_tasks(tasks: Sequence[ScheduledTask]) -> Iterator[Check]:
    """Is there a worker that can run each task? As workers say when they register."""
    if not tasks:
        return
    if not any(task.workers for task in tasks):
        yield not_checked("tasks", "no worker runs jobs, so none says which tasks it knows", START_WORKER)
        return
    troubles = [task for task in tasks if not task.able]
    if not troubles:
        some_only = sum(task.able < task.workers for task in tasks)
        others = f", {some_only} of them on some workers only" if some_only else ""
        yield ok("tasks", f"{counted(len(tasks), 'task')} of schedules, each known to a worker{others}")
    for task in troubles[:NAMED_MAX]:
        others = f" (and {counted(task.schedules - 1, 'other')})" if task.schedules > 1 else ""
        yield fail("tasks", f"schedule {task.schedule}{others}: {task.why_unserved}", TASKS_ADVICE)
    if len(troubles) > NAMED_MAX:
        more = counted(len(troubles) - NAMED_MAX, "more task")
        yield warn("tasks", f"and {more}", "mend these first")
