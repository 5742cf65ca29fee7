"""The fleet as a whole: at a glance, its problems, its checks, its history, and what feeds can be made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.history import EventFilter, ListedEvent
from feedq.control.store.postgresql import PostgresStore
from feedq.core.landed import LandedBucket, Span
from feedq.core.model import WorkerView
from feedq.core.passwords import masked
from feedq.core.roles import AccessRole
from feedq.core.selection import Selection
from feedq.settings import Settings
from feedq.telemetry.event_names import EventKind
from feedq.verbs.diagnosis.checks import Check, Level, problems
from feedq.verbs.diagnosis.feed_checks import TENANTS_MAX, explain, feed_checks
from feedq.verbs.diagnosis.fleet_checks import (
    Overview,
    check_tasks,
    fleet_checks,
    job_checks,
    placing_checks,
    summary,
)
from feedq.verbs.registry import (
    At,
    Cursor,
    Limit,
    Moment,
    NameArgument,
    Names,
    Page,
    page_of,
    page_place,
    verb,
)
from feedq.verbs.troubles import REASONS, TROUBLED
from feedq.verbs.wording import NAMED_MAX

ALERTS: Final = "alerts"
"""The name of the checks of alert targets."""

# What takes long to load, and `feedq status` has no use for, is imported where it is used.


@dataclass(frozen=True, slots=True)
class FleetData:
    """The whole fleet in numbers, and its workers one by one."""

    state: FleetState
    jobs: JobState
    numbers: Overview
    workers: Sequence[WorkerView]
    warnings: Sequence[Check]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `feedq doctor` found."""

    healthy: bool
    """Whether no check has failed."""
    checks: list[Check]


@dataclass(frozen=True, slots=True)
class Landed:
    """What a feed landed, in buckets of equal length, the oldest first."""

    name: str
    span: Span
    bucket_s: int
    buckets: list[LandedBucket]


@verb("GET /status", of_fleet=True)
def show_status(at: At) -> FleetData:
    """Show the fleet at a glance, and what is wrong with it."""
    return read_tables(at.store, at.settings)[0]


@verb("GET /problems", of_fleet=True)
def list_problems(at: At) -> Page[Check]:
    """List everything in the control tables that needs attention, worst first.

    These are the warnings of the status and the doctor, without what the doctor tries from its own machine. Feeds
    are grouped by problem and tenant.
    """
    return Page(problems(read_tables(at.store, at.settings)[0].warnings))


def read_tables(store: PostgresStore, settings: Settings) -> tuple[FleetData, list[Check]]:
    """With all checks, those that came out well too. Raises `Unavailable`."""
    tallies, troubles = store.listing.survey(TROUBLED, REASONS, each=NAMED_MAX, tenants=TENANTS_MAX)
    workers = store.workers.views()
    state, jobs = store.fleet_state(), store.job_state()
    numbers, rules = summary(tallies, workers), settings.rules
    explained = partial(explain, workers=workers, now=state.now, rules=rules)
    checks = [
        *fleet_checks(numbers, workers, state, reconcile_interval_s=settings.reconcile_interval_s),
        *feed_checks(troubles, numbers, now=state.now, explained=explained),
        *placing_checks(store.listing.placing(each=NAMED_MAX), workers),
        *job_checks(jobs),
        *(check_tasks(store.scheduled_tasks()) if jobs.active else ()),
    ]
    warnings = [check for check in checks if check.level in (Level.WARN, Level.FAIL)]
    return FleetData(state, jobs, numbers, workers, warnings), checks


@verb("GET /doctor", of_fleet=True)
def diagnose_fleet(at: At) -> Diagnosis:
    """Run all checks on the machine of the API, with its settings, and say what to fix."""
    from feedq.verbs.diagnosis.doctor import diagnose

    return _diagnosis(_told(at, diagnose(at.store, at.settings)))


@verb("POST /alerts/test", role=AccessRole.OPERATOR, of_fleet=True)
def try_alerts(at: At) -> Diagnosis:
    """Send a test message to each alert target that is set up on this machine."""
    from feedq.verbs.diagnosis.doctor import send_tests

    return _diagnosis(send_tests(at.settings))


def _told(at: At, found: Iterable[Check]) -> Iterator[Check]:
    for number, check in enumerate(found, 1):
        at.told(number, None)
        yield check


def _diagnosis(found: Iterable[Check]) -> Diagnosis:
    checks = list(found)
    return Diagnosis(all(check.level is not Level.FAIL for check in checks), checks)


@verb("GET /events")
def list_events(
    at: At,
    *,
    feed: NameArgument | None = None,
    kinds: tuple[EventKind, ...] = (),
    tenant: NameArgument | None = None,
    since: Moment | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[ListedEvent]:
    """List the history of one feed or of everything, newest first."""
    if (seen := at.seen(Selection(tenant=tenant))) is None:
        return Page([])
    which = EventFilter(kinds, None if feed is None else at.feed(feed), seen.tenant, since)
    (place,) = page_place(cursor, int) or (None,)
    found = at.store.history.before(which, place=place, limit=limit + 1)
    page = page_of(found, limit, lambda listed: (listed.id,))
    return Page(list(map(_masked, page.items)), page.next)


def _masked(listed: ListedEvent) -> ListedEvent:
    return replace(listed, event=replace(listed.event, detail=masked(listed.event.detail)))


@verb("GET /feeds/{name}/history")
def show_landed(at: At, *, name: NameArgument, span: Span = Span.HOUR) -> Landed:
    """Show what a feed landed in the last hour, by minutes, or in the last day, by quarters of an hour."""
    buckets = at.store.landed.of_feed(at.feed(name).id, span)
    return Landed(name, span, span.bucket_s, list(buckets))


@verb("GET /landed")
def list_landed(at: At, *, names: Names) -> dict[str, list[LandedBucket]]:
    """Show what up to 200 feeds landed in each of the last 30 minutes; feeds without counts are skipped."""
    views = at.store.listing.selected(Selection(names=names, tenant=at.caller.tenant, removing=True))
    found = at.store.landed.of_feeds([view.feed.id for view in views])
    return {view.feed.name: found[view.feed.id] for view in views if view.feed.id in found}


@verb("GET /connectors")
def list_connectors(at: At) -> dict[str, dict[str, Any]]:
    """Show the JSON Schemas of the options of all connectors, by kind."""
    from feedq.verbs.json_schema import installed_connectors, options_schema

    return {kind: options_schema(options) for kind, options in installed_connectors().items()}


@verb("GET /connectors/{name}")
def show_connector(at: At, *, name: NameArgument) -> dict[str, Any]:
    """Show the JSON Schema of a connector's options."""
    from feedq.connectors.base import load_connector
    from feedq.verbs.json_schema import options_schema

    return options_schema(load_connector(name).Options)


@verb("GET /schema")
def show_schema(at: At) -> dict[str, Any]:
    """Show the JSON Schema of manifests."""
    from feedq.verbs.json_schema import manifest_schema

    return manifest_schema()
