"""Catalogs that are set up where the API runs, and making feeds of one as it says. How a catalog is read, nobody
says who asks."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from feedq.api.answers import answer, returns
from feedq.api.arguments import NamePath
from feedq.api.backend import Served
from feedq.api.callers import FleetViewer
from feedq.api.changing import AdminChange, OptionRow, Reasoned
from feedq.catalogs.base import open_catalog
from feedq.catalogs.syncing import sync
from feedq.report.rows import sync_row

router = APIRouter(prefix="/catalogs", tags=["catalogs"])


class CatalogNames(BaseModel):
    """Catalogs that are set up there, by name."""

    catalogs: list[str]


class SyncWish(Reasoned):
    """How far a sync may go."""

    remove_up_to: int | None = Field(
        None, ge=0, description="So many feeds, however many that is of all it has."
    )
    take_over: bool = Field(False, description="Also feeds that others declared under names that it has.")


class SyncedFeed(BaseModel):
    """A feed that was not as the catalog says."""

    kind: str
    name: str
    action: str
    options: list[OptionRow]
    note: str | None = None


class LeftOutRow(BaseModel):
    """An entry that was not synced, and why."""

    where: str
    name: str | None
    what: str


class SyncDocument(BaseModel):
    """As one catalog of `feedq sync --json`."""

    name: str
    added: int
    changed: int
    removed: int
    unchanged: int
    kept: int
    taken_over: int
    is_same: bool
    left_out: list[LeftOutRow]
    changes: list[SyncedFeed]
    dry_run: bool


@router.get("", responses=returns(CatalogNames), summary="Catalogs by name")
def list_catalogs(backend: Served, caller: FleetViewer) -> Response:
    return answer({"catalogs": sorted(backend.settings.catalogs)})


@router.post("/{name:name}/sync", responses=returns(SyncDocument), summary="Make feeds as it says")
def sync_catalog(asked: AdminChange, name: NamePath, given: SyncWish | None = None) -> Response:
    """Of a catalog of tens of thousands of feeds the first sync takes longer than a request may: the schedule that
    `feedq sync --every` declares makes it in a worker."""
    wish = given or SyncWish()
    made = sync(
        asked.backend.store.catalogs,
        open_catalog(name, asked.backend.settings),
        dry_run=asked.dry_run,
        remove_up_to=wish.remove_up_to,
        take_over=wish.take_over,
    )
    document: dict[str, Any] = sync_row(made)
    return answer(document | {"dry_run": asked.dry_run})
