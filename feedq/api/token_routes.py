"""Tokens, for whoever may give them out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from feedq.access import AccessRole
from feedq.api.answers import answer, returns
from feedq.api.arguments import NamePath
from feedq.api.backend import Served
from feedq.api.callers import FleetAdmin
from feedq.api.changing import Reasoned
from feedq.report.rows import token_row
from feedq.store.tokens import DAYS_MAX
from feedq.values import NAME_MAX, Name

router = APIRouter(prefix="/tokens", tags=["tokens"])


class TokenRow(BaseModel):
    """A token without what proves it."""

    name: str
    role: AccessRole
    tenant: str | None
    created_at: datetime
    expires_at: datetime


class TokenList(BaseModel):
    """All tokens by name."""

    tokens: list[TokenRow]


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


@router.get("", responses=returns(TokenList), summary="Tokens by name")
def list_tokens(backend: Served, caller: FleetAdmin) -> Response:
    return answer({"tokens": list(map(token_row, backend.store.tokens.all()))})


@router.post("", responses=returns(MadeToken, status=201), summary="Make a token", status_code=201)
def add_token(backend: Served, caller: FleetAdmin, given: Annotated[NewToken, Body()]) -> Response:
    lasts_s = given.days * 86_400
    made = backend.store.tokens.add(given.name, given.role, tenant=given.tenant, lasts_s=lasts_s)
    return answer({"name": given.name, "token": made}, status=201)


@router.delete("/{name:name}", responses=returns(EndedToken), summary="End a token at once")
def remove_token(backend: Served, caller: FleetAdmin, name: NamePath) -> Response:
    backend.store.tokens.remove(name)
    return answer({"name": name, "result": "removed"})
