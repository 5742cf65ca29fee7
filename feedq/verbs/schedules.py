"""Schedules and their runs: to list, show, pause, trigger, backfill and cancel them; and job queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from msgspec import Meta

from feedq.control.store.jobs.schedules import KEY_MAX
from feedq.core.authorship import given_reason
from feedq.core.json_texts import read_json
from feedq.core.model import JSON
from feedq.core.moments import DEFAULT_ZONE, instant, parse_moment, parse_moment_near
from feedq.core.roles import AccessRole
from feedq.core.schedule.model import QueueDepth, Run, RunState, ScheduleState, ScheduleView
from feedq.core.schedule.spec import ScheduleSpec, checked_job
from feedq.core.schedule.ticks import delayed, next_tick, past_ticks, ticks_after
from feedq.core.values import NAME_MAX
from feedq.errors import InvalidInput
from feedq.verbs.details import shown
from feedq.verbs.registry import (
    At,
    Cursor,
    Limit,
    Moment,
    NameArgument,
    Page,
    TimeText,
    etag_of,
    page_of,
    page_place,
    read_declaration,
    verb,
)
from feedq.verbs.wording import timing_words

RUNS_SHOWN: Final = 100
DECLARED_MAX: Final = 20_000
"""Characters of a declaration in an address."""
RunId = Annotated[int, Meta(ge=1, le=2**63 - 1)]
LocalTime = Annotated[
    TimeText,
    Meta(
        description="A time, such as 2026-12-01T08:00Z; without an offset, on the clock of the schedule's zone."
    ),
]


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule in a list."""

    id: int
    name: str
    when: str
    """Its timing in words."""
    task: str
    state: ScheduleState
    paused_until: Moment | None
    pause_reason: str | None
    unreadable: str | None
    """Why this release cannot read the declaration, if it cannot."""
    next_tick_at: datetime | None
    next_fire_at: datetime | None
    failures: int
    """In a row."""
    etag: str
    waiting: int
    running: int
    last: Run | None
    latest: Sequence[Run] = ()
    """The latest runs, the newest first, where somebody asks for them."""


@dataclass(frozen=True, slots=True)
class ScheduleDocument:
    """Everything about a schedule."""

    schedule: ScheduleRow
    declaration: JSON
    """As it stands in a manifest; what a name gives away as a secret is masked."""
    unserved: str | None
    """Why no worker can run it, if none can."""
    counts: Mapping[RunState, int]
    runs: Sequence[Run]
    created_at: datetime
    updated_at: datetime
    etag: str


