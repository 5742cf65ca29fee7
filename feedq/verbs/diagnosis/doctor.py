"""All checks in order: from what everything stands on to what people see.

Those of the tables are made elsewhere; open files and targets of alerts are looked at here.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerView
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.verbs.alerts import AlertTarget, targets_of
from feedq.verbs.diagnosis.checks import Check, Level, fail, not_checked, ok, warn
from feedq.verbs.diagnosis.server_checks import check_broker, check_database
from feedq.verbs.diagnosis.sink_checks import TARGETS_MAX, check_sinks
from feedq.verbs.fleet import ALERTS, read_tables
from feedq.verbs.wording import counted, some

THIS_PROCESS: Final = 0
"""As `resource.prlimit` names it."""
FILES_BESIDE_FEEDS = 100
"""Descriptors of a worker that are no feed's: databases, broker, libraries, log."""
TRIED_AT_ONCE: Final = 10
"""Each message has a process of its own for as long as it is on its way."""
ADVICE: Final = "mend its address in FEEDQ_ALERT_URLS or FEEDQ_TENANT_ALERT_URLS, or the server behind it"


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


def check_open_files(workers: Sequence[WorkerView]) -> Iterator[Check]:
    """``ulimit -n`` of each worker on this machine, or of this shell for the largest when none runs here."""
    here = [view.worker for view in workers if view.worker.host == socket.gethostname()]
    asked = [(worker.name, _limit_of(worker.pid), worker.capacity) for worker in here]
    if not here:
        largest = max((view.worker.capacity for view in workers), default=0)
        asked = [("a worker started from this shell", _limit_of(THIS_PROCESS), largest)]
    if hidden := [name for name, limit, _ in asked if limit is None]:
        yield not_checked(
            "open files",
            f"the limit of {some(hidden)} cannot be read from here",
            "run feedq doctor as the user that the worker runs as",
        )
    known = [(limit, name, feeds) for name, limit, feeds in asked if limit is not None]
    short = [(limit, name, feeds) for limit, name, feeds in known if limit < feeds + FILES_BESIDE_FEEDS]
    for limit, name, feeds in short:
        needed = feeds + FILES_BESIDE_FEEDS
        yield warn(
            "open files",
            f"{name} may open {limit} files, fewer than the {needed} that {counted(feeds, 'feed')} need",
            f"raise the limit before starting it: ulimit -n {2 * needed}",
        )
    if known and not short:
        limit, name, _ = min(known)
        yield ok("open files", f"{name} may open {limit}")


def _limit_of(pid: int) -> int | None:
    """How many files a process may open; None where that cannot be told: another user's process, or not Linux."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except (AttributeError, OSError):
        return None
    return 2**31 if soft == resource.RLIM_INFINITY else soft


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
            ALERTS, "there is no target", "set FEEDQ_ALERT_URLS to addresses of apprise, spaces between"
        )


def _tried(target: AlertTarget) -> Check:
    try:
        target.send("feedq: a test", "Alerts arrive here.", good=True)
    except FeedqError as error:
        return fail(ALERTS, str(error), ADVICE)
    return ok(ALERTS, f"{target.shown} took a message")
