"""Workers: all of them, one with what it does, and which of them serve."""

from __future__ import annotations

from fastapi import APIRouter, Response

from feedq import verbs
from feedq.api import documents
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import FleetViewer
from feedq.api.changing import ChangeRow, FleetChange, Reasoned, heed
from feedq.api.names import NamePath
from feedq.model import WorkerTarget
from feedq.report.rows import worker_row
from feedq.report.worker_loss import loss_document, read_loss

router = APIRouter(prefix="/workers", tags=["workers"])


@router.get("", responses=returns(documents.WORKERS), summary="Workers by name")
def list_workers(backend: Served, caller: FleetViewer, gone: bool = False) -> Response:
    return answer({"workers": [worker_row(view) for view in backend.store.workers.views(gone=gone)]})


@router.get("/{name:name}", responses=returns(documents.WORKER_ROW), summary="One worker")
def show_worker(backend: Served, caller: FleetViewer, name: NamePath) -> Response:
    """By its name, the part of it before the `@`, its id, or the beginning of that."""
    return answer(worker_row(verbs.find_worker(backend.store, name)))


@router.get("/{name:name}/loss", responses=returns(documents.WORKER_LOSS), summary="If it were lost now")
def show_worker_loss(backend: Served, caller: FleetViewer, name: NamePath) -> Response:
    """Where its feeds would go, and what the others would then have. Nothing is changed."""
    return answer(loss_document(read_loss(backend.store, backend.settings, name)))


@router.post("/{name:name}/cordon", responses=returns(ChangeRow), summary="Give it no more feeds")
def cordon_worker(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, WorkerTarget.CORDONED, "cordoned", given)


@router.post("/{name:name}/uncordon", responses=returns(ChangeRow), summary="Let it serve again")
def uncordon_worker(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, WorkerTarget.SERVING, "serving", given)


@router.post("/{name:name}/drain", responses=returns(ChangeRow), summary="Let it hand its feeds over")
def drain_worker(asked: FleetChange, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, WorkerTarget.DRAINED, "draining", given)


def _target(
    asked: FleetChange, name: str, target: WorkerTarget, result: str, given: Reasoned | None
) -> Response:
    heed(given)
    if asked.dry_run:
        found = verbs.find_worker(asked.backend.store, name)
    else:
        found = verbs.set_worker_target(asked.backend.store, name, target)
    return asked.done(found.worker.name, result)
