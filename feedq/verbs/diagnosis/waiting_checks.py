"""Why one feed does not stream, in a sentence that says what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from feedq.core.lease import stillness_of
from feedq.core.model import FeedView, LeaseState, Reason, Status, WorkerTarget, WorkerView
from feedq.core.placement.base import Rules
from feedq.core.remedies import command
from feedq.verbs.diagnosis.fleet_checks import has_labels, serves
from feedq.verbs.troubles import trouble_of
from feedq.verbs.wording import counted, distance, pairs, said


def explain(view: FeedView, workers: Sequence[WorkerView], *, now: datetime, rules: Rules) -> str | None:
    """Says why a feed does not stream; None for one that is where it should be. ``workers`` are those that are
    alive."""
    lease = view.lease
    if lease.state is LeaseState.STOPPING and lease.promised_to is not None:
        target = _name_of(view, workers)
        return f"it is being moved to {target}; its owner has until {_moment(lease.stop_by, now)} to let go"
    if view.status is Status.STALLED and _stands_still(view, workers):
        return f"{_because(view)}; none of its feeds moves until it does, or until others have them"
    if (trouble := trouble_of(view.status, lease.reason)) is None:
        return None
    sentence, remedy = trouble.sentence, trouble.remedy_of(view.feed.name)
    if trouble.cause is Status.WAITING and lease.promised_to is not None:
        return f"it goes to {_name_of(view, workers)} with the next reconcile pass"
    match trouble.reason:
        case Reason.NO_MATCH:
            return _no_match(view, workers)
        case Reason.NO_CAPACITY:
            return _no_capacity(view, workers, rules)
        case Reason.HELD:
            sentence += f", until {_moment(lease.retry_at, now)}"
    if lease.blamed:
        sentence += f" ({counted(lease.blamed, 'worker')} lost to it)"
    if trouble.reason is None and lease.retry_at is not None:
        sentence += f", next at {_moment(lease.retry_at, now)}"
    return f"{sentence}: {remedy}"


def _because(view: FeedView) -> str:
    return said(view.because or "nobody knows why")


def _stands_still(view: FeedView, workers: Sequence[WorkerView]) -> bool:
    return any(w.worker.id == view.lease.worker_id and stillness_of(w) is not None for w in workers)


def _no_match(view: FeedView, workers: Sequence[WorkerView]) -> str:
    required = view.feed.spec.selector.required
    sentence = f"no worker that serves has {pairs(required)}, which it requires"
    for worker in (w.worker for w in workers if has_labels(w, required)):
        if worker.target_state is not WorkerTarget.SERVING:
            uncordon = command("worker", "uncordon", worker.name)
            return f"{sentence}; {worker.name} has, and is {worker.target_state}: `{uncordon}`"
    return f"{sentence}: start one with FEEDQ_WORKER_LABELS, or change selector.required of the feed"


def _no_capacity(view: FeedView, workers: Sequence[WorkerView], rules: Rules) -> str:
    spec = view.feed.spec
    matching = [w for w in workers if serves(w) and has_labels(w, spec.selector.required)]
    with_labels = f" with {pairs(spec.selector.required)}" if spec.selector.required else ""
    if not matching:
        resting = sum(w.worker.target_state is not WorkerTarget.SERVING for w in workers)
        aside = f" ({resting} cordoned or drained: feedq worker uncordon NAME)" if resting else ""
        return f"no worker{with_labels} serves{aside}; start one: celery -A feedq worker -c 500"
    if any(w.leases < w.worker.capacity for w in matching):
        cap = rules.cap_of(spec.tenant)
        if cap is not None:
            return (
                f"the workers{with_labels} that have room have the {cap} feeds of tenant {spec.tenant!r} that "
                "FEEDQ_TENANT_CAPS admits; raise the cap, or start another worker"
            )
    places = sum(w.worker.capacity for w in matching)
    return (
        f"all {places} places on {counted(len(matching), 'worker')}{with_labels} are taken or promised; start "
        "another worker, or give workers a larger -c"
    )


def _name_of(view: FeedView, workers: Sequence[WorkerView]) -> str:
    names = {w.worker.id: w.worker.name for w in workers}
    promised_to = view.lease.promised_to
    return "another worker" if promised_to is None else names.get(promised_to, "a worker that is gone by now")


def _moment(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "the next reconcile pass"
    return f"{at:%H:%M:%SZ} ({distance(at, now=now) if at > now else 'now due'})"
