"""Setting aside the records that surely cannot land, many at a time.

Whoever has a batch refused could find the culprits by trial alone (`feedq.sinks.isolate`), and does so for
whatever is left here. But a source gone wrong sends nothing but bad records, and each of them would cost two
attempts while every other feed of the worker waits. So the usual reasons are looked for first: no UTF-8, no
JSON, a NUL, NULL where there must be a value, and, from PostgreSQL 16 on, whatever the input functions of
the columns say. A record is set aside only if the database would refuse it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from feedq.sinks.deadletters import DeadRecord
from feedq.sinks.jsontext import UnreadableRecord, encode
from feedq.sinks.plan import Plan, Suspect
from feedq.sinks.session import Session
from feedq.sinks.sqlstate import ERROR_TEXT_MAX
from feedq.sinks.statements import INPUT_ERRORS

ASKS_INPUT_FUNCTIONS: Final = 160_000
"""Server version from which `INPUT_ERRORS` works."""
ASKED_AT_ONCE: Final = 2_000
NUL_ERROR: Final = 'invalid byte sequence for encoding "UTF8": 0x00 (22021)'

Fields = list[str | None]


def screen(
    session: Session, plan: Plan, suspects: Sequence[Suspect]
) -> tuple[list[Suspect], list[DeadRecord]]:
    """Those that may land, and those that cannot, each in order. Raises `psycopg2.Error`."""
    readable, refused = _screen_here(plan, suspects)
    errors: dict[int, str] = {}
    if session.server_version >= ASKS_INPUT_FUNCTIONS:
        for start in range(0, len(readable), ASKED_AT_ONCE):
            asked = [fields for _, fields in readable[start : start + ASKED_AT_ONCE]]
            found = _ask_input_functions(session, plan.field_types, asked)
            errors |= {start + n: error for n, error in found.items()}
    kept = [suspect for n, (suspect, _) in enumerate(readable) if n not in errors]
    refused += [(readable[n][0], error) for n, error in errors.items()]
    return kept, refused


def _screen_here(
    plan: Plan, suspects: Sequence[Suspect]
) -> tuple[list[tuple[Suspect, Fields]], list[DeadRecord]]:
    readable = []
    refused = []
    for suspect in suspects:
        try:
            fields = plan.rows.fields(suspect.record)
            error = plan.null_violation(fields) or _nul_violation(fields)
        except UnreadableRecord as unreadable:
            error = str(unreadable)
        if error:
            refused.append((suspect, error))
        else:
            readable.append((suspect, fields))
    return readable, refused


def _nul_violation(fields: Fields) -> str | None:
    for text in fields:
        if text is not None:
            encode(text)
            if "\0" in text:
                return NUL_ERROR
    return None


def _ask_input_functions(session: Session, types: Sequence[str], rows: Sequence[Fields]) -> dict[int, str]:
    errors: dict[int, str] = {}
    for column, type_name in enumerate(types):
        texts = [fields[column] for fields in rows]
        if type_name == "text" or all(text is None for text in texts):
            continue
        for row in session.execute(INPUT_ERRORS, {"texts": texts, "type": type_name}):
            errors.setdefault(row[0] - 1, _input_error(*row[1:]))
    return dict(sorted(errors.items()))


def _input_error(message: str, detail: Any, code: str) -> str:
    return f"{message}{f': {detail}' if detail else ''} ({code})"[:ERROR_TEXT_MAX]