class ScheduleAction(StrEnum):
    """Actions on a schedule."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    """Cancels its waiting runs."""


@dataclass(frozen=True, slots=True)
class ScheduleActed:
    """A change to a schedule that was made, or would be."""

    name: str
    action: ScheduleAction
    cancelled: int = 0
    """Waiting runs that were cancelled."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PastTicks:
    """Runs for ticks of the past."""

    name: str
    first_tick_at: datetime
    last_tick_at: datetime
    ticks: int
    made: int
    existing: int
    """Ticks that had a run already."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class ComingTick:
    """A future tick."""

    tick_at: datetime
    local: datetime
    """The same on the clock of the zone."""
    fire_at: datetime
    """When it fires: later than the tick by the jitter."""


@dataclass(frozen=True, slots=True)
class ComingTicks:
    """The next ticks of a schedule as it is or would be."""

    name: str
    when: str
    """Its timing in words."""
    zone: str
    state: ScheduleState
    ticks: Sequence[ComingTick]


# -- schedules -----------------------------------------------------------------------------------------


@verb("GET /schedules", of_fleet=True)
def list_schedules(
    at: At,
    *,
    prefix: Annotated[str, Meta(max_length=NAME_MAX)] = "",
    state: ScheduleState | None = None,
    runs: Annotated[int, Meta(ge=0, le=20)] = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[ScheduleRow]:
    """List schedules by name, each with this many of its latest ``runs``."""
    schedules = at.store.jobs.schedules
    (after,) = page_place(cursor, str) or ("",)
    found = schedules.views(prefix=prefix, after=after, state=state, limit=limit + 1)
    latest = schedules.latest([view.schedule.spec.name for view in found], each=runs) if runs else {}
    rows = [replace(row, latest=latest.get(row.name, ())) for row in map(schedule_row, found)]
    return page_of(rows, limit, lambda row: (row.name,))


@verb("GET /schedules/{name}", of_fleet=True)
def show_schedule(at: At, *, name: NameArgument) -> ScheduleDocument:
    """Show everything about one schedule."""
    schedules = at.store.jobs.schedules
    view, counts, runs = schedules.view(name), schedules.counts(name), schedules.runs(name, limit=RUNS_SHOWN)
    schedule = view.schedule
    is_declared = not schedule.spec.is_of_beat and schedule.unreadable is None
    return ScheduleDocument(
        schedule_row(view),
        shown(schedule.spec.plain()) if is_declared else {},
        view.unserved,
        counts,
        runs,
        schedule.created_at,
        schedule.updated_at,
        etag_of(schedule.version),
    )


@verb("POST /schedules/{name}/act", role=AccessRole.OPERATOR, of_fleet=True)
def act_on_schedule(
    at: At,
    *,
    name: NameArgument,
    action: ScheduleAction,
    until: Annotated[TimeText, Meta(description="A time, or how long from now: 2h.")] | None = None,
    dry_run: bool = False,
) -> ScheduleActed:
    """Pause a schedule, for good or ``until`` a time; resume it; or cancel its waiting runs."""
    schedules = at.store.jobs.schedules
    if until is not None and action is not ScheduleAction.PAUSE:
        raise InvalidInput("until: only for pause")
    # Little that is done to a schedule needs its declaration.
    view = _listed(at, name) or schedules.view(name)
    end = None if until is None else _time(view.schedule.spec, until, "until", now=at.store.now())
    if dry_run:
        waiting = view.waiting if action is ScheduleAction.CANCEL else 0
        return ScheduleActed(name, action, waiting, dry_run=True)
    match action:
        case ScheduleAction.PAUSE:
            schedules.pause(name, until=end, reason=given_reason())
        case ScheduleAction.RESUME:
            schedules.resume(name)
        case ScheduleAction.CANCEL:
            return ScheduleActed(name, action, schedules.purge(name))
    return ScheduleActed(name, action)


@verb("GET /schedules/{name}/next", of_fleet=True)
def show_next_ticks(
    at: At,
    *,
    name: NameArgument,
    declared: Annotated[str, Meta(min_length=1, max_length=DECLARED_MAX)] | None = None,
    count: Annotated[int, Meta(ge=1, le=1_000)] = 20,
    since: LocalTime | None = None,
) -> ComingTicks:
    """Show the next ticks of a schedule, from now or from a given time on.

    With ``declared``, a declaration in JSON as in a manifest, show the ticks that it would have. That schedule
    need not exist.
    """
    spec, schedule_id, state = _timed(at, name, declared)
    clock = ZoneInfo(zone_of(spec))
    # A tick at that very time is one of them.
    after = at.store.now() if since is None else _time(spec, since, "since") - timedelta(microseconds=1)
    ticks = list(islice(ticks_after(spec, after=after), count + 1))
    found = []
    for tick, following in zip(ticks, [*ticks[1:], None], strict=False):
        fires = delayed(spec, schedule_id=schedule_id, tick=tick, following=following)
        found.append(ComingTick(tick, tick.astimezone(clock), fires))
    return ComingTicks(spec.name, timing_words(spec), clock.key, state, found[:count])


def _timed(at: At, name: str, declared: str | None) -> tuple[ScheduleSpec, int, ScheduleState]:
    """A schedule as it is, or as it is declared here; with its id, 0 for one that there is not, and its state."""
    if declared is None:
        schedule = at.store.jobs.schedules.get(name)
        return schedule.spec, schedule.id, schedule.state
    try:
        keys = read_json(declared)
    except ValueError as error:
        raise InvalidInput(f"declared: is not JSON: {error}") from None
    spec = read_declaration(ScheduleSpec, {**keys, "name": name} if isinstance(keys, dict) else keys)
    there = _listed(at, name)
    return spec, 0 if there is None else there.schedule.id, ScheduleState.ACTIVE


def _listed(at: At, name: str) -> ScheduleView | None:
    """A schedule as lists have it, even one whose declaration this release cannot read."""
    found = at.store.jobs.schedules.views(prefix=name, limit=1)
    return found[0] if found and found[0].schedule.spec.name == name else None


def zone_of(spec: ScheduleSpec) -> str:
    """The zone on whose clock people read the times of a schedule."""
    return spec.zone if spec.cron else DEFAULT_ZONE


def why_never(spec: ScheduleSpec, *, now: datetime) -> str | None:
    """Why a schedule has no tick to come; None if it has one."""
    if next_tick(spec, after=now) is not None:
        return None
    if spec.at and all(at <= now for at in spec.at):
        return f"at ({instant(max(spec.at))}) is in the past"
    if spec.end is not None and spec.end <= now:
        return f"its end ({instant(spec.end)}) is in the past"
    return "its start, its end and its excluded days leave no tick"


def _time(spec: ScheduleSpec, text: str, argument: str, *, now: datetime | None = None) -> datetime:
    """With ``now``, it may also be how long from then. Raises `InvalidInput` that names the argument."""
    try:
        if now is not None:
            return parse_moment_near(text, zone_of(spec), now=now, sign=1)
        return parse_moment(text, zone_of(spec))
    except ValueError as error:
        raise InvalidInput(f"{argument}: {error}") from None


# -- runs ----------------------------------------------------------------------------------------------


@verb("GET /runs", of_fleet=True)
def list_runs(
    at: At,
    *,
    schedule: NameArgument | None = None,
    states: tuple[RunState, ...] = (),
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[Run]:
    """List runs, newest first."""
    (before,) = page_place(cursor, int) or (None,)
    found = at.store.jobs.schedules.runs(schedule, states=states, before=before, limit=limit + 1)
    return page_of(found, limit, lambda run: (run.id,))


@verb("GET /runs/{id}", of_fleet=True)
def show_run(at: At, *, id: RunId) -> Run:
    """Show one run."""
    return at.store.jobs.schedules.run(id)


@verb("POST /schedules/{name}/trigger", role=AccessRole.OPERATOR, of_fleet=True)
def trigger_schedule(
    at: At,
    *,
    name: NameArgument,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    key: Annotated[str, Meta(min_length=1, max_length=KEY_MAX)] | None = None,
) -> Run:
    """Run a schedule's job once now, regardless of its timing.

    ``args`` and ``kwargs`` replace the declared ones. A second call with the same ``key`` returns the run of the
    first.
    """
    schedules = at.store.jobs.schedules
    given = {key: value for key, value in (("args", args), ("kwargs", kwargs)) if value is not None}
    job = checked_job(schedules.get(name).spec.model_copy(update=given)) if given else None
    return schedules.trigger(name, key=key, job=job)


@verb("POST /schedules/{name}/backfill", role=AccessRole.OPERATOR, of_fleet=True)
def backfill_schedule(
    at: At, *, name: NameArgument, begin: LocalTime, end: LocalTime, dry_run: bool = False
) -> PastTicks:
    """Run a schedule for each tick from ``begin`` on and before ``end`` that has no run yet."""
    schedules = at.store.jobs.schedules
    spec = schedules.get(name).spec
    period = _time(spec, begin, "begin"), _time(spec, end, "end")
    ticks = past_ticks(spec, *period, now=at.store.now())
    made, existing = (len(ticks), 0) if dry_run else schedules.backfill(name, ticks)
    return PastTicks(name, ticks[0], ticks[-1], len(ticks), made, existing, dry_run)


@verb("POST /runs/{id}/cancel", role=AccessRole.OPERATOR, of_fleet=True)
def cancel_run(at: At, *, id: RunId, dry_run: bool = False) -> Run:
    """Cancel a run: a waiting one is not started, a running one is told to stop."""
    schedules = at.store.jobs.schedules
    return schedules.run(id) if dry_run else schedules.cancel_run(id)


@verb("GET /queues", of_fleet=True)
def list_queues(at: At) -> Page[QueueDepth]:
    """List job queues that have limits or runs, with the numbers of their runs."""
    return Page(at.store.jobs.queues.listed())


# -- documents -----------------------------------------------------------------------------------------


def schedule_row(view: ScheduleView) -> ScheduleRow:
    schedule = view.schedule
    same = {name: getattr(schedule, name) for name in ScheduleRow.__slots__ if hasattr(schedule, name)}
    return ScheduleRow(
        **same,
        name=schedule.spec.name,
        when=timing_words(schedule.spec),
        task=schedule.spec.task,
        etag=etag_of(schedule.version),
        waiting=view.waiting,
        running=view.running,
        last=view.last,
    )
