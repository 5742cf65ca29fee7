"""Tokens of the API, and what was refused to whom.

A token is 256 random bits. Only its SHA-256 is kept: of so much chance nobody finds another text with the same
hash, so that no salt and no slow hash is needed, and whoever reads the table has no token.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

from feedq.control.store.database import (
    Aggregate,
    Connection,
    in_statement,
    in_transaction,
)
from feedq.control.store.history import record
from feedq.control.store.protocol import call
from feedq.core.roles import AccessRole, AccessToken
from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.telemetry.event_names import EventKind

PREFIX: Final = "feedq_"
"""By which people, and programs that look for secrets, know a token when they see one."""
RANDOM_BYTES: Final = 32
TOKENS_MAX: Final = 10_000
DAYS_MAX: Final = 3_660
_COLUMNS = "name, role, tenant, created_at, expires_at"


class TokenStore(Aggregate):
    """Tokens by name. Thread-safe."""

    @in_transaction
    def add(self, c: Connection, name: str, role: AccessRole, *, tenant: str | None, lasts_s: float) -> str:
        """Make a token and return it; it is not told again. Raises `Conflict` when the name is taken."""
        token = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        given = {"named": name, "hashed": _hash(token), "as_role": role.value, "of_tenant": tenant}
        refusal = call(c, "add_token", str, **given, lasts_s=lasts_s, most=TOKENS_MAX)
        if refusal == "full":
            raise InvalidInput(f"there are {TOKENS_MAX} tokens; `feedq token remove` makes room")
        if refusal == "taken":
            raise Conflict(f"token {name!r} exists already; `feedq token remove` ends it")
        said = {"token": name, "role": role.value} | ({} if tenant is None else {"tenant": tenant})
        record(c, EventKind.TOKEN_ADDED, detail=said)
        return token

    @in_transaction
    def remove(self, c: Connection, name: str) -> None:
        """End a token at once. Raises `NotFound`."""
        if not call(c, "remove_token", bool, named=name):
            raise NotFound(f"no token named {name!r}; `feedq token list` shows them all")
        record(c, EventKind.TOKEN_REMOVED, detail={"token": name})

    @in_statement
    def all(self, c: Connection) -> list[AccessToken]:
        """By name, those whose time is over too."""
        return [_token_from(row) for row in c.execute(f"SELECT {_COLUMNS} FROM feedq.token ORDER BY name")]

    @in_statement
    def find(self, c: Connection, token: str) -> AccessToken | None:
        """The token that this text proves; None when there is none, or its time is over."""
        sql = f"SELECT {_COLUMNS} FROM feedq.token WHERE hash = %(hash)s AND expires_at > feedq.clock()"
        row = c.execute(sql, {"hash": _hash(token)}).one_or_none()
        return None if row is None else _token_from(row)

    @in_transaction
    def refused(self, c: Connection, detail: dict[str, Any]) -> None:
        """Write down that somebody was refused something."""
        record(c, EventKind.ACCESS_REFUSED, detail=detail)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _token_from(row: Any) -> AccessToken:
    name, role, *rest = row
    return AccessToken(name, AccessRole(role), *rest)
