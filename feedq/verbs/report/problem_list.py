"""Everything that somebody has to look at, worst first: feeds one by one, and what is wrong with all of them.

The words are those of `feedq status` and of the page of a feed: `feedq.verbs.diagnosis` makes both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedView, Status
from feedq.core.remedies import command
from feedq.settings import Settings
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.report.fleet_data import FleetData, read_fleet
from feedq.verbs.troubles import EXPECTATION, RANKS, TROUBLED, Tone, trouble_of
from feedq.verbs.wording import said

EACH_MAX: Final = 50
"""Feeds of each status, and of each reason to wait, that are listed one by one."""
OF_FEEDS: Final = ("feeds", "expectations")
"""Checks that count what is listed here one by one."""


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """One thing that somebody has to look at."""

    level: Level
    name: str
    """What is wrong: the status of a feed, or the name of a check."""
    feed: str | None
    """None: it concerns more than one feed."""
    since: datetime | None
    """None when nobody knows."""
    detail: str
    advice: str


def read_problems(store: PostgresStore, settings: Settings) -> list[ListedProblem]:
    """Raises `Unavailable`."""
    return read_problems_and_feeds(store, settings)[0]


def read_problems_and_feeds(
    store: PostgresStore, settings: Settings
) -> tuple[list[ListedProblem], dict[str, FeedView], FleetData]:
    """Read the feeds by name, and the fleet, too. Raises `Unavailable`."""
    data = read_fleet(store, settings)
    views = store.listing.notable(TROUBLED, each=EACH_MAX)

    def explained(view: FeedView) -> str | None:
        return explain(view, data.workers, now=data.state.now, rules=settings.rules)

    advice = {view.feed.name: explained(view) for view in views}
    found = problems(views, data.warnings, data.tallies, advice)
    return found, {view.feed.name: view for view in views}, data


def problems(
    views: Sequence[FeedView],
    warnings: Sequence[Check],
    tallies: Sequence[StatusCount],
    advice: dict[str, str | None],
) -> list[ListedProblem]:
    """Put them in order. Pure."""
    fleet = [check for check in warnings if check.name not in OF_FEEDS]
    failed = [_of_check(check) for check in fleet if check.level is Level.FAIL]
    warned = [_of_check(check) for check in fleet if check.level is Level.WARN]
    found = [one for view in views for one in _of_feed(view, advice[view.feed.name])]
    found.sort(key=lambda item: (item[0], item[1].feed or ""))
    return [*failed, *(one for _, one in found), *warned, *_left_out(views, tallies)]


def _of_check(check: Check) -> ListedProblem:
    return ListedProblem(check.level, check.name, None, None, check.detail, check.advice)


def _of_feed(view: FeedView, advice: str | None) -> Iterator[tuple[int, ListedProblem]]:
    """What is wrong with a feed, each with its rank."""
    name, lease = view.feed.name, view.lease
    rank = RANKS.get(view.status, len(RANKS))
    if (trouble := trouble_of(view.status, lease.reason)) is not None:
        level = Level.FAIL if trouble.tone is Tone.WORST else Level.WARN
        since = lease.blamed_at if view.status is Status.QUARANTINED else None
        because = said(view.because or "nobody knows why")
        yield (
            rank,
            ListedProblem(level, view.status, name, since, because, advice or trouble.remedy_of(name)),
        )
    unexpected = trouble_of(EXPECTATION)
    assert unexpected is not None
    for unmet in view.unmet:
        yield (
            min(rank, RANKS[EXPECTATION]),
            ListedProblem(
                Level.WARN, EXPECTATION, name, unmet.since, unmet.said, advice or unexpected.remedy_of(name)
            ),
        )


def _left_out(views: Sequence[FeedView], tallies: Sequence[StatusCount]) -> Iterator[ListedProblem]:
    """Say how many more there are of each trouble."""
    for status in TROUBLED:
        more = sum(tally.feeds for tally in tallies if tally.status is status) - sum(
            view.status is status for view in views
        )
        if more > 0:
            listed = f"`{command('feed', 'list', '--status', status)}` lists them"
            yield ListedProblem(Level.WARN, status, None, None, f"{more:,} more feeds are {status}", listed)
