"""All checks in order: from what everything stands on to what people see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerView
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.verbs.diagnosis.alert_checks import check_alerts
from feedq.verbs.diagnosis.broker_checks import check_broker
from feedq.verbs.diagnosis.checks import Check, Level, fail
from feedq.verbs.diagnosis.database_checks import check_database
from feedq.verbs.diagnosis.host import check_open_files
from feedq.verbs.diagnosis.sink_checks import TARGETS_MAX, check_sinks
from feedq.verbs.report.fleet_data import read_tables


def diagnose(store: PostgresStore, settings: Settings) -> Iterator[Check]:
    """One check after the other, each as soon as it is done; every one of them is bounded in time."""
    workers: Sequence[WorkerView] = ()
    unreadable, of_tables, of_sinks = None, list[Check](), check_sinks(settings)
    try:
        fleet, of_tables = read_tables(store, settings)
        workers = fleet.workers
        uses = store.listing.sinks(each=TARGETS_MAX)
        of_sinks = check_sinks(settings, uses, store.listing.identities())
    except FeedqError as error:
        unreadable = error
    database = list(check_database(settings.database_url.get_secret_value(), workers=len(workers)))
    yield from database
    yield from check_broker(settings.broker_url.get_secret_value())
    yield from of_sinks
    yield from check_alerts(settings)
    if unreadable is None:
        yield from check_open_files(workers)
        yield from of_tables
    elif not any(check.level is Level.FAIL for check in database):
        # Otherwise the checks of the database say why, and better.
        yield fail("tables", str(unreadable), "see the checks of the database")
