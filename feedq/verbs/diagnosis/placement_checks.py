"""What keeps feeds from being placed or moved although there are workers: labels, caps of tenants, settings.

Pure. The settings are those of the machine that asks; workers and beats may have others, which is itself a
mistake that nobody else can see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from feedq.control.store.feed_listing import RequiredLabels
from feedq.core.model import WorkerState, WorkerTarget, WorkerView
from feedq.core.placement.base import Rules
from feedq.verbs.diagnosis.checks import Check, warn
from feedq.verbs.wording import counted, pairs, some


def serves(view: WorkerView) -> bool:
    """Whether the worker may be given feeds. One that runs jobs only has no place for any."""
    worker = view.worker
    serving = worker.state is WorkerState.ACTIVE and worker.target_state is WorkerTarget.SERVING
    return serving and worker.capacity > 0


def has_labels(view: WorkerView, required: Mapping[str, str]) -> bool:
    return required.items() <= view.worker.labels.items()


def placing_checks(
    required: Sequence[RequiredLabels],
    tenants: Mapping[str, int],
    workers: Sequence[WorkerView],
    rules: Rules,
) -> Iterator[Check]:
    """``required`` and ``tenants`` count the feeds that want a place. Yields nothing while all is well."""
    serving = [view for view in workers if serves(view)]
    if serving:
        yield from _labels(required, serving)
        yield from _tenants(tenants, serving, rules)
    if rules.moves == 0:
        yield warn(
            "moves",
            "FEEDQ_MOVES_PER_PASS is 0: the load is not evened out, a new worker fills only with new feeds, and a "
            "drained one hands over none",
            "leave it at its default, or move feeds by hand: feedq feed move NAME --to WORKER",
        )


def _labels(groups: Sequence[RequiredLabels], serving: Sequence[WorkerView]) -> Iterator[Check]:
    """Whether workers have the labels that feeds require, and places enough."""
    for group in groups:
        places = [view.worker.capacity for view in serving if has_labels(view, group.required)]
        named = some(group.names, of=group.feeds)
        who = f"{counted(group.feeds, 'feed')} with selector.required {pairs(group.required)} ({named})"
        if not places:
            yield warn(
                "labels",
                f"no worker that serves has the labels for {who}",
                "start one with FEEDQ_WORKER_LABELS, uncordon the one that has them, or edit the selector",
            )
        elif group.feeds > sum(places) - max(places):
            left = sum(places) - max(places)
            yield warn(
                "labels",
                f"{sum(places)} places on {counted(len(places), 'worker')} for {who}; "
                f"{left} when the largest of these dies",
                "give more workers these labels (FEEDQ_WORKER_LABELS)",
            )


def _tenants(tenants: Mapping[str, int], serving: Sequence[WorkerView], rules: Rules) -> Iterator[Check]:
    for tenant, wanted in sorted(tenants.items()):
        cap = rules.cap_of(tenant)
        if cap is not None and wanted > cap * len(serving):
            yield warn(
                "tenants",
                f"tenant {tenant!r} wants {counted(wanted, 'feed')}, and FEEDQ_TENANT_CAPS admits {cap} on each "
                f"of {counted(len(serving), 'worker')}: {wanted - cap * len(serving)} cannot run",
                "raise the cap, or start another worker",
            )
