"""The sink databases: do they answer, and may feedq keep its checkpoints and write its tables there?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg2

from feedq.control.store.database import SETTING as CONTROL_DATABASE
from feedq.control.store.database import driver_options, psycopg2_dsn
from feedq.core.model import Feed
from feedq.core.passwords import mask_url
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import Settings
from feedq.sinks.base import Checkpoint, load_sink, opened_sink, parse_sink
from feedq.sinks.checkpoints import owner_of
from feedq.verbs.adoption import left_behind
from feedq.verbs.diagnosis.checks import Check, Level, fail, ok, one_line, unreachable, warn
from feedq.verbs.diagnosis.database_checks import too_old
from feedq.verbs.wording import counted, some

BOOKKEEPING = ("feedq_checkpoint", "feedq_dead_letter")
LATELY = timedelta(minutes=10)
"""Checkpoints of feeds that run are written with each commit; some have none for a while."""

_PERMISSIONS = """
    SELECT current_user, current_schema(),
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
        (SELECT array_agg(t) FROM unnest(%s) AS t WHERE to_regclass(quote_ident(t)) IS NULL),
        (SELECT array_agg(t) FROM unnest(%s) AS t
         WHERE to_regclass(quote_ident(t)) IS NOT NULL AND NOT (
            has_table_privilege(quote_ident(t), 'SELECT') AND has_table_privilege(quote_ident(t), 'INSERT')
            AND has_table_privilege(quote_ident(t), 'UPDATE')))
"""


def check_sinks(settings: Settings, feeds: Sequence[Feed]) -> Iterator[Check]:
    """Each sink that is set up here, and the sinks that feeds name and that are not."""
    used = _used(feeds)
    for name in settings.sink_names:
        check = _check_sink(name, settings, feeds=len(used.pop(name, [])))
        yield check
        if check.level is not Level.FAIL and feeds:
            yield from _check_owners(name, settings, feeds)
    for name, names in sorted(used.items()):
        yield warn(
            f"sink {name}",
            f"not set up here, but named by {counted(len(names), 'feed')}: {some(names)}",
            f"set FEEDQ_SINKS__{name.upper()} here and on every worker",
        )


def _check_owners(name: str, settings: Settings, feeds: Sequence[Feed]) -> Iterator[Check]:
    """Tells of checkpoints in a sink that others have, and of those that nobody has any more."""
    try:
        with opened_sink(settings, name, role="doctor") as sink:
            strangers, orphans = left_behind(sink.checkpoints(), feeds)
    except FeedqError as error:
        yield warn(f"checkpoints on {name}", mask_url(one_line(error)), "see the check above")
        return
    now = datetime.now(UTC)
    lively = [one for one in strangers if now - one.updated_at < LATELY]
    if lively:
        yield warn(
            f"others on {name}",
            f"{_counted_owners(lively)} writes here too, under the environment {settings.environment!r}: "
            f"{counted(len(lively), 'feed')}, such as {owner_of(lively[-1])}",
            "set FEEDQ_ENVIRONMENT to a name of its own for each installation, before their feeds share a name",
        )
    if left := [one for one in strangers if one not in lively]:
        yield warn(
            f"strangers on {name}",
            f"{counted(len(left), 'checkpoint')} of {_counted_owners(left)}: {some(left, lambda one: one.feed)}",
            "take them with `feedq feed adopt` if the control database was lost; else delete the rows",
        )
    if orphans:
        named = some(orphans, lambda one: one.feed)
        yield ok(
            f"orphans on {name}",
            f"{counted(len(orphans), 'checkpoint')} of feeds that are not declared any more: {named}",
        )


def _counted_owners(checkpoints: Sequence[Checkpoint]) -> str:
    owners = sorted({str(one.installation) for one in checkpoints})
    return f"installation {owners[0]}" if len(owners) == 1 else f"{len(owners)} installations"


def _used(feeds: Sequence[Feed]) -> dict[str, list[str]]:
    """Names of feeds by the sink that they name; what cannot be parsed shows as a failed feed elsewhere."""
    used: dict[str, list[str]] = {}
    for feed in feeds:
        try:
            used.setdefault(parse_sink(feed.spec.sink).name.lower(), []).append(feed.name)
        except InvalidInput:
            continue
    return used


def _check_sink(name: str, settings: Settings, *, feeds: int) -> Check:
    url = settings.sink_url(name)
    title, detail = f"sink {name}", f"{counted(feeds, 'feed')}, {mask_url(url)}"
    try:
        if url.startswith(("postgresql", "postgres:")):
            with closing(psycopg2.connect(psycopg2_dsn(url), **driver_options("feedq-doctor"))) as connection:
                return _permissions(title, connection, detail=detail)
        # Of another kind: whether it answers, and lets feedq keep its tables there.
        made = load_sink(url)(url, environment="feedq-doctor", worker_id=uuid4(), role="doctor")
        with closing(made) as sink:
            sink.dead_letters(limit=1)
    except (psycopg2.Error, FeedqError) as error:
        is_set = name in map(str.lower, settings.sinks)
        return unreachable(
            title, url, error, setting=f"FEEDQ_SINKS__{name.upper()}" if is_set else CONTROL_DATABASE
        )
    return ok(title, detail)


def _permissions(title: str, connection: Any, *, detail: str) -> Check:
    if (found := too_old(title, connection.server_version)) is not None:
        return found
    tables = list(BOOKKEEPING)
    with connection.cursor() as cursor:
        cursor.execute(_PERMISSIONS, (tables, tables))
        role, schema, may_create, missing, forbidden = cursor.fetchone()
    if schema is None:
        return fail(
            title, f"{detail}: the search path of {role} names no schema", "ALTER ROLE … SET search_path"
        )
    if missing and not may_create:
        return fail(
            title,
            f"{detail}: {role} may not create {', '.join(missing)} in schema {schema}",
            f'GRANT CREATE, USAGE ON SCHEMA "{schema}" TO "{role}"',
        )
    if forbidden:
        return fail(
            title,
            f"{detail}: {role} may not read and write {', '.join(forbidden)}",
            f'GRANT SELECT, INSERT, UPDATE ON {", ".join(forbidden)} TO "{role}"',
        )
    if not may_create:
        return ok(title, f"{detail}; may not create tables in {schema}, so target tables must exist")
    return ok(title, detail)
