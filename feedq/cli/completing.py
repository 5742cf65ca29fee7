"""Names that a shell completes: of feeds, workers, schedules and tenants, by one quick query.

Somebody waits for it while typing: without SQLAlchemy and settings, and nothing is said when there is no database,
or it takes too long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

import click

NAMES_MAX: Final = 200
"""More than anybody reads through."""
CONNECT_TIMEOUT_S: Final = 1
STATEMENT_TIMEOUT_MS: Final = 500
QUERIES: Final = {
    "feed": "SELECT name FROM feedq.feed WHERE removed_at IS NULL AND parent IS NULL AND",
    "worker": "SELECT DISTINCT name FROM feedq.worker WHERE state <> 'gone' AND",
    "schedule": "SELECT name FROM feedq.schedule WHERE removed_at IS NULL AND",
    "tenant": "SELECT DISTINCT tenant AS name FROM feedq.feed WHERE removed_at IS NULL AND tenant <> '' AND",
}
_BEGINNING: Final = " starts_with({column}, %s) ORDER BY 1 LIMIT %s"
GROUPS: Final = ("feed", "worker", "schedule")
"""Commands whose argument is one of their names, or several."""
OPTIONS: Final = {
    "feed": "feed",
    "tenant": "tenant",
    "worker": "worker",
    "target": "worker",
}
"""Options that are a name, by the names of their parameters."""
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def completion_of(path: tuple[str, ...], parameter: str, *, is_option: bool) -> Complete | None:
    """What completes this parameter of the command with this path; None: nothing does."""
    kind = OPTIONS.get(parameter) if is_option else path[0] if parameter in ("name", "names") else None
    if kind not in QUERIES:
        return None
    return lambda ctx, param, incomplete: names(kind, incomplete)


def names(kind: str, beginning: str) -> list[str]:
    """Those that begin so; none when they cannot be asked for at once."""
    # Whatever goes wrong, a shell is not the place to tell it.
    with suppress(Exception):
        return _asked(_database_url(), kind, beginning)
    return []


def _database_url() -> str:
    """Of the environment, or of the `feedq up` that runs in this directory."""
    if "FEEDQ_SERVER" in os.environ:
        return ""
    if url := os.environ.get("FEEDQ_DATABASE_URL"):
        return url
    from feedq.cli.invocation import STACK_DIR

    if not (STACK_DIR / "up.lock").exists():
        return ""
    from feedq.local.datadir import DataDir

    return DataDir(STACK_DIR).settings()["FEEDQ_DATABASE_URL"]


def _asked(url: str, kind: str, beginning: str) -> list[str]:
    if not url:
        return []
    import psycopg2

    options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS}"
    connection = psycopg2.connect(url, connect_timeout=CONNECT_TIMEOUT_S, options=options)
    with closing(connection), connection.cursor() as cursor:
        column = "tenant" if kind == "tenant" else "name"
        sql = QUERIES[kind] + _BEGINNING.format(column=column)
        cursor.execute(sql, (beginning, NAMES_MAX))
        return [str(name) for (name,) in cursor.fetchall()]
