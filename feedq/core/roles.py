"""Roles of whoever asks the API, over everything or over one tenant. Pure.

::

    viewer     looks
    operator   declares, pauses, moves, drains, triggers: what the command line does
    admin      also gives out tokens

Whoever has a role over one tenant sees and changes feeds of that tenant. What belongs to no tenant (workers,
schedules, runs, queues, the fleet as a whole) needs a role over everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from feedq.errors import Forbidden


class AccessRole(StrEnum):
    """The roles of callers; each includes the rights of those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: AccessRole) -> bool:
        order = list(AccessRole)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token as it is kept: without what proves it."""

    name: str
    role: AccessRole
    tenant: str | None
    """None: over everything."""
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller and their rights."""

    who: str
    role: AccessRole
    tenant: str | None = None

    @property
    def scope(self) -> str:
        return "over everything" if self.tenant is None else f"of tenant {self.tenant!r}"

    def require(self, role: AccessRole) -> None:
        """Raises `Forbidden`."""
        if not self.role.includes(role):
            raise Forbidden(f"{self.who} is a {self.role}, and this needs the role {role}")

    def require_everything(self) -> None:
        """Raises `Forbidden`."""
        if self.tenant is not None:
            raise Forbidden(
                f"{self.who} is a {self.role} {self.scope}, and this belongs to no tenant: "
                "it needs a role over everything"
            )

    def sees(self, tenant: str) -> bool:
        return self.tenant in (None, tenant)

    def require_tenant(self, tenant: str, what: str) -> None:
        """Raises `Forbidden` when ``what`` belongs to another tenant."""
        if not self.sees(tenant):
            raise Forbidden(
                f"{self.who} is a {self.role} {self.scope}, and {what} does not belong to that tenant"
            )
