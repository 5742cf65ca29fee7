"""The fleet at a glance, and what feeds can be made of."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, RootModel

from feedq.api import documents
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import FleetViewer, Viewer
from feedq.api.names import NamePath
from feedq.connectors.base import ENTRY_POINT_GROUP, load_connector
from feedq.diagnosis.checks import Level
from feedq.errors import InvalidInput
from feedq.manifest.json_schema import manifest_schema
from feedq.report.fleet_data import read_status
from feedq.report.problem_list import read_problems
from feedq.report.rows import check_row, problem_row, status_document

router = APIRouter(tags=["fleet"])


class JsonSchema(RootModel[dict[str, Any]]):
    """A JSON Schema."""


@router.get("/status", responses=returns(documents.STATUS), summary="The fleet at a glance")
def show_status(backend: Served, caller: FleetViewer) -> Response:
    data = read_status(backend.store, backend.settings)
    return answer(status_document(data.numbers, data.workers, data.state, data.warnings, jobs=data.jobs))


@router.get("/problems", responses=returns(documents.PROBLEMS), summary="What to look at, worst first")
def list_problems(backend: Served, caller: FleetViewer) -> Response:
    found = read_problems(backend.store, backend.settings)
    return answer({"problems": list(map(problem_row, found))})


@router.get("/doctor", responses=returns(documents.CHECKS), summary="What is wrong, and how to mend it")
def show_doctor(backend: Served, caller: FleetViewer) -> Response:
    """As `feedq doctor`, from the machine of the API and with its settings."""
    # Brokers' libraries take a while to load.
    from feedq.diagnosis.rounds import diagnose

    store = backend.store
    specs = store.jobs.schedules.specs
    found = list(diagnose(store, store.fleet_state, store.job_state, specs, backend.settings))
    healthy = all(check.level is not Level.FAIL for check in found)
    return answer({"healthy": healthy, "checks": list(map(check_row, found))})


@router.get("/connectors", responses=returns(documents.CONNECTORS), summary="Connectors and their options")
def list_connectors(caller: Viewer) -> Response:
    schemas = {}
    for kind in sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)):
        # One that cannot be imported must not take all others away.
        with suppress(InvalidInput):
            schemas[kind] = _options_of(kind)
    return answer({"connectors": schemas})


@router.get("/connectors/{name:name}", responses=returns(JsonSchema), summary="Options of a connector")
def show_connector(caller: Viewer, name: NamePath) -> Response:
    return answer(_options_of(name))


@router.get("/schema", responses=returns(JsonSchema), summary="What manifests may say")
def show_schema(caller: Viewer) -> Response:
    return answer(manifest_schema())


def _options_of(kind: str) -> dict[str, Any]:
    options: type[BaseModel] = load_connector(kind).Options
    return options.model_json_schema()
