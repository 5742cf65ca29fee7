"""How history folds the same trouble into one event: what the trigger ``feedq.fold_event`` does, in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce

from feedq.core.model import Event, Reason
from feedq.telemetry.logs import EventKind

FOLDED_WITHIN = timedelta(hours=1)
"""Longer than any pause between two tries. Two troubles that are further apart are worth an event each."""
TRIES = frozenset({EventKind.LEASE_ASSIGNED, EventKind.LEASE_CLAIMED, EventKind.LEASE_RAISED})
"""What happens between two troubles of a feed that is merely tried again."""
TROUBLES = frozenset({EventKind.LEASE_OVERDUE, EventKind.SINK_REWOUND})
TROUBLED = frozenset({Reason.BACKOFF, Reason.FENCED, Reason.QUARANTINED})
"""Reasons of a release that are trouble. What cannot run as declared is not among them: it is told once for each
error that is new (`tests.fakes.memory.decisions.is_known_failure`)."""


def folded(events: Iterable[Event]) -> list[Event]:
    """The history of one feed, oldest first, as it is kept."""
    return reduce(_with, events, [])


def _with(kept: list[Event], event: Event) -> list[Event]:
    news = [n for n, one in enumerate(kept) if one.kind not in TRIES][-2:]
    if not _is_trouble(event) or not news or not _is_same(kept[news[-1]], event):
        return [*kept, event]
    last, begins = news[-1], news[0] + 1 if len(news) > 1 else 0
    tries = _latest_of_each([*kept[begins:last], *kept[last + 1 :]])
    return [*kept[:begins], *tries, _merged(kept[last], event)]


def _is_trouble(event: Event) -> bool:
    if event.kind == EventKind.LEASE_RELEASED:
        return event.detail.get("reason") in TROUBLED
    return event.kind in TROUBLES


def _is_same(before: Event, event: Event) -> bool:
    is_like = (before.kind, before.detail.get("reason")) == (event.kind, event.detail.get("reason"))
    return is_like and event.at - before.at <= FOLDED_WITHIN


def _latest_of_each(tries: Sequence[Event]) -> list[Event]:
    latest: dict[str, Event] = {}
    for event in tries:
        before = latest.pop(event.kind, None)  # taken out, so that it comes back as the last
        latest[event.kind] = event if before is None else _merged(before, event)
    return list(latest.values())


def _merged(before: Event, event: Event) -> Event:
    return replace(event, count=before.count + event.count, since=before.since or before.at)
