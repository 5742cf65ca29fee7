"""What is wrong with feeds, counted by cause and tenant: one warning for each trouble of the table; and why one
feed does not stream, in a sentence that says what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from feedq.control.store.feed_listing import TroubledFeeds
from feedq.core.lease import stillness_of
from feedq.core.model import Concern, FeedView, LeaseState, Reason, Status, WorkerTarget, WorkerView
from feedq.core.placement.base import Rules
from feedq.core.remedies import command
from feedq.core.selection import Selection
from feedq.verbs.diagnosis.checks import TROUBLES, Check, Level, Tone, Trouble, ok, trouble_of
from feedq.verbs.diagnosis.fleet_checks import Overview, has_labels, serves
from feedq.verbs.wording import NAMED_MAX, counted, distance, pairs, refused_words, said, some

QUOTED_MAX: Final = 160
"""Characters of what a feed says in a warning."""
TENANTS_MAX: Final = 20
"""Tenants with feeds in the same trouble that are told apart; the others are counted together."""

MORE_LISTED: Final[Mapping[Status | Concern, str]] = {
    Status.WAITING: "all that wait",
    Concern.DEAD_LETTERS: "all that have any",
}
"""What else a selection finds that knows neither what a feed waits for nor how old its dead letters are."""

Explained = Callable[[FeedView], str | None]
"""Why a feed does not stream, and what to do about it: `explain`."""


def feed_checks(
    found: Sequence[TroubledFeeds], numbers: Overview, *, now: datetime, explained: Explained
) -> Iterator[Check]:
    """``found`` are `feedq.control.store.feed_listing.FeedListing.survey` of all feeds."""
    if not found:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(numbers.by_status.items()))
        yield ok("feeds", f"{numbers.feeds}: {counts}" if numbers.feeds else "none declared")
    for trouble in TROUBLES:
        groups = [one for one in found if trouble_of(one.cause, one.reason) is trouble]
        if groups:
            yield _counted(trouble, groups, now, explained)


def _counted(trouble: Trouble, groups: Sequence[TroubledFeeds], now: datetime, explained: Explained) -> Check:
    total, select = groups[0].of, trouble.select
    named = some(
        [view for group in groups for view in group.views][:NAMED_MAX],
        lambda view: _named(trouble, view, now),
        of=total,
    )
    shown = [_shown(trouble, group, now, explained) for group in groups]
    if others := total - sum(group.feeds for group in groups):
        shown.append(
            Check(trouble.cause, _level(trouble), "of other tenants", trouble.advice, others, select=select)
        )
    what = counted(total, "feed") + ("" if trouble.reason is None else f" ({trouble.reason})")
    return Check(
        trouble.cause, Level.WARN, f"{what}: {named}", trouble.advice, total, select=select, groups=shown
    )


def _shown(trouble: Trouble, group: TroubledFeeds, now: datetime, explained: Explained) -> Check:
    first = group.views[0]
    name, said = first.feed.name, _said(trouble, first, now) or trouble.sentence
    if group.feeds == 1:
        advice = (explained(first) if isinstance(trouble.cause, Status) else None) or trouble.remedy_of(name)
        return Check(trouble.cause, _level(trouble), said, advice, 1, group.tenant, name, group.since)
    named = some(group.views, lambda view: view.feed.name, of=group.feeds)
    advice, select = trouble.advice, _chosen(trouble, group)
    if select is not None:
        whom = MORE_LISTED.get(trouble.cause, "them")
        advice += f"; `{command('feed', 'list', *_options(select))}` lists {whom}"
    said = f"{named}; of {name}: {said}"
    return Check(
        trouble.cause, _level(trouble), said, advice, group.feeds, group.tenant, None, group.since, select
    )


def _chosen(trouble: Trouble, group: TroubledFeeds) -> Selection | None:
    """What chooses these feeds and no others; nothing does those without a tenant beside those of tenants."""
    choice = trouble.select
    if choice is None or (not group.tenant and group.feeds < group.of):
        return None
    return replace(choice, tenant=group.tenant or None)


def _level(trouble: Trouble) -> Level:
    """In the list of problems; no feed alone makes the doctor fail."""
    return Level.FAIL if trouble.tone is Tone.WORST else Level.WARN


def _options(select: Selection) -> list[str]:
    """What a trouble is chosen by, as options of `feedq feed list`."""
    flags = {"--unmet": select.unmet, "--dead-letters": select.dead_letters}
    statuses = [word for status in select.statuses for word in ("--status", status)]
    tenant = ["--tenant", select.tenant] if select.tenant else []
    return [*tenant, *(name for name, is_set in flags.items() if is_set), *statuses]


def _named(trouble: Trouble, view: FeedView, now: datetime) -> str:
    said = _said(trouble, view, now)
    return view.feed.name if said is None else f"{view.feed.name} ({said})"


def _said(trouble: Trouble, view: FeedView, now: datetime) -> str | None:
    """What is known of it besides the table, as others have said it."""
    lease = view.lease
    match trouble.cause:
        case Concern.EXPECTATION:
            text = "; ".join(one.said for one in view.unmet) or None
        case Concern.DEAD_LETTERS:
            why = f": {lease.dead_letter_error}" if lease.dead_letter_error else ""
            text = refused_words(lease, now=now) + why
        case Concern.LOST_WORKERS:
            text = lease.blame
        case Status.WAITING:
            text = None
        case _:
            text = view.because
    return None if text is None else said(text)[:QUOTED_MAX]


# -- one feed ------------------------------------------------------------------------------------------


def explain(view: FeedView, workers: Sequence[WorkerView], *, now: datetime, rules: Rules) -> str | None:
    """Says why a feed does not stream; None for one that is where it should be. ``workers`` are those that are
    alive."""
    lease = view.lease
    if lease.state is LeaseState.STOPPING and lease.promised_to is not None:
        target = _name_of(view, workers)
        return f"it is being moved to {target}; its owner has until {_moment(lease.due_at, now)} to let go"
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
            sentence += f", until {_moment(lease.due_at, now)}"
    if lease.blamed:
        sentence += f" ({counted(lease.blamed, 'worker')} lost to it)"
    if trouble.reason is None and lease.state is LeaseState.IDLE and lease.due_at is not None:
        sentence += f", next at {_moment(lease.due_at, now)}"
    return f"{sentence}: {remedy}"


def _because(view: FeedView) -> str:
    return said(view.because or "reason unknown")


def _stands_still(view: FeedView, workers: Sequence[WorkerView]) -> bool:
    return any(w.worker.id == view.lease.worker_id and stillness_of(w) is not None for w in workers)


def _no_match(view: FeedView, workers: Sequence[WorkerView]) -> str:
    required = view.feed.spec.selector.required
    sentence = f"no worker that serves has {pairs(required)}, which it requires"
    for worker in (w.worker for w in workers if has_labels(w, required)):
        if worker.target_state is not WorkerTarget.SERVING:
            uncordon = command("worker", "uncordon", worker.name)
            return f"{sentence}; {worker.name} has, but is {worker.target_state}: `{uncordon}`"
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
                f"the workers{with_labels} with room already have {cap} feeds of tenant {spec.tenant!r}, as many "
                "as FEEDQ_TENANT_CAPS allows; raise the cap, or start another worker"
            )
    places = sum(w.worker.capacity for w in matching)
    return (
        f"all {places} places on {counted(len(matching), 'worker')}{with_labels} are taken or promised; start "
        "another worker, or give workers a larger -c"
    )


def _name_of(view: FeedView, workers: Sequence[WorkerView]) -> str:
    names = {w.worker.id: w.worker.name for w in workers}
    promised_to = view.lease.promised_to
    return "another worker" if promised_to is None else names.get(promised_to, "a worker that is gone")


def _moment(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "the next reconcile pass"
    return f"{at:%H:%M:%SZ} ({distance(at, now=now) if at > now else 'now due'})"
