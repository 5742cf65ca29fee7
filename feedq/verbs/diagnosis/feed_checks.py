"""What is wrong with feeds, counted by cause and tenant: one warning for each trouble of the table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from feedq.control.store.feed_listing import TroubledFeeds
from feedq.core.model import Concern, FeedView, Status
from feedq.core.passwords import mask_url
from feedq.core.remedies import command
from feedq.core.selection import Selection
from feedq.verbs.diagnosis.checks import Check, Level, ok
from feedq.verbs.diagnosis.fleet_checks import Overview
from feedq.verbs.troubles import TROUBLES, Tone, Trouble, choice_of, trouble_of
from feedq.verbs.wording import NAMED_MAX, ago, counted, printable, some

QUOTED_MAX: Final = 160
"""Characters of what a feed says in a warning."""
TENANTS_MAX: Final = 20
"""Tenants with feeds in the same trouble that are told apart; the others are counted together."""

Explained = Callable[[FeedView], str | None]
"""Why a feed does not stream, and what to do about it: `feedq.verbs.diagnosis.waiting_checks.explain`."""


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
    total, select = groups[0].of, choice_of(trouble.cause)
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
        advice += f"; `{command('feed', 'list', *_options(select))}` lists them"
    said = f"{named}; of {name}: {said}"
    return Check(
        trouble.cause, _level(trouble), said, advice, group.feeds, group.tenant, None, group.since, select
    )


def _chosen(trouble: Trouble, group: TroubledFeeds) -> Selection | None:
    """What chooses these feeds and no others; nothing does those without a tenant beside those of tenants."""
    choice = choice_of(trouble.cause)
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
            said: str | None = "; ".join(one.said for one in view.unmet) or None
        case Concern.DEAD_LETTERS:
            latest = (
                ""
                if lease.dead_letter_at is None
                else f", the latest {ago(lease.dead_letter_at, now=now)} ago"
            )
            why = f": {lease.dead_letter_error}" if lease.dead_letter_error else ""
            said = f"{counted(lease.dead_letters, 'dead letter')}{latest}{why}"
        case Concern.LOST_WORKERS:
            said = lease.blame
        case Status.WAITING:
            said = None
        case _:
            said = view.because
    return None if said is None else printable(mask_url(said))[:QUOTED_MAX]
