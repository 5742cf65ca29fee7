"""Schedules, their runs and job queues: lists, one of them; declaring, editing and removing them, and runs that
somebody asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Header, Path, Query, Response
from pydantic import AwareDatetime, BaseModel, Field, RootModel, WithJsonSchema

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import AskedMoment, Cursor, Limit, NamePath, cursor_of, place_of
from feedq.api.callers import FleetViewer, Served
from feedq.api.changing import (
    ChangeRow,
    FleetChange,
    IfNoneMatch,
    Reasoned,
    etag_of,
    named,
    patched,
    put,
)
from feedq.api.documents import QUEUE_ENTRY, SCHEDULE_ENTRY
from feedq.control.store.jobs.schedules import KEY_MAX
from feedq.core.authorship import given_reason
from feedq.core.model import require_version
from feedq.core.schedule.entries import (
    QueueEntry,
    ScheduleEntry,
    job_with,
    plain_schedule,
)
from feedq.core.schedule.model import Beat, RunState, Schedule, ScheduleSpec, ScheduleState
from feedq.core.schedule.ticks import past_ticks, ticks_after
from feedq.core.values import NAME_MAX
from feedq.errors import InvalidInput, NotFound, Unreadable
from feedq.verbs.manifest.changes import plain_difference
from feedq.verbs.report.rows import queue_row, run_row, schedule_document, schedule_row

RUNS_SHOWN = 100
"""Runs in the document of one schedule."""
STATES_MAX = len(RunState)
ID_MAX = 2**63 - 1

RunId = Annotated[int, Path(ge=1, le=ID_MAX)]
schedules = APIRouter(tags=["schedules"])
declarations = APIRouter(prefix="/declarations", tags=["declarations"])


@schedules.get("/schedules", responses=returns(documents.SCHEDULE_PAGE), summary="Schedules by name")
def list_schedules(
    backend: Served,
    caller: FleetViewer,
    prefix: Annotated[str, Query(max_length=NAME_MAX, description="How their names begin.")] = "",
    state: ScheduleState | None = None,
    after: Annotated[
        str, Query(max_length=NAME_MAX, description="Only names that come after this one.")
    ] = "",
    urgent: Annotated[
        bool, Query(description="Those to look at first instead; they have no next page.")
    ] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    if urgent:
        failing = backend.store.job_state().tripped[:limit]
        first = backend.store.jobs.schedules.urgent(failing=failing, limit=limit)
        return answer({"schedules": list(map(schedule_row, first)), "next": None})
    (after,) = place_of(cursor, str) or (after,)
    found = backend.store.jobs.schedules.views(prefix=prefix, after=after, state=state, limit=limit + 1)
    return answer_page("schedules", found, limit, schedule_row, lambda view: (view.schedule.spec.name,))


@schedules.get("/schedules/{name:name}", responses=returns(documents.SCHEDULE), summary="One schedule")
def show_schedule(backend: Served, caller: FleetViewer, name: NamePath) -> Response:
    schedules = backend.store.jobs.schedules
    view, counts, runs = schedules.view(name), schedules.counts(name), schedules.runs(name, limit=RUNS_SHOWN)
    return answer(schedule_document(view, counts=counts, runs=runs))


@schedules.get("/runs", responses=returns(documents.RUN_PAGE), summary="Runs, newest first")
def list_runs(
    backend: Served,
    caller: FleetViewer,
    schedule: Annotated[str | None, Query(max_length=NAME_MAX)] = None,
    state: Annotated[list[RunState], Query(max_length=STATES_MAX)] = [],  # noqa: B006 -- FastAPI copies it
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    (before,) = place_of(cursor, int) or (None,)
    runs = backend.store.jobs.schedules.runs(schedule, states=state, before=before, limit=limit + 1)
    return answer_page("runs", runs, limit, run_row, lambda run: (run.id,))


@schedules.get("/runs/{run_id}", responses=returns(documents.RUN_ROW), summary="One run")
def show_run(backend: Served, caller: FleetViewer, run_id: RunId) -> Response:
    return answer(run_row(backend.store.jobs.schedules.run(run_id)))


@schedules.get("/queues", responses=returns(documents.QUEUES), summary="Job queues")
def list_queues(backend: Served, caller: FleetViewer) -> Response:
    return answer({"queues": list(map(queue_row, backend.store.jobs.queues.listed()))})


NEXT_MAX: Final = 1_000

Declaration = Annotated[dict[str, Any], WithJsonSchema(SCHEDULE_ENTRY)]


class ScheduleDeclaration(RootModel[Declaration]):
    """A schedule as it stands in a manifest."""


class Pause(Reasoned):
    """Until when a schedule fires no ticks; for good unless that is said."""

    until: AskedMoment | None = None


class Trigger(Reasoned):
    """Arguments that stand in for those declared."""

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class Backfill(Reasoned):
    """The ticks from one time on, and before another."""

    begin: AskedMoment = Field(alias="from")
    end: AskedMoment = Field(alias="to")


class BackfillRow(BaseModel):
    """How many runs were made, or would be at most."""

    name: str
    ticks: int
    made: int
    existing: int
    dry_run: bool


class PurgeRow(BaseModel):
    """How many waiting runs were cancelled."""

    name: str
    cancelled: int
    dry_run: bool


class TickList(BaseModel):
    """Ticks to come, in UTC."""

    name: str
    ticks: list[AwareDatetime]


# -- declarations ------------------------------------------------------------------------------------


@schedules.get(
    "/schedules/{name:name}/declaration",
    responses=returns(ScheduleDeclaration),
    summary="As a manifest has it",
)
def show_schedule_declaration(backend: Served, caller: FleetViewer, name: NamePath) -> Response:
    found = backend.store.jobs.schedules.get(name)
    return answer(plain_schedule(found.spec), headers={"ETag": etag_of(found.version)})


@schedules.put(
    "/schedules/{name:name}", responses=returns(ChangeRow) | returns(ChangeRow, status=201), summary="Declare"
)
def put_schedule(
    asked: FleetChange,
    name: NamePath,
    declared: Annotated[Declaration, Body()],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Add the schedule, or make it what is declared; what is so already is left alone."""
    entry = ScheduleEntry.valid(named(declared, name))

    def make(before: Schedule | None) -> Response:
        if before is None:
            return _add(asked, entry.spec)
        keeps = entry.paused is None and before.unreadable is None
        return _edit(asked, before, replace(entry.spec, paused=before.spec.paused) if keeps else entry.spec)

    return put(asked, f"schedule {name!r}", if_none_match, lambda: _existing(asked, name), make)


