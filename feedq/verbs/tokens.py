"""Tokens of the HTTP API: to list, make and end them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from feedq.control.store.tokens import DAYS_MAX
from feedq.core.roles import AccessRole, AccessToken
from feedq.core.values import check_name
from feedq.errors import InvalidInput
from feedq.verbs.registry import At, NameArgument, Page, verb

DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A new token; ``token`` is shown this once and never again."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class EndedToken:
    """A token that is no longer valid."""

    name: str


@verb("GET /tokens", role=AccessRole.ADMIN, of_fleet=True)
def list_tokens(at: At) -> Page[AccessToken]:
    """List tokens by name, without their secrets."""
    return Page(at.store.tokens.all())


@verb("POST /tokens", role=AccessRole.ADMIN, of_fleet=True)
def add_token(
    at: At,
    *,
    name: NameArgument,
    role: AccessRole,
    tenant: NameArgument | None = None,
    days: Annotated[float, Meta(gt=0, le=DAYS_MAX)] = 90.0,
) -> MadeToken:
    """Make a token for a person or program, for everything or for one tenant."""
    try:
        check_name(name)
    except ValueError as error:
        raise InvalidInput(f"name: {error}") from None
    return MadeToken(name, at.store.tokens.add(name, role, tenant=tenant, lasts_s=days * DAY_S))


@verb("DELETE /tokens/{name}", role=AccessRole.ADMIN, of_fleet=True)
def remove_token(at: At, *, name: NameArgument) -> EndedToken:
    """End a token at once."""
    at.store.tokens.remove(name)
    return EndedToken(name)
