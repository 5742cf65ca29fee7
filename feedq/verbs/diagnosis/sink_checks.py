"""The sink databases: do they answer, and may feedq keep its checkpoints and write its tables there?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg2

from feedq.control.store.database import SETTING as CONTROL_DATABASE
from feedq.control.store.database import connect
from feedq.control.store.feed_listing import SinkUse
from feedq.core.model import Feed
from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import Settings
from feedq.sinks.base import Checkpoint, Target, opened_sink, target_of_feed
from feedq.sinks.checkpoints import owner_of
from feedq.sinks.target_table import quoted
from feedq.verbs.diagnosis.checks import Check, Level, fail, ok, unreachable, warn
from feedq.verbs.diagnosis.server_checks import DOCTOR, too_old
from feedq.verbs.wording import NAMED_MAX, counted, some

BOOKKEEPING = ("feedq_checkpoint", "feedq_dead_letter")
LATELY = timedelta(minutes=10)
"""Checkpoints of feeds that run are written with each commit; some have none for a while."""

TARGETS_MAX = 200
"""Tables that are looked at in a sink: each takes a question or two."""

_PERMISSIONS = """
    SELECT current_user, current_schema(),
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
        (SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = current_schema()),
        (SELECT array_agg(t) FROM unnest(%s) AS t WHERE to_regclass(t) IS NULL),
        (SELECT json_agg(json_build_array(c.relname, pg_get_userbyid(c.relowner), rights)) FROM unnest(%s) AS t
            JOIN pg_class AS c ON c.oid = to_regclass(t),
            LATERAL (SELECT string_agg(r, ', ') FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS r
                WHERE NOT has_table_privilege(c.oid, r)) AS lacking (rights)
        WHERE rights IS NOT NULL)
"""


def check_sinks(
    settings: Settings,
    uses: Sequence[SinkUse] = (),
    identities: tuple[UUID, Collection[str]] = (UUID(int=0), ()),
) -> Iterator[Check]:
    """Each sink that is set up here, and the sinks that feeds name and that are not. ``identities`` are those of
    the installation and of its feeds."""
    used = {one.name: one for one in uses}
    for name in settings.sink_names:
        use = used.pop(name, SinkUse(name, 0, ()))
        check = _check_sink(name, settings, feeds=use.feeds)
        yield check
        if check.level is not Level.FAIL and identities[1]:
            yield from _look_into(settings, use, *identities)
    for name, use in sorted(used.items()):
        named = some(use.examples, lambda one: one.name, of=use.feeds)
        yield warn(
            f"sink {name}",
            f"not set up here, but named by {counted(use.feeds, 'feed')}: {named}",
            f"set FEEDQ_SINKS__{name.upper()} here and on every worker",
        )


def _look_into(
    settings: Settings, use: SinkUse, installation: UUID, feeds: Collection[str]
) -> Iterator[Check]:
    """Tells of tables in a sink that feeds cannot write, of checkpoints that others have, and of those that nobody
    has any more. ``feeds`` are all of this installation."""
    name = use.name
    try:
        with opened_sink(settings, name, role="doctor") as sink:
            wrong = [why for target in _targets(use.examples) if (why := sink.check(target)) is not None]
            unknown = [one for one in sink.checkpoints() if str(one.feed_uuid) not in feeds]
    except FeedqError as error:
        yield warn(f"inside {name}", mask_url(driver_text(error)), "see the check above")
        return
    strangers = [one for one in unknown if one.installation != installation]
    orphans = [one for one in unknown if one.installation == installation]
    if wrong:
        detail = f"feeds cannot write {counted(len(wrong), 'table')}: " + "; ".join(wrong[:NAMED_MAX])
        yield warn(f"tables on {name}", detail, "`feedq feed test NAME` says the same of one feed")
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


def _targets(feeds: Sequence[Feed]) -> list[Target]:
    """What cannot be parsed shows as a failed feed elsewhere."""
    found: dict[Target, None] = {}
    for feed in feeds:
        with suppress(InvalidInput):
            found[target_of_feed(feed.spec)] = None
    return list(found)


def _check_sink(name: str, settings: Settings, *, feeds: int) -> Check:
    url = settings.sink_url(name)
    title, detail = f"sink {name}", f"{counted(feeds, 'feed')}, {mask_url(url)}"
    try:
        if url.startswith(("postgresql", "postgres:")):
            with closing(connect(url, application_name=DOCTOR)) as connection:
                return _permissions(title, connection, detail=detail)
        # Of another kind: whether it answers, and lets feedq keep its tables there.
        with opened_sink(settings, name, role="doctor") as sink:
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
        role, schema, may_create, owner, missing, forbidden = cursor.fetchone()
    if schema is None:
        advice = (
            f"ALTER ROLE {quoted(role)} SET search_path = …, or GRANT USAGE ON SCHEMA … TO {quoted(role)}"
        )
        return fail(title, f"{detail}: the search path of {role} names no schema that it may use", advice)
    if missing and not may_create:
        return fail(
            title,
            f"{detail}: {role} may not create {', '.join(missing)} in schema {schema}",
            f"have {quoted(owner)} run GRANT CREATE ON SCHEMA {quoted(schema)} TO {quoted(role)}",
        )
    if forbidden:
        table, owner, rights = forbidden[0]
        return fail(
            title,
            f"{detail}: {role} may not {rights} in {table}",
            f"have {quoted(owner)} run GRANT {rights} ON {quoted(schema)}.{table} TO {quoted(role)}",
        )
    if not may_create:
        return ok(title, f"{detail}; may not create tables in {schema}, so target tables must exist")
    return ok(title, detail)
