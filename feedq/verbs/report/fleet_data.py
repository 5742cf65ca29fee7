"""The fleet in numbers, read in a few statements however many feeds there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerView
from feedq.settings import Settings
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.diagnosis.fleet_checks import (
    Overview,
    fleet_checks,
    number_checks,
    summary,
    tally_checks,
)
from feedq.verbs.diagnosis.placement_checks import placing_checks
from feedq.verbs.diagnosis.schedule_checks import declaration_checks, job_checks
from feedq.verbs.troubles import TROUBLED
from feedq.verbs.wording import NAMED_MAX


@dataclass(frozen=True, slots=True)
class FleetData:
    """The whole fleet in numbers, and its workers one by one."""

    state: FleetState
    jobs: JobState
    numbers: Overview
    tallies: Sequence[StatusCount]
    workers: Sequence[WorkerView]
    warnings: Sequence[Check]


def read_fleet(store: PostgresStore, settings: Settings) -> FleetData:
    """Raises `Unavailable`."""
    workers = store.workers.views()
    tallies = store.listing.tallies()
    state, jobs = store.fleet_state(), store.job_state()
    numbers = summary(tallies, workers)
    checks = [
        *number_checks(numbers, workers, state, reconcile_interval_s=settings.reconcile_interval_s),
        *placing_checks((), workers, settings.rules),
        *tally_checks(tallies),
        *job_checks(jobs),
    ]
    return FleetData(state, jobs, numbers, tallies, workers, _bad(checks))


def read_status(store: PostgresStore, settings: Settings) -> FleetData:
    """The same, with warnings that name feeds and schedules. Raises `Unavailable`."""
    rules = settings.rules
    tallies = store.listing.tallies()
    # Of tenants with a bound, each feed is counted.
    feeds = store.feeds.views() if rules.tenant_caps else store.listing.notable(TROUBLED, each=NAMED_MAX)
    workers, state, jobs = store.workers.views(), store.fleet_state(), store.job_state()
    interval_s = settings.reconcile_interval_s
    checks = [
        *fleet_checks(feeds, workers, state, reconcile_interval_s=interval_s, rules=rules, tallies=tallies),
        *job_checks(jobs),
        *(declaration_checks(store.jobs.schedules.specs()) if jobs.schedules else ()),
    ]
    return FleetData(state, jobs, summary(tallies, workers), tallies, workers, _bad(checks))


def _bad(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.level in (Level.WARN, Level.FAIL)]
