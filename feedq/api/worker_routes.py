"""Workers: all of them, and one with what it does."""

from __future__ import annotations

from fastapi import APIRouter, Response

from feedq import verbs
from feedq.api import documents
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.names import NamePath
from feedq.report.rows import worker_row

router = APIRouter(prefix="/workers", tags=["workers"])


@router.get("", responses=returns(documents.WORKERS), summary="Workers by name")
def list_workers(backend: Served, gone: bool = False) -> Response:
    return answer({"workers": [worker_row(view) for view in backend.store.workers.views(gone=gone)]})


@router.get("/{name:name}", responses=returns(documents.WORKER_ROW), summary="One worker")
def show_worker(backend: Served, name: NamePath) -> Response:
    """By its name, the part of it before the `@`, its id, or the beginning of that."""
    return answer(worker_row(verbs.find_worker(backend.store, name)))
