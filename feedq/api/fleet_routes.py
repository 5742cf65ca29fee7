"""The fleet at a glance, its workers, its history, and what feeds can be made of."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, RootModel

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import AskedMoment, Cursor, Kinds, Limit, NamePath, place_of
from feedq.api.callers import FleetViewer, Served, Viewer
from feedq.api.changing import ChangeRow, FleetChange, Reasoned
from feedq.connectors.base import connector_kinds, load_connector
from feedq.control.store.event_listing import EventFilter
from feedq.core.model import WorkerTarget
from feedq.errors import InvalidInput
from feedq.verbs import actions
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.manifest.json_schema import manifest_schema
from feedq.verbs.report.fleet_data import read_fleet
from feedq.verbs.report.problem_list import read_problems
from feedq.verbs.report.rows import check_row, listed_event_row, problem_row, status_document, worker_row

fleet = APIRouter(tags=["fleet"])
workers = APIRouter(prefix="/workers", tags=["workers"])
events = APIRouter(prefix="/events", tags=["events"])


class JsonSchema(RootModel[dict[str, Any]]):
    """A JSON Schema."""


@fleet.get("/status", responses=returns(documents.STATUS), summary="The fleet at a glance")
def show_status(backend: Served, caller: FleetViewer) -> Response:
    return answer(status_document(read_fleet(backend.store, backend.settings)))


@fleet.get("/problems", responses=returns(documents.PROBLEMS), summary="What to look at, worst first")
def list_problems(backend: Served, caller: FleetViewer) -> Response:
    found = read_problems(backend.store, backend.settings)
    return answer({"problems": list(map(problem_row, found))})


@fleet.get("/doctor", responses=returns(documents.CHECKS), summary="What is wrong, and how to mend it")
def show_doctor(backend: Served, caller: FleetViewer) -> Response:
    """As `feedq doctor`, from the machine of the API and with its settings."""
    # Brokers' libraries take a while to load.
    from feedq.verbs.diagnosis.rounds import diagnose

    store = backend.store
    specs = store.jobs.schedules.specs
    found = list(diagnose(store, store.fleet_state, store.job_state, specs, backend.settings))
    healthy = all(check.level is not Level.FAIL for check in found)
    return answer({"healthy": healthy, "checks": list(map(check_row, found))})


@fleet.get("/connectors", responses=returns(documents.CONNECTORS), summary="Connectors and their options")
def list_connectors(caller: Viewer) -> Response:
    schemas = {}
    for kind in connector_kinds():
        # One that cannot be imported must not take all others away.
        with suppress(InvalidInput):
            schemas[kind] = _options_of(kind)
    return answer({"connectors": schemas})


@fleet.get("/connectors/{name:name}", responses=returns(JsonSchema), summary="Options of a connector")
def show_connector(caller: Viewer, name: NamePath) -> Response:
    return answer(_options_of(name))


@fleet.get("/schema", responses=returns(JsonSchema), summary="What manifests may say")
def show_schema(caller: Viewer) -> Response:
    return answer(manifest_schema())


# -- workers and history ------------------------------------------------------------------------------


@workers.get("", responses=returns(documents.WORKERS), summary="Workers by name")
def list_workers(backend: Served, caller: FleetViewer, gone: bool = False) -> Response:
    return answer({"workers": [worker_row(view) for view in backend.store.workers.views(gone=gone)]})


@workers.get("/{name:name}", responses=returns(documents.WORKER_ROW), summary="One worker")
def show_worker(backend: Served, caller: FleetViewer, name: NamePath) -> Response:
    """By its name, the part of it before the `@`, its id, or the beginning of that."""
    return answer(worker_row(actions.find_worker(backend.store, name)))


@workers.post("/{name:name}/cordon", responses=returns(ChangeRow), summary="Give it no more feeds")
def cordon_worker(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, WorkerTarget.CORDONED, "cordoned")


@workers.post("/{name:name}/uncordon", responses=returns(ChangeRow), summary="Let it serve again")
def uncordon_worker(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, WorkerTarget.SERVING, "serving")


@workers.post("/{name:name}/drain", responses=returns(ChangeRow), summary="Let it hand its feeds over")
def drain_worker(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, WorkerTarget.DRAINED, "draining")


def _target(asked: FleetChange, name: str, target: WorkerTarget, result: str) -> Response:
    if asked.dry_run:
        found = actions.find_worker(asked.backend.store, name)
    else:
        found = actions.set_worker_target(asked.backend.store, name, target)
    return asked.done(found.worker.name, result)


@events.get("", responses=returns(documents.EVENT_PAGE), summary="History, newest first")
def list_events(
    backend: Served,
    caller: Viewer,
    kind: Kinds = [],  # noqa: B006 -- FastAPI copies it
    tenant: str | None = None,
    since: AskedMoment | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    (place,) = place_of(cursor, int) or (None,)
    if tenant is not None and not caller.sees(tenant):
        return answer({"events": [], "next": None})
    whose = tenant if caller.tenant is None else caller.tenant
    which = EventFilter(tuple(kind), tenant=whose, since=since)
    found = backend.store.history.before(which, place=place, limit=limit + 1)
    return answer_page("events", found, limit, listed_event_row, lambda one: (one.id,))


def _options_of(kind: str) -> dict[str, Any]:
    options: type[BaseModel] = load_connector(kind).Options
    return options.model_json_schema()
