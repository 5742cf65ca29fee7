"""The fleet: at a glance, its problems and all checks, its workers, its history, and the tokens of its API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.history import EventFilter, ListedEvent
from feedq.control.store.landed_counts import LandedBucket, Span
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.tokens import DAYS_MAX
from feedq.core.model import FeedView, WorkerState, WorkerTarget, WorkerView
from feedq.core.passwords import masked
from feedq.core.roles import AccessRole, AccessToken
from feedq.core.selection import Selection
from feedq.core.values import check_name
from feedq.errors import Conflict, FeedqError, InvalidInput, NotFound
from feedq.settings import Settings
from feedq.telemetry.event_names import EventKind
from feedq.verbs.details import masked_view
from feedq.verbs.diagnosis.checks import REASONS, TROUBLED, Check, Level, fail, not_checked, ok, problems
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
from feedq.verbs.wording import ID_SHOWN, NAMED_MAX, counted

if TYPE_CHECKING:
    from feedq.verbs.alerts import AlertTarget

DAY_S: Final = 86_400
ALERTS: Final = "alerts"
"""The name of the checks of alert targets."""
TRIED_AT_ONCE: Final = 10
"""Each message has a process of its own for as long as it is on its way."""
ADVICE: Final = "fix its address in FEEDQ_ALERT_URLS or FEEDQ_TENANT_ALERT_URLS, or the server behind it"

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


class WorkerAction(StrEnum):
    """Actions on a worker."""

    CORDON = "cordon"
    """It keeps its feeds and is given no more."""
    DRAIN = "drain"
    """It hands its feeds over to other workers and is given no more."""
    UNCORDON = "uncordon"
    """It is given feeds again."""


_TARGETS = {
    WorkerAction.CORDON: WorkerTarget.CORDONED,
    WorkerAction.DRAIN: WorkerTarget.DRAINED,
    WorkerAction.UNCORDON: WorkerTarget.SERVING,
}


@dataclass(frozen=True, slots=True)
class WorkerDocument:
    """Everything about a worker."""

    view: WorkerView
    held: Sequence[FeedView]
    """Its feeds and backfills."""


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A new token; ``token`` is shown this once and never again."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class EndedToken:
    """A token that is no longer valid."""

    name: str


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
    return _diagnosis(at, diagnose(at.store, at.settings))


@verb("POST /alerts/test", role=AccessRole.OPERATOR, of_fleet=True)
def try_alerts(at: At) -> Diagnosis:
    """Send a test message to each alert target that is set up on this machine."""
    return _diagnosis(at, send_tests(at.settings))


def _diagnosis(at: At, found: Iterable[Check]) -> Diagnosis:
    checks: list[Check] = []
    for check in found:
        checks.append(check)
        at.told(len(checks), None)
    return Diagnosis(all(check.level is not Level.FAIL for check in checks), checks)


def diagnose(store: PostgresStore, settings: Settings) -> Iterator[Check]:
    """All checks, from what everything stands on to what people see, each as soon as it is done; every one of them
    is bounded in time."""
    from feedq.verbs.diagnosis.server_checks import TARGETS_MAX, check_broker, check_database, check_sinks

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
    from feedq.verbs.alerts import targets_of

    if targets := targets_of(settings):
        yield not_checked(
            ALERTS, counted(len(targets), "target"), "feedq doctor --alerts sends each a message"
        )


def send_tests(settings: Settings) -> Iterator[Check]:
    """Whether each target takes a message."""
    from concurrent.futures import ThreadPoolExecutor

    from feedq.verbs.alerts import targets_of

    if targets := targets_of(settings):
        with ThreadPoolExecutor(TRIED_AT_ONCE) as threads:
            yield from threads.map(_tried, targets)
    else:
        yield fail(ALERTS, "no target is set up", "set FEEDQ_ALERT_URLS to apprise URLs, separated by spaces")


def _tried(target: AlertTarget) -> Check:
    try:
        target.send("feedq: a test", "Alerts arrive here.", good=True)
    except FeedqError as error:
        return fail(ALERTS, str(error), ADVICE)
    return ok(ALERTS, f"{target.shown} accepted a message")


# -- workers -------------------------------------------------------------------------------------------


@verb("GET /workers", of_fleet=True)
def list_workers(at: At, *, gone: bool = False) -> Page[WorkerView]:
    """List workers by name; with ``gone``, also those whose sessions have ended."""
    return Page(at.store.workers.views(gone=gone))


@verb("GET /workers/{name}", of_fleet=True)
def show_worker(at: At, *, name: NameArgument) -> WorkerDocument:
    """Show one worker, by its name, the part of the name before the ``@``, its id, or the first characters of the
    id.
    """
    view = find_worker(at.store, name)
    return WorkerDocument(view, list(map(masked_view, at.store.feeds.views(worker=view.worker.name))))


@verb("POST /workers/{name}/act", role=AccessRole.OPERATOR, of_fleet=True)
def act_on_worker(at: At, *, name: NameArgument, action: WorkerAction, dry_run: bool = False) -> WorkerView:
    """Cordon or drain a worker, or let it take feeds again."""
    found, target = find_worker(at.store, name), _TARGETS[action]
    if dry_run:
        return found
    is_active = found.worker.state is WorkerState.ACTIVE
    if not (is_active and at.store.workers.set_target(found.worker.id, target)):
        raise Conflict(f"worker {found.worker.name!r} is stopping: it releases its feeds and takes no more")
    return replace(found, worker=replace(found.worker, target_state=target))


def find_worker(store: PostgresStore, name: str) -> WorkerView:
    """A live worker by its name, the part of it before the ``@``, its id, or the first eight or more characters of
    its id, as lists show them.

    Raises `NotFound`, `InvalidInput`.
    """
    live = store.workers.views()
    found = [v for v in live if v.worker.name == name] or [
        v for v in live if v.worker.name.partition("@")[0] == name
    ]
    if not found and len(name) >= ID_SHOWN:
        found = [v for v in live if str(v.worker.id).startswith(name.lower())]
    if not found:
        names = ", ".join(sorted(v.worker.name for v in live)) or "none"
        raise NotFound(f"no worker {name!r}; running are: {names}")
    if len(found) > 1:
        meant = ", ".join(f"{v.worker.name} ({v.worker.id})" for v in found)
        raise InvalidInput(f"{name!r} matches {len(found)} workers; give the whole name or the id: {meant}")
    return found[0]


# -- history -------------------------------------------------------------------------------------------


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


# -- tokens of the API ---------------------------------------------------------------------------------


@verb("GET /tokens", role=AccessRole.ADMIN, of_fleet=True)
def list_tokens(at: At) -> Page[AccessToken]:
    """List tokens by name, without their secrets."""
    return Page(at.store.tokens.all())


@verb("POST /tokens", role=AccessRole.ADMIN, of_fleet=True)
def add_token(
    at: At,
    *,
    name: NameArgument,
    role: AccessRole,
    tenant: NameArgument | None = None,
    days: Annotated[float, Meta(gt=0, le=DAYS_MAX)] = 90.0,
) -> MadeToken:
    """Make a token for a person or program, for everything or for one tenant."""
    try:
        check_name(name)
    except ValueError as error:
        raise InvalidInput(f"name: {error}") from None
    return MadeToken(name, at.store.tokens.add(name, role, tenant=tenant, lasts_s=days * DAY_S))


@verb("DELETE /tokens/{name}", role=AccessRole.ADMIN, of_fleet=True)
def remove_token(at: At, *, name: NameArgument) -> EndedToken:
    """End a token at once."""
    at.store.tokens.remove(name)
    return EndedToken(name)
