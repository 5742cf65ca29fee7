"""Lists and counts of feeds as the database should make them: what it answers is compared with these."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from feedq.control.store.feed_listing import (
    LATELY_S,
    LabelsWanted,
    StatusCount,
    TroubledFeeds,
)
from feedq.core.model import Concern, FeedView, Reason, Status, TargetState
from feedq.core.selection import FAILING, Selection, SelectionOrder

NEVER = datetime.min.replace(tzinfo=UTC)
Cause = tuple[Status | Concern, Reason | None]


def chosen_of(select: Selection, views: Sequence[FeedView]) -> list[FeedView]:
    """The feeds of a selection."""
    return [view for view in views if chooses(select, view)]


def chooses(select: Selection, view: FeedView) -> bool:
    """Whether a selection chooses a feed."""
    spec = view.feed.spec
    return (
        (not select.names or spec.name in select.names)
        and select.tenant in (None, spec.tenant)
        and select.labels.items() <= spec.labels.items()
        and select.worker in (None, view.worker)
        and (not select.statuses or view.status in select.statuses)
        and select.connector in (None, spec.connector)
        and (
            select.match is None or re.fullmatch(_expression(select.match), spec.name, re.DOTALL) is not None
        )
        and (not select.failing or view.status in FAILING)
        and (not select.unmet or bool(view.unmet))
        and (not select.dead_letters or view.lease.dead_letters > 0)
        and (select.removing or view.feed.removed_at is None)
    )


def _expression(pattern: str) -> str:
    special = {"*": ".*", "?": "."}
    return "".join(special.get(character, re.escape(character)) for character in pattern)


Key = Callable[[FeedView], Any]
ORDERS: dict[SelectionOrder, tuple[Key, bool]] = {
    SelectionOrder.NAME: (lambda view: view.feed.name, False),
    SelectionOrder.STATUS: (lambda view: view.status, False),
    SelectionOrder.WORKER: (lambda view: view.worker, False),
    SelectionOrder.ROWS: (lambda view: view.lease.records_total, True),
    SelectionOrder.BYTES: (lambda view: view.lease.bytes_total, True),
    SelectionOrder.RATE: (
        lambda view: view.lease.rows_per_s if view.status is Status.STREAMING else None,
        True,
    ),
    SelectionOrder.AGE: (lambda view: view.lease.last_record_at or NEVER, False),
    SelectionOrder.LAG: (lambda view: view.lease.event_at, False),
    SelectionOrder.FAILURES: (lambda view: max(view.lease.failures, view.lease.attempts), True),
    SelectionOrder.EPOCH: (lambda view: view.lease.epoch, True),
}
"""What feeds are put in order by, and whether the most of it comes first."""


def in_order(views: Sequence[FeedView], order: SelectionOrder, *, reverse: bool = False) -> list[FeedView]:
    """Those without a value come last in either direction, equal ones by name."""
    key, most_first = ORDERS[order]
    known = [view for view in views if key(view) is not None]
    known.sort(key=lambda view: view.feed.name)
    known.sort(key=key, reverse=most_first is not reverse)
    return known + sorted((v for v in views if key(v) is None), key=lambda view: view.feed.name)


def tallies_of(feeds: Sequence[FeedView]) -> list[StatusCount]:
    """Feeds by status and reason, counted."""
    groups: dict[tuple[Status, Reason | None], list[FeedView]] = {}
    for view in feeds:
        groups.setdefault((view.status, view.lease.reason), []).append(view)
    return [
        StatusCount(
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
        and view.feed.spec.target_state is not TargetState.PAUSED
        and view.status is not Status.FAILED
    )


def troubles_of(
    views: Sequence[FeedView],
    statuses: Collection[Status],
    reasons: Collection[Reason],
    *,
    each: int,
    tenants: int,
    now: datetime,
) -> list[TroubledFeeds]:
    """Feeds by what is wrong with them and by tenant."""
    groups: dict[Cause, dict[str, list[tuple[datetime | None, FeedView]]]] = {}
    for view in views:
        for cause, since in _causes(view, statuses, reasons, now):
            groups.setdefault(cause, {}).setdefault(view.feed.spec.tenant, []).append((since, view))
    found = []
    for (what, reason), by_tenant in sorted(groups.items(), key=lambda one: (one[0][0], one[0][1] or "~")):
        of = sum(map(len, by_tenant.values()))
        for tenant, group in sorted(by_tenant.items(), key=lambda one: (-len(one[1]), one[0]))[:tenants]:
            ordered = sorted(group, key=lambda one: (one[0] is None, one[0] or now, one[1].feed.name))
            first = [view for _, view in ordered[:each]]
            found.append(TroubledFeeds(what, reason, tenant, len(group), of, ordered[0][0], first))
    return found


def _causes(
    view: FeedView, statuses: Collection[Status], reasons: Collection[Reason], now: datetime
) -> Iterator[tuple[Cause, datetime | None]]:
    lease = view.lease

    def is_of_late(at: datetime | None) -> bool:
        return at is None or now - at < timedelta(seconds=LATELY_S)

    if view.status in statuses:
        waits_for = lease.reason if view.status is Status.WAITING and lease.reason in reasons else None
        silent_since = lease.last_record_at or lease.running_since
        since = {
            Status.QUARANTINED: lease.blamed_at,
            Status.REFUSING: lease.running_since,
            Status.STALLED: silent_since,
            Status.SINK_UNAVAILABLE: silent_since,
        }
        yield (view.status, waits_for), since.get(view.status)
    if view.unmet:
        yield (Concern.EXPECTATION, None), min(one.since for one in view.unmet)
    has_some = lease.dead_letters > 0 and view.status is not Status.REFUSING
    if has_some and lease.dead_letter_at is not None and is_of_late(lease.dead_letter_at):
        yield (Concern.DEAD_LETTERS, None), None
    if lease.blamed and view.status is not Status.QUARANTINED and is_of_late(lease.blamed_at):
        yield (Concern.LOST_WORKERS, None), lease.blamed_at


def required_by(views: Sequence[FeedView], *, each: int) -> list[LabelsWanted]:
    """Feeds that ask for a place, by the labels that they require."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for view in views:
        required = view.feed.spec.selector.required
        if required and wants_place(view):
            groups.setdefault(tuple(sorted(required.items())), []).append(view.feed.name)
    return [LabelsWanted(dict(key), len(names), names[:each]) for key, names in groups.items()]
