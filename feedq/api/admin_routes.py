"""What admins do: give out tokens, and sync catalogs that are set up where the API runs. How one is read, nobody
says who asks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from feedq.api.answers import answer, returns
from feedq.api.arguments import NamePath
from feedq.api.callers import FleetAdmin, FleetViewer, Served
from feedq.api.changing import AdminChange, OptionRow, Reasoned
from feedq.control.store.tokens import DAYS_MAX
from feedq.core.roles import AccessRole, AccessToken
from feedq.core.values import NAME_MAX, Name
from feedq.verbs.catalogs.base import open_catalog
from feedq.verbs.catalogs.syncing import SkippedEntry, sync
from feedq.verbs.report.rows import sync_row, token_row

tokens = APIRouter(prefix="/tokens", tags=["tokens"])
catalogs = APIRouter(prefix="/catalogs", tags=["catalogs"])


# -- tokens --------------------------------------------------------------------------------------------


class TokenList(BaseModel):
    """All tokens by name."""

    tokens: list[AccessToken]


class NewToken(Reasoned):
    """A token to be made."""

    name: Name
    role: AccessRole
    tenant: Annotated[str | None, Field(max_length=NAME_MAX)] = None
    days: Annotated[float, Field(gt=0, le=DAYS_MAX)] = 90


class MadeToken(BaseModel):
    """A token, which is not told again."""

    name: str
    token: str


class EndedToken(BaseModel):
    """A token that was ended."""

    name: str
    result: str


@tokens.get("", responses=returns(TokenList), summary="Tokens by name")
def list_tokens(backend: Served, caller: FleetAdmin) -> Response:
    return answer({"tokens": list(map(token_row, backend.store.tokens.all()))})


@tokens.post("", responses=returns(MadeToken, status=201), summary="Make a token", status_code=201)
def add_token(backend: Served, caller: FleetAdmin, given: Annotated[NewToken, Body()]) -> Response:
    lasts_s = given.days * 86_400
    made = backend.store.tokens.add(given.name, given.role, tenant=given.tenant, lasts_s=lasts_s)
    return answer({"name": given.name, "token": made}, status=201)


@tokens.delete("/{name:name}", responses=returns(EndedToken), summary="End a token at once")
def remove_token(backend: Served, caller: FleetAdmin, name: NamePath) -> Response:
    backend.store.tokens.remove(name)
    return answer({"name": name, "result": "removed"})


# -- catalogs ------------------------------------------------------------------------------------------


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
    left_out: list[SkippedEntry]
    changes: list[SyncedFeed]
    dry_run: bool


@catalogs.get("", responses=returns(CatalogNames), summary="Catalogs by name")
def list_catalogs(backend: Served, caller: FleetViewer) -> Response:
    return answer({"catalogs": sorted(backend.settings.catalogs)})


@catalogs.post("/{name:name}/sync", responses=returns(SyncDocument), summary="Make feeds as it says")
def sync_catalog(asked: AdminChange, name: NamePath, given: SyncWish | None = None) -> Response:
    """Of a catalog of tens of thousands of feeds the first sync takes longer than a request may: the schedule that
    runs `feedq.sync` makes it in a worker."""
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
