"""Declarations of feeds, schedules and queues: to apply them, and to list what is declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.control.store.feeds import FeedChange, Feeds
from feedq.control.store.postgresql import JobStore
from feedq.core.differences import Action, Change, OptionChange, plan
from feedq.core.model import Feed, FeedSpec, StartCursor, TargetState, Version, require_version
from feedq.core.passwords import mask_url, masked
from feedq.core.roles import AccessRole
from feedq.core.schedule.model import Schedule
from feedq.core.schedule.spec import Queue, ScheduleSpec
from feedq.core.selection import ALL, Selection
from feedq.errors import Conflict, FeedqError, Forbidden, InvalidInput, NotFound, Outdated
from feedq.sinks.base import parse_sink
from feedq.telemetry.event_names import EventKind
from feedq.verbs import bulk
from feedq.verbs.bulk import Outcomes
from feedq.verbs.cursors import Starts, add_elsewhere, begun, resumes_of
from feedq.verbs.manifests import OPTION_KEYS, option_problems
from feedq.verbs.registry import (
    At,
    Cursor,
    Expected,
    Limit,
    NameArgument,
    Names,
    Page,
    Told,
    etag_of,
    page_of,
    page_place,
    verb,
    version_of,
)
from feedq.verbs.schedules import why_never

DECLARED_MAX: Final = 20_000
"""Declarations of one call."""

Many = Meta(max_length=DECLARED_MAX)


@dataclass(frozen=True, slots=True)
class ChangeDocument:
    """A feed, schedule or queue that is not as declared."""

    kind: str
    name: str
    action: Action
    options: Sequence[OptionChange] = ()
    """What differs; passwords in URLs are masked."""
    note: str | None = None
    """What else to know about it."""
    error: str | None = None
    """The class of the error, if it could not be changed."""
    detail: str | None = None
    """What the error says."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What was changed so that everything is as declared; in a dry run, what would be."""

    added: int
    changed: int
    removed: int
    unchanged: int
    changes: Sequence[ChangeDocument]
    """What was changed, and what could not be."""
    warnings: Sequence[str] = ()
    """What is probably not meant: sinks that could not be asked whether they know the new feeds, and changed
    schedules that have no tick to come or, once they are declared, that no worker can run."""
    etag: str | None = None
    """Of the feed or schedule, when a single one was changed."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Removals:
    """What to remove, by name."""

    feeds: Names = ()
    schedules: Names = ()
    queues: Names = ()


@dataclass(frozen=True, slots=True)
class FeedDeclaration:
    """A feed as it stands in a manifest."""

    declaration: FeedSpec
    etag: str


@dataclass(frozen=True, slots=True)
class ScheduleDeclaration:
    """A schedule as it stands in a manifest; or why this release cannot read it."""

    name: str
    declaration: ScheduleSpec | None
    unreadable: str | None
    etag: str


NOTHING: Final = Removals()


@verb("POST /declarations", role=AccessRole.OPERATOR)
def declare(
    at: At,
    *,
    feeds: Annotated[tuple[FeedSpec, ...], Many] | None = None,
    schedules: Annotated[tuple[ScheduleSpec, ...], Many] | None = None,
    queues: Annotated[tuple[Queue, ...], Many] | None = None,
    remove: Removals = NOTHING,
    prune: bool = False,
    tenant: NameArgument | None = None,
    adopt: bool = False,
    expected: Expected = None,
    dry_run: bool = False,
) -> Declared:
    """Make feeds, schedules and queues match their declarations.

    What does not exist is added, what differs is changed, and the rest is left alone. All declarations are checked
    first; if one is wrong, nothing is changed. ``prune`` also removes what is not declared, of each kind that is
    given, or only the feeds of one ``tenant``. With ``adopt``, new feeds continue from checkpoints that feeds of
    the same names left in their sinks. ``expected`` is the ETag of a single existing feed or schedule.
    """
    if tenant is not None:
        at.caller.require_tenant(tenant, f"a feed of tenant {tenant!r}")
        if not prune:
            raise InvalidInput("tenant: limits prune, and has no effect without it")
    if schedules is not None or queues is not None or remove.schedules or remove.queues:
        at.caller.require_everything()
    entries = (*(feeds or ()), *(schedules or ()), *remove.feeds, *remove.schedules)
    if expected is not None and (len(entries) != 1 or queues or remove.queues or prune):
        raise InvalidInput("expected: only for a single feed or schedule")
    prunes_jobs = prune and tenant is None
    of_feeds = _feeds_planned(at, feeds, remove.feeds, prune=prune, tenant=tenant, expected=expected)
    of_schedules = _schedules_planned(at, schedules, remove.schedules, prune=prunes_jobs, expected=expected)
    of_queues = _queues_planned(at, queues, remove.queues, prune=prunes_jobs)
    resumes = {entry.name: entry.resume for entry in feeds or () if entry.resume is not None}
    of_feeds, starts, unasked = begun(of_feeds, resumes, at.open_sink, adopt=adopt)
    # Limits are there before the schedules that they are for, and go after them.
    lifted = [change for change in of_queues if change.action is Action.REMOVE]
    limits = [change for change in of_queues if change.action is not Action.REMOVE]
    others = [*limits, *of_schedules, *lifted]
    made = sum(change.action is not Action.REMOVE for change in (*of_feeds, *others))
    unchanged = sum(len(given or ()) for given in (feeds, schedules, queues)) - made
    if dry_run:
        outcomes: Outcomes[Change, Any] = [(change, None) for change in (*of_feeds, *others)]
    else:
        outcomes = _carried_out(at, of_feeds, starts, others)
    warnings = [*unasked, *_warnings(at, bulk.made(outcomes), dry_run=dry_run)]
    return declared_answer(outcomes, unchanged, warnings=warnings, dry_run=dry_run)


def declared_answer(
    outcomes: Outcomes[Change, Any],
    unchanged: int,
    *,
    warnings: Sequence[str] = (),
    dry_run: bool = False,
) -> Declared:
    """What was changed, and what could not be; in a dry run, what would be changed."""
    done = bulk.made(outcomes)
    made = Counter(change.action for change, _ in done)
    counts = (made[Action.ADD], made[Action.CHANGE], made[Action.REMOVE])
    changes = [
        *(_document(change) for change, _ in done),
        *(_document(*one) for one in bulk.failed(outcomes)),
    ]
    etag = _etag(done[0][1]) if len(done) == 1 else None
    return Declared(*counts, unchanged, changes, warnings, etag, dry_run)


def _warnings(at: At, made: Sequence[tuple[Change, Any]], *, dry_run: bool) -> list[str]:
    """Which of the schedules are probably not as they were meant, and why."""
    specs = [change.spec for change, _ in made if isinstance(change.spec, ScheduleSpec)]
    if not specs:
        return []
    now = at.store.now()
    never = ((spec.name, why_never(spec, now=now)) for spec in specs)
    found = [f"schedule {name}: will never fire: {why}" for name, why in never if why is not None]
    unserved = {} if dry_run else at.store.jobs.schedules.unserved([spec.name for spec in specs])
    return [*found, *(f"schedule {name}: {why}" for name, why in sorted(unserved.items()))]


# -- what is to be done ---------------------------------------------------------------------------------


def _feeds_planned(
    at: At,
    declared: Sequence[FeedSpec] | None,
    remove: Sequence[str],
    *,
    prune: bool,
    tenant: str | None,
    expected: str | None,
) -> list[Change]:
    """Raises `InvalidInput`, `NotFound`, `Outdated`, `Forbidden` when one is or would be of another tenant."""
    specs = declared or ()
    for spec in specs:
        at.caller.require_tenant(spec.tenant, f"a feed of tenant {spec.tenant!r}")
    names = [*(spec.name for spec in specs), *remove]
    there = {feed.name: feed for feed in at.store.feeds.declared(names=names)} if names else {}
    for feed in there.values():
        at.caller.require_tenant(feed.spec.tenant, f"feed {feed.name!r}")
    surplus: list[str] = []
    if prune and declared is not None:
        whose = tenant if at.caller.tenant is None else at.caller.tenant
        found = {feed.name: feed for feed in at.store.feeds.declared(tenant=whose)}
        # What was made from a catalog is left alone: its next sync would only make it again.
        surplus = [feed.name for feed in found.values() if feed.catalog is None]
        there |= found
    before = {name: (feed.spec, feed.version) for name, feed in there.items()}
    planned = _planned("feed", specs, remove, before, surplus=surplus, expected=expected)
    # What is stored has been checked before, and so has what is not changed in it.
    for change in planned:
        is_new = change.action is Action.ADD or any(one.key in OPTION_KEYS for one in change.options)
        if is_new and isinstance(change.spec, FeedSpec) and (wrong := option_problems(change.spec)):
            raise InvalidInput(f"feed {change.name!r}: {'; '.join(wrong)}")
    return planned


def _schedules_planned(
    at: At,
    declared: Sequence[ScheduleSpec] | None,
    remove: Sequence[str],
    *,
    prune: bool,
    expected: str | None,
) -> list[Change]:
    specs, prunes = declared or (), prune and declared is not None
    names = [*(spec.name for spec in specs), *remove]
    # Of a hundred thousand schedules, one that is set need not read the others.
    found = list(at.store.jobs.schedules.all(None if prunes else names)) if names or prunes else []
    there = {one.spec.name: (one.spec, one.version) for one in found}
    unreadable = [one.spec.name for one in found if one.unreadable is not None]
    surplus = there if prunes else ()
    return _planned(
        "schedule", specs, remove, there, surplus=surplus, expected=expected, unreadable=unreadable
    )


def _queues_planned(
    at: At, declared: Sequence[Queue] | None, remove: Sequence[str], *, prune: bool
) -> list[Change]:
    found = at.store.jobs.queues.all() if declared is not None or remove else ()
    there = {queue.name: (queue, None) for queue in found}
    return _planned(
        "queue", declared or (), remove, there, surplus=there if prune and declared is not None else ()
    )


def _planned(
    noun: str,
    declared: Sequence[Any],
    remove: Sequence[str],
    there: Mapping[str, tuple[Any, Version | None]],
    *,
    surplus: Iterable[str],
    expected: str | None = None,
    unreadable: Sequence[str] = (),
) -> list[Change]:
    """Raises `InvalidInput` for a name that is declared or removed twice, `NotFound` for one to be removed, and
    `Outdated` unless what is declared or removed is there as expected.

    The store compares versions again in the transaction that makes the change.
    """
    names = [*(spec.name for spec in declared), *remove]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InvalidInput(f"{noun} {twice[0]!r}: is declared or removed more than once")
    for name in names if expected is not None else ():
        if name not in there:
            raise Outdated(f"no {noun} named {name!r}, but expected says that there is one")
        if (version := there[name][1]) is not None:
            require_version(f"{noun} {name!r}", version, version_of(expected))
    if missing := [name for name in remove if name not in there]:
        raise NotFound(f"no {noun} named {missing[0]!r}")
    return plan(noun, declared, there, remove=[*remove, *surplus], unreadable=unreadable)


# -- doing it -------------------------------------------------------------------------------------------


def _carried_out(
    at: At, of_feeds: Sequence[Change], starts: Starts, others: Sequence[Change]
) -> Outcomes[Change, Any]:
    """Make the changes: feeds first, a few hundred in a transaction; then, one by one, the feeds that begin
    elsewhere than at the beginning of their source, and everything else.

    Raises `Unavailable`; what was done before that stays done, and applying again does the rest.
    """
    elsewhere = [c for c in of_feeds if c.action is Action.ADD and c.name in starts]
    plain = [c for c in of_feeds if c.action is not Action.ADD or c.name not in starts]
    total = len(of_feeds) + len(others)
    with ExitStack() as opened:
        sink = cache(lambda name: opened.enter_context(at.open_sink(name)))

        def one(part: Sequence[Change]) -> list[Feed | Schedule | FeedqError | None]:
            (change,) = part
            try:
                if isinstance(spec := change.spec, FeedSpec):
                    sink_of_it = sink(parse_sink(spec.sink).name)
                    return [add_elsewhere(at.store, sink_of_it, spec, starts[spec.name])]
                return [_change_job(at.store.jobs, change)]
            except (InvalidInput, Conflict, Forbidden) as error:
                return [error]

        return [
            *change_feeds(at.store.feeds, plain, told=lambda done, _: at.told(done, total)),
            *bulk.each(
                [*elsewhere, *others],
                one,
                told=lambda done, _: at.told(len(plain) + done, total),
                at_once=1,
            ),
        ]


def change_feeds(
    feeds: Feeds,
    changes: Sequence[Change],
    *,
    catalog: str | None = None,
    taken_over: Container[str] = (),
    told: Told,
) -> Outcomes[Change, Version]:
    """Make changes of feeds, for a ``catalog`` only those of its own and, by their names, those it takes over.

    A feed that somebody else has changed since the change was decided is left alone.
    Raises `Unavailable`, see `bulk.each`.
    """

    def change(part: Sequence[Change]) -> list[Version | FeedqError]:
        return feeds.change(
            [
                FeedChange(
                    _KINDS[one.action],
                    one.name,
                    one.spec if isinstance(one.spec, FeedSpec) else None,
                    one.version,
                    catalog,
                    one.name in taken_over,
                    one.options,
                )
                for one in part
            ]
        )

    return bulk.each(changes, change, told=told)


_KINDS: Final = {
    Action.ADD: EventKind.FEED_ADDED,
    Action.CHANGE: EventKind.FEED_EDITED,
    Action.REMOVE: EventKind.FEED_REMOVED,
}


def _change_job(jobs: JobStore, change: Change) -> Schedule | None:
    match change.spec:
        case Queue() as queue:
            jobs.queues.set(queue)
        case ScheduleSpec() as spec if change.action is Action.ADD:
            return jobs.schedules.add(spec)
        case ScheduleSpec() as spec:
            return jobs.schedules.edit(change.name, spec, expected=change.version)
        case _ if change.noun == "queue":
            jobs.queues.remove(change.name)
        case _:
            jobs.schedules.remove(change.name, expected=change.version)
    return None


def _document(change: Change, error: FeedqError | None = None) -> ChangeDocument:
    options = [OptionChange(one.option, masked(one.before), masked(one.after)) for one in change.options]
    failed = () if error is None else (type(error).__name__, mask_url(str(error)))
    return ChangeDocument(change.noun, change.name, change.action, options, change.note, *failed)


def _etag(made: Feed | Schedule | Version | None) -> str | None:
    if made is None:
        return None
    return etag_of(made.version if isinstance(made, Feed | Schedule) else made)


# -- what is declared -----------------------------------------------------------------------------------


@verb("GET /declarations/feeds")
def list_declared_feeds(
    at: At,
    *,
    select: Selection = ALL,
    with_cursors: bool = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[FeedDeclaration]:
    """List feeds as they stand in manifests, by name.

    ``with_cursors`` adds where each feed stands in its sink, so that it continues there when it is declared
    elsewhere.
    """
    place = page_place(cursor, str, int) or ("", 0)
    if (seen := at.seen(select)) is None:
        return Page([])
    found = [view.feed for view in at.store.listing.after(seen, place=place, limit=limit + 1)]
    resumes = resumes_of(found[:limit], at.open_sink) if with_cursors else {}
    page = page_of(found, limit, lambda feed: (feed.name, feed.id))
    return Page([_feed_declaration(feed, resumes.get(feed.name)) for feed in page.items], page.next)


def _feed_declaration(feed: Feed, resume: StartCursor | None) -> FeedDeclaration:
    """A feed that runs does not say so: declared again later, it would undo a pause that came between."""
    target = None if feed.spec.target_state is TargetState.RUNNING else feed.spec.target_state
    spec = feed.spec.model_copy(update={"target_state": target, "resume": resume})
    return FeedDeclaration(spec, etag_of(feed.version))


@verb("GET /declarations/schedules", of_fleet=True)
def list_declared_schedules(
    at: At, *, names: Names = (), limit: Limit = 100, cursor: Cursor = None
) -> Page[ScheduleDeclaration]:
    """List schedules as they stand in manifests, by name: all, or the existing ones of these ``names``."""
    (after,) = page_place(cursor, str) or ("",)
    found = at.store.jobs.schedules.declared(names=names or None, after=after, limit=limit + 1)
    page = page_of(found, limit, lambda schedule: (schedule.spec.name,))
    return Page(list(map(_schedule_declaration, page.items)), page.next)


def _schedule_declaration(schedule: Schedule) -> ScheduleDeclaration:
    is_readable = schedule.unreadable is None
    spec = schedule.spec if is_readable else None
    return ScheduleDeclaration(schedule.spec.name, spec, schedule.unreadable, etag_of(schedule.version))


@verb("GET /declarations/queues", of_fleet=True)
def list_declared_queues(at: At) -> Page[Queue]:
    """List the limits of job queues as they stand in manifests, by name."""
    return Page(at.store.jobs.queues.all())
