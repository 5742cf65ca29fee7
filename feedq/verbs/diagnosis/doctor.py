"""All checks in order: from what everything stands on to what people see. Targets of alerts are looked at here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from feedq.control.store.postgresql import PostgresStore
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.verbs.alerts import AlertTarget, targets_of
from feedq.verbs.diagnosis.checks import Check, Level, fail, not_checked, ok
from feedq.verbs.diagnosis.server_checks import check_broker, check_database
from feedq.verbs.diagnosis.sink_checks import TARGETS_MAX, check_sinks
from feedq.verbs.fleet import ALERTS, read_tables
from feedq.verbs.wording import counted

TRIED_AT_ONCE: Final = 10
"""Each message has a process of its own for as long as it is on its way."""
ADVICE: Final = "fix its address in FEEDQ_ALERT_URLS or FEEDQ_TENANT_ALERT_URLS, or the server behind it"


def diagnose(store: PostgresStore, settings: Settings) -> Iterator[Check]:
    """One check after the other, each as soon as it is done; every one of them is bounded in time."""
    workers, unreadable, of_tables, of_sinks = 0, None, list[Check](), check_sinks(settings)
    try:
        fleet, of_tables = read_tables(store, settings)
        workers = len(fleet.workers)
        uses = store.listing.sinks(each=TARGETS_MAX)
        of_sinks = check_sinks(settings, uses, store.listing.identities())
    except FeedqError as error:
        unreadable = error
    database = list(check_database(settings.database_url.get_secret_value(), workers=workers))
    yield from database
    yield from check_broker(settings.broker_url.get_secret_value())
    yield from of_sinks
    yield from check_alerts(settings)
    if unreadable is None:
        yield from of_tables
    elif not any(check.level is Level.FAIL for check in database):
        # Otherwise the checks of the database say why, and better.
        yield fail("tables", str(unreadable), "see the checks of the database")


def check_alerts(settings: Settings) -> Iterator[Check]:
    """How many targets there are, none of which is tried."""
    if targets := targets_of(settings):
        yield not_checked(
            ALERTS, counted(len(targets), "target"), "feedq doctor --alerts sends each a message"
        )


def send_tests(settings: Settings) -> Iterator[Check]:
    """Whether each target takes a message."""
    if targets := targets_of(settings):
        with ThreadPoolExecutor(TRIED_AT_ONCE) as threads:
            yield from threads.map(_tried, targets)
    else:
        yield fail(
            ALERTS, "no target is set up", "set FEEDQ_ALERT_URLS to URLs of apprise, separated by spaces"
        )


def _tried(target: AlertTarget) -> Check:
    try:
        target.send("feedq: a test", "Alerts arrive here.", good=True)
    except FeedqError as error:
        return fail(ALERTS, str(error), ADVICE)
    return ok(ALERTS, f"{target.shown} accepted a message")
