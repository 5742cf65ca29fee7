"""All checks in order: from what everything stands on to what people see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from feedq.diagnosis.broker_checks import check_broker
from feedq.diagnosis.checks import Check, Level, fail, one_line
from feedq.diagnosis.database_checks import check_database
from feedq.diagnosis.fleet_checks import fleet_checks
from feedq.diagnosis.host import check_open_files
from feedq.diagnosis.schedule_checks import declaration_checks, job_checks
from feedq.diagnosis.sink_checks import check_sinks
from feedq.diagnosis.task_checks import check_tasks
from feedq.errors import FeedqError
from feedq.model import FeedView, WorkerView
from feedq.schedule.model import ScheduleSpec, UnreadableSpec
from feedq.settings import Settings
from feedq.store.base import Store
from feedq.store.insight import FleetState, JobState, scheduled_tasks


def diagnose(
    store: Store,
    fleet_state: Callable[[], FleetState | None],
    job_state: Callable[[], JobState | None],
    declared: Callable[[], Mapping[str, ScheduleSpec | UnreadableSpec]],
    settings: Settings,
) -> Iterator[Check]:
    """One check after the other, each as soon as it is done; every one of them is bounded in time."""
    feeds: list[FeedView] = []
    workers: list[WorkerView] = []
    state: FleetState | None = None
    jobs: JobState | None = None
    unreadable: FeedqError | None = None
    try:
        feeds, workers, state = store.feeds.views(), store.workers.views(), fleet_state()
        jobs = job_state()
    except FeedqError as error:
        # The checks of the database say why, and better.
        unreadable = error
    database = list(check_database(settings.database_url.get_secret_value(), workers=len(workers)))
    yield from database
    yield from check_broker(settings.broker_url.get_secret_value())
    yield from check_sinks(settings, [view.feed for view in feeds if view.feed.removed_at is None])
    if unreadable is None:
        yield from check_open_files(workers)
        interval_s = settings.reconcile_interval_s
        yield from fleet_checks(feeds, workers, state, reconcile_interval_s=interval_s, rules=settings.rules)
        if jobs is not None:
            yield from job_checks(jobs)
            yield from _declarations(declared)
        if jobs is not None and jobs.active:
            yield from _tasks(settings)
    elif not any(check.level is Level.FAIL for check in database):
        yield fail("tables", one_line(unreadable), "see the checks of the database")


def _declarations(declared: Callable[[], Mapping[str, ScheduleSpec | UnreadableSpec]]) -> Iterator[Check]:
    try:
        yield from declaration_checks(declared())
    except FeedqError as error:
        yield fail("tables", one_line(error), "see the checks of the database")


def _tasks(settings: Settings) -> Iterator[Check]:
    try:
        yield from check_tasks(scheduled_tasks(settings.database_url.get_secret_value()))
    except FeedqError as error:
        yield fail("tables", one_line(error), "see the checks of the database")
