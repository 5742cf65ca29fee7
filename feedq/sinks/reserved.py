"""Tables that records must not land in: feedq's own, and those that a database keeps about itself. Pure.

A row in a catalog can make a table unreadable or its writer a superuser, and one in a control table can declare a
feed. A declaration is judged by the name it gives, whatever its sink (`why_nowhere`); each kind of sink judges the
table that the name leads to in its database besides, which only the database knows.
"""

from __future__ import annotations

from typing import Final

CONTROL_SCHEMA: Final = "feedq"
BOOKKEEPING: Final = frozenset({"feedq_checkpoint", "feedq_dead_letter"})
"""In a sink, whatever its schema."""
OWN: Final = "is one of feedq's own: name another table"
SYSTEM: Final = "is kept by the database about itself: name a table of yours"


def why_nowhere(table: str) -> str | None:
    """Why no kind of sink takes records for this ``table`` or ``schema.table``; None when one may."""
    schema, _, name = table.rpartition(".")
    # As databases compare names that were not quoted: of those that would, none may be deceived.
    schema, name = (part.strip('"').casefold() for part in (schema, name))
    if name in BOOKKEEPING or schema == CONTROL_SCHEMA:
        return OWN
    if schema == "information_schema" or schema.startswith(("pg_catalog", "pg_toast")):
        return SYSTEM
    return None


def why_not_in_postgresql(schema: str | None, name: str) -> str | None:
    """Why a table of PostgreSQL takes no records; None when it does. ``schema``: as it is, or as it was named."""
    if name in BOOKKEEPING or schema == CONTROL_SCHEMA:
        return OWN
    # It reserves all names of schemas that begin so for itself: also temporary ones.
    if schema is not None and (schema == "information_schema" or schema.startswith("pg_")):
        return SYSTEM
    return None
