"""Schedules, their runs and job queues."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import Cursor, Limit, NamePath, place_of
from feedq.api.backend import Served
from feedq.api.callers import FleetViewer
from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.values import NAME_MAX
from feedq.verbs.report.rows import queue_row, run_row, schedule_document, schedule_row

RUNS_SHOWN = 100
"""Runs in the document of one schedule."""
STATES_MAX = len(RunState)
ID_MAX = 2**63 - 1

RunId = Annotated[int, Path(ge=1, le=ID_MAX)]
router = APIRouter(tags=["schedules"])


@router.get("/schedules", responses=returns(documents.SCHEDULE_PAGE), summary="Schedules by name")
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


@router.get("/schedules/{name:name}", responses=returns(documents.SCHEDULE), summary="One schedule")
def show_schedule(backend: Served, caller: FleetViewer, name: NamePath) -> Response:
    schedules = backend.store.jobs.schedules
    view, counts, runs = schedules.view(name), schedules.counts(name), schedules.runs(name, limit=RUNS_SHOWN)
    return answer(schedule_document(view, counts=counts, runs=runs))


@router.get("/runs", responses=returns(documents.RUN_PAGE), summary="Runs, newest first")
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


@router.get("/runs/{run_id}", responses=returns(documents.RUN_ROW), summary="One run")
def show_run(backend: Served, caller: FleetViewer, run_id: RunId) -> Response:
    return answer(run_row(backend.store.jobs.schedules.run(run_id)))


@router.get("/queues", responses=returns(documents.QUEUES), summary="Job queues")
def list_queues(backend: Served, caller: FleetViewer) -> Response:
    return answer({"queues": list(map(queue_row, backend.store.jobs.queues.listed()))})
