"""All checks in order: from what everything stands on to what people see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from feedq.control.store.fleet_state import FleetState, JobState, scheduled_tasks
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedView, WorkerView
from feedq.core.schedule.model import ScheduleSpec, UnreadableSpec
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.verbs.diagnosis.alert_checks import check_alerts
from feedq.verbs.diagnosis.broker_checks import check_broker
from feedq.verbs.diagnosis.checks import Check, Level, fail
from feedq.verbs.diagnosis.database_checks import check_database
from feedq.verbs.diagnosis.fleet_checks import fleet_checks, wants_place
from feedq.verbs.diagnosis.host import check_open_files
from feedq.verbs.diagnosis.placement_checks import placing_checks
from feedq.verbs.diagnosis.schedule_checks import check_tasks, declaration_checks, job_checks
from feedq.verbs.diagnosis.sink_checks import check_sinks


def diagnose(
    store: PostgresStore,
    fleet_state: Callable[[], FleetState],
    job_state: Callable[[], JobState],
    declared: Callable[[], Mapping[str, ScheduleSpec | UnreadableSpec]],
    settings: Settings,
) -> Iterator[Check]:
    """One check after the other, each as soon as it is done; every one of them is bounded in time."""
    feeds: list[FeedView] = []
    workers: list[WorkerView] = []
    of_tables: list[Check] = []
    url = settings.database_url.get_secret_value()
    try:
        feeds, workers, state = store.feeds.views(), store.workers.views(), fleet_state()
        jobs = job_state()
    except FeedqError as error:
        unreadable: FeedqError | None = error
    else:
        unreadable = None
        interval_s, rules = settings.reconcile_interval_s, settings.rules
        of_tables += fleet_checks(feeds, workers, state, reconcile_interval_s=interval_s)
        of_tables += placing_checks([one.feed for one in feeds if wants_place(one)], workers, rules)
        of_tables += job_checks(jobs)
    database = list(check_database(url, workers=len(workers)))
    yield from database
    yield from check_broker(settings.broker_url.get_secret_value())
    yield from check_sinks(settings, [view.feed for view in feeds if view.feed.removed_at is None])
    yield from check_alerts(settings)
    if unreadable is None:
        yield from check_open_files(workers)
        yield from of_tables
        yield from _of_tables(lambda: declaration_checks(declared()))
        if jobs.active:
            yield from _of_tables(lambda: check_tasks(scheduled_tasks(url)))
    elif not any(check.level is Level.FAIL for check in database):
        # Otherwise the checks of the database say why, and better.
        yield _tables_failed(unreadable)


def _of_tables(checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Checks that read tables of their own."""
    try:
        yield from checks()
    except FeedqError as error:
        yield _tables_failed(error)


def _tables_failed(error: FeedqError) -> Check:
    return fail("tables", str(error), "see the checks of the database")
