"""The fleet in numbers, read in a few statements however many feeds there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerView
from feedq.settings import Settings
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.diagnosis.fleet_checks import Overview, fleet_checks, summary
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
    """With warnings that name some feeds and schedules. Raises `Unavailable`."""
    tallies, feeds = store.listing.tallies(), store.listing.notable(TROUBLED, each=NAMED_MAX)
    workers, state, jobs = store.workers.views(), store.fleet_state(), store.job_state()
    interval_s = settings.reconcile_interval_s
    checks = [
        *fleet_checks(feeds, workers, state, reconcile_interval_s=interval_s, tallies=tallies),
        # Labels and tenants take a look at every feed, which is the doctor's.
        *placing_checks((), workers, settings.rules),
        *job_checks(jobs),
        *(declaration_checks(store.jobs.schedules.specs()) if jobs.schedules else ()),
    ]
    warnings = [check for check in checks if check.level in (Level.WARN, Level.FAIL)]
    return FleetData(state, jobs, summary(tallies, workers), tallies, workers, warnings)
