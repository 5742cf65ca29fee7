"""The fleet in numbers, and all that the control tables tell is wrong: one list for `feedq status`, *Problems* and
`feedq doctor`, read in a few statements however many feeds there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerView
from feedq.settings import Settings
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.diagnosis.feed_checks import TENANTS_MAX, feed_checks
from feedq.verbs.diagnosis.fleet_checks import Overview, fleet_checks, summary
from feedq.verbs.diagnosis.placement_checks import placing_checks
from feedq.verbs.diagnosis.schedule_checks import check_tasks, declaration_checks, job_checks
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.troubles import REASONS, TROUBLED
from feedq.verbs.wording import NAMED_MAX


@dataclass(frozen=True, slots=True)
class FleetData:
    """The whole fleet in numbers, and its workers one by one."""

    state: FleetState
    jobs: JobState
    numbers: Overview
    workers: Sequence[WorkerView]
    warnings: Sequence[Check]


def read_fleet(store: PostgresStore, settings: Settings) -> FleetData:
    """Raises `Unavailable`."""
    return read_tables(store, settings)[0]


def read_tables(store: PostgresStore, settings: Settings) -> tuple[FleetData, list[Check]]:
    """With all checks, those that came out well too. Raises `Unavailable`."""
    tallies, workers = store.listing.tallies(), store.workers.views()
    state, jobs = store.fleet_state(), store.job_state()
    numbers = summary(tallies, workers)
    checks = list(_checks(store, settings, numbers, workers, state, jobs))
    warnings = [check for check in checks if check.level in (Level.WARN, Level.FAIL)]
    return FleetData(state, jobs, numbers, workers, warnings), checks


def _checks(
    store: PostgresStore,
    settings: Settings,
    numbers: Overview,
    workers: Sequence[WorkerView],
    state: FleetState,
    jobs: JobState,
) -> Iterator[Check]:
    rules, listing = settings.rules, store.listing
    yield from fleet_checks(numbers, workers, state, reconcile_interval_s=settings.reconcile_interval_s)
    troubles = listing.troubles(TROUBLED, REASONS, each=NAMED_MAX, tenants=TENANTS_MAX)
    explained = partial(explain, workers=workers, now=state.now, rules=rules)
    yield from feed_checks(troubles, numbers, now=state.now, explained=explained)
    required = listing.placing(each=NAMED_MAX)
    tenants = listing.wanted_of_tenants() if rules.tenant_caps else {}
    yield from placing_checks(required, tenants, workers, rules)
    yield from job_checks(jobs)
    if jobs.schedules:
        yield from declaration_checks(store.jobs.schedules.all())
    if jobs.active:
        yield from check_tasks(store.scheduled_tasks())