def _existing(asked: FleetChange, name: str) -> Schedule | None:
    schedules = asked.backend.store.jobs.schedules
    try:
        return schedules.get(name)
    except Unreadable:
        return next((v.schedule for v in schedules.views(prefix=name, limit=1)), None)
    except NotFound:
        return None


def _add(asked: FleetChange, spec: ScheduleSpec) -> Response:
    if asked.dry_run:
        return asked.done(spec.name, "added")
    added = asked.backend.store.jobs.schedules.add(spec)
    return asked.done(spec.name, "added", version=added.version, status=201)


def _edit(asked: FleetChange, before: Schedule, spec: ScheduleSpec) -> Response:
    is_readable = before.unreadable is None
    changes = plain_difference(plain_schedule(before.spec), plain_schedule(spec)) if is_readable else ()
    if asked.dry_run:
        require_version(f"schedule {spec.name!r}", before.version, asked.expected)
        result = "unchanged" if is_readable and not changes else "edited"
        return asked.done(spec.name, result, version=before.version, changes=changes)
    after = asked.backend.store.jobs.schedules.edit(spec.name, spec, expected=asked.expected)
    result = "unchanged" if after.generation == before.generation else "edited"
    return asked.done(spec.name, result, version=after.version, changes=changes)


@schedules.patch(
    "/schedules/{name:name}", responses=returns(ChangeRow), summary="Change some of its declaration"
)
def patch_schedule(asked: FleetChange, name: NamePath, patch: Annotated[dict[str, Any], Body()]) -> Response:
    """A merge patch (RFC 7396) of the declaration: null takes a key away."""
    before = asked.backend.store.jobs.schedules.get(name)
    spec = ScheduleEntry.valid(patched(plain_schedule(before.spec), patch)).spec
    return _edit(replace(asked, if_match=asked.if_match or etag_of(before.version)), before, spec)


@schedules.delete("/schedules/{name:name}", responses=returns(ChangeRow), summary="Forget it")
def remove_schedule(asked: FleetChange, name: NamePath) -> Response:
    schedules = asked.backend.store.jobs.schedules
    if asked.dry_run:
        found = schedules.view(name).schedule
        require_version(f"schedule {name!r}", found.version, asked.expected)
    else:
        found = schedules.remove(name, expected=asked.expected)
    return asked.done(name, "removed", version=found.version)


# -- what people do with them --------------------------------------------------------------------------


@schedules.post("/schedules/{name:name}/pause", responses=returns(ChangeRow), summary="Fire no more ticks")
def pause_schedule(asked: FleetChange, name: NamePath, given: Pause | None = None) -> Response:
    schedules = asked.backend.store.jobs.schedules
    until = None if given is None else given.until
    if asked.dry_run:
        found = schedules.view(name).schedule
    else:
        found = schedules.pause(name, until=until, reason=given_reason())
    return asked.done(name, "paused", version=found.version)


