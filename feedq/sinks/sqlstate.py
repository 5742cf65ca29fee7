"""Classifies errors of PostgreSQL: the one place that reads SQLSTATE codes.

A server that answers with an error, on a session that still works, is not away. Unknown codes count as
`ErrorScope.DATA`: the record that raises one again when it is written by itself goes to the dead letters, with the
code, and its neighbours land.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any, Final

import psycopg2
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

ERROR_TEXT_MAX: Final = 1_000
"""Characters of a server's message that are kept; its detail may quote a whole record."""


class ErrorScope(Enum):
    """The scope of an error, by which the caller acts."""

    UNAVAILABLE = auto()
    """The server is away or shutting down: keep the batches, try again."""
    DATA = auto()
    """Some record cannot be stored: find it, and set it aside."""
    TARGET = auto()
    """The table itself cannot be written: gone, changed, or not permitted."""
    LATER = auto()
    """The table cannot be written just now: no room on its disk, too slow, its foreign server is away."""
    LOCKED = auto()
    """Somebody holds a lock for longer than we wait."""
    CONFLICT = auto()
    """Deadlock or serialization failure: the same transaction again."""


_BY_CODE: Final = {
    "55P03": ErrorScope.LOCKED,
    "55000": ErrorScope.TARGET,  # a view, a rule: not in the prerequisite state
    "55006": ErrorScope.LATER,  # object in use
    "40003": ErrorScope.UNAVAILABLE,  # statement completion unknown
    "57014": ErrorScope.LATER,  # a statement that took too long, or that an operator has cancelled
    "XX001": ErrorScope.LATER,  # a damaged table
    "XX002": ErrorScope.LATER,  # a damaged index
}
_BY_CLASS: Final = {
    "08": ErrorScope.LATER,  # of a foreign table's server: when our own connection breaks, there is no code
    "0A": ErrorScope.TARGET,  # not supported, e.g. COPY into this kind of relation
    "21": ErrorScope.DATA,
    "22": ErrorScope.DATA,
    "23": ErrorScope.DATA,
    "25": ErrorScope.LATER,  # read-only, for now
    "27": ErrorScope.DATA,  # a trigger's own change
    "28": ErrorScope.TARGET,
    "38": ErrorScope.DATA,  # a trigger's function
    "39": ErrorScope.DATA,
    "3F": ErrorScope.TARGET,
    "40": ErrorScope.CONFLICT,
    "42": ErrorScope.TARGET,
    "44": ErrorScope.DATA,  # WITH CHECK OPTION
    "53": ErrorScope.LATER,  # no room on the disk, out of memory
    "54": ErrorScope.DATA,  # a value too long to index, JSON nested too deeply
    "57": ErrorScope.UNAVAILABLE,
    "58": ErrorScope.LATER,  # errors of the file system
    "P0": ErrorScope.DATA,  # RAISE in a trigger
}


def classify(error: psycopg2.Error | SQLAlchemyError) -> ErrorScope:
    """What to do about ``error``; without a code the connection broke."""
    if isinstance(error, SQLAlchemyError):
        if not isinstance(error, DBAPIError):
            # A value that cannot even be sent.
            return ErrorScope.DATA
        error = cause_of(error)
    code = error.pgcode
    return ErrorScope.UNAVAILABLE if code is None else classify_code(code)


def cause_of(error: psycopg2.Error | SQLAlchemyError) -> psycopg2.Error:
    """What SQLAlchemy may have wrapped."""
    cause: Any = error
    return getattr(cause, "orig", cause)  # type: ignore[no-any-return]


def classify_code(code: str) -> ErrorScope:
    """What to do about an error with this SQLSTATE."""
    return _BY_CODE.get(code) or _BY_CLASS.get(code[:2], ErrorScope.DATA)


def explain(error: psycopg2.Error | SQLAlchemyError) -> str:
    """The server's message with its detail and code, on one line."""
    error = cause_of(error)
    diag = error.diag
    message = diag.message_primary or str(error)
    if diag.message_detail:
        message = f"{message.rstrip('.')}: {diag.message_detail}"
    if error.pgcode:
        message = f"{message} ({error.pgcode})"
    return " ".join(message.replace("\0", "").split())[:ERROR_TEXT_MAX]


def line_of(error: psycopg2.Error) -> int | None:
    """The row of a COPY, from 0, that the server stopped at. A hint, nothing more."""
    return number_after(", line ", error.diag.context or "")


def number_after(words: str, said: str) -> int | None:
    """The number of a row in a message, counted from 0 and not from 1."""
    found = re.search(re.escape(words) + r"(\d+)", said)
    return int(found[1]) - 1 if found else None