@schedules.post("/schedules/{name:name}/resume", responses=returns(ChangeRow), summary="Fire again")
def resume_schedule(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    schedules = asked.backend.store.jobs.schedules
    found = schedules.view(name).schedule if asked.dry_run else schedules.resume(name)
    return asked.done(name, "resumed", version=found.version)


@schedules.post("/schedules/{name:name}/trigger", responses=returns(documents.RUN_ROW), summary="A run now")
def trigger_schedule(
    asked: FleetChange,
    name: NamePath,
    given: Trigger | None = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=KEY_MAX, description="Asked again with the same key, it answers with the run of then."
        ),
    ] = None,
) -> Response:
    """The key is that of the run, and kept for as long as the run is."""
    schedules = asked.backend.store.jobs.schedules
    spec = schedules.get(name).spec
    job = None
    if given is not None and (given.args is not None or given.kwargs is not None):
        job = job_with(spec, args=given.args, kwargs=given.kwargs)
    if asked.dry_run:
        raise InvalidInput("dry_run: a run that is not made has no document; ask for the schedule instead")
    return answer(run_row(schedules.trigger(name, key=idempotency_key, job=job)))


@schedules.post(
    "/schedules/{name:name}/backfill", responses=returns(BackfillRow), summary="Runs of past ticks"
)
def backfill_schedule(asked: FleetChange, name: NamePath, given: Backfill) -> Response:
    """A tick that has a run gets no other, so a repeated request makes none twice."""
    schedules = asked.backend.store.jobs.schedules
    ticks = past_ticks(schedules.get(name).spec, given.begin, given.end, now=asked.backend.store.now())
    made, existing = (len(ticks), 0) if asked.dry_run else schedules.backfill(name, ticks)
    found = BackfillRow(name=name, ticks=len(ticks), made=made, existing=existing, dry_run=asked.dry_run)
    return answer(found.model_dump())


@schedules.post(
    "/schedules/{name:name}/purge", responses=returns(PurgeRow), summary="Cancel its waiting runs"
)
def purge_schedule(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    schedules = asked.backend.store.jobs.schedules
    cancelled = schedules.view(name).waiting if asked.dry_run else schedules.purge(name)
    return answer({"name": name, "cancelled": cancelled, "dry_run": asked.dry_run})


@schedules.get("/schedules/{name:name}/next", responses=returns(TickList), summary="Ticks to come")
def show_next_ticks(
    backend: Served,
    caller: FleetViewer,
    name: NamePath,
    count: Annotated[int, Query(ge=1, le=NEXT_MAX)] = 20,
    begin: Annotated[AskedMoment | None, Query(alias="from", description="Those from this time on.")] = None,
) -> Response:
    schedule = backend.store.jobs.schedules.get(name)
    after = backend.store.now() if begin is None else begin - timedelta(microseconds=1)
    return answer({"name": name, "ticks": list(islice(ticks_after(schedule.spec, after=after), count))})


@schedules.post("/runs/{run_id}/cancel", responses=returns(documents.RUN_ROW), summary="Cancel a run")
def cancel_run(asked: FleetChange, run_id: RunId, given: Reasoned | None = None) -> Response:
    schedules = asked.backend.store.jobs.schedules
    return answer(run_row(schedules.run(run_id) if asked.dry_run else schedules.cancel_run(run_id)))


# -- queues --------------------------------------------------------------------------------------------


@schedules.put("/queues/{name:name}", responses=returns(ChangeRow), summary="Set limits of a job queue")
def put_queue(
    asked: FleetChange,
    name: NamePath,
    declared: Annotated[Annotated[dict[str, Any], WithJsonSchema(QUEUE_ENTRY)], Body()],
) -> Response:
    entry = QueueEntry.valid(named(declared, name))
    if not asked.dry_run:
        asked.backend.store.jobs.queues.set(entry.spec)
    return asked.done(name, "set")


@schedules.delete("/queues/{name:name}", responses=returns(ChangeRow), summary="Lift limits of a job queue")
def remove_queue(asked: FleetChange, name: NamePath) -> Response:
    if not asked.dry_run:
        asked.backend.store.jobs.queues.remove(name)
    return asked.done(name, "removed")


class ScheduleDeclarations(BaseModel):
    """A page of schedules as they stand in a manifest, and why this release cannot read others, by name."""

    schedules: list[Declaration]
    unreadable: dict[str, str]
    next: str | None


@declarations.get(
    "/schedules", responses=returns(ScheduleDeclarations), summary="Schedules as manifests have them"
)
def export_schedules(
    backend: Served, caller: FleetViewer, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    (after,) = place_of(cursor, str) or ("",)
    views = backend.store.jobs.schedules.views(after=after, limit=limit + 1)
    page = [view.schedule for view in views[:limit]]
    declared = [one for one in page if not isinstance(one.spec.timing, Beat)]
    readable = [plain_schedule(one.spec) for one in declared if one.unreadable is None]
    unreadable = {one.spec.name: one.unreadable for one in declared if one.unreadable is not None}
    following = cursor_of(page[-1].spec.name) if len(views) > limit else None
    return answer({"schedules": readable, "unreadable": unreadable, "next": following})
