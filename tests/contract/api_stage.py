"""An API over a store that has something for each example of `tests.api_examples`, and a sink."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
from pydantic import SecretStr

from feedq.api.endpoint import Endpoint
from feedq.control.store.history import EventFilter
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed, FeedBackfill, Identity, StartCursor, TargetState, WorkerTarget
from feedq.core.roles import AccessRole
from feedq.core.schedule.spec import Queue
from feedq.settings import Settings
from feedq.sinks.base import CheckpointChange
from feedq.telemetry.logs import EventKind
from feedq.verbs import cursors
from tests.api_examples import FEED, FILLING, KEYED, MINE, PAUSED, THEIRS
from tests.contract.jobs_harness import JobsHarness


def settings_of(url: str, sink_url: str, catalog: Path) -> Settings:
    """Settings with one sink and one catalog, which has one feed."""
    (catalog / "feeds.json").write_text(json.dumps({"feeds": [FEED | {"name": "crm/1"}]}))
    known: dict[str, Any] = {
        "database_url": SecretStr(url),
        "sinks": {"default": SecretStr(sink_url)},
        "catalogs": {"crm": {"kind": "directory", "path": str(catalog)}},
    }
    return Settings(**known)


def populate(harness: JobsHarness, endpoint: Endpoint, sink_url: str) -> None:
    for name in (MINE, PAUSED):
        harness.feed(name, tenant="acme", sink={"table": "raw", "columns": {"payload": ""}, "drift": "add"})
        harness.schedule(name if name == PAUSED else "nightly")
    source = {"url": "tcp://127.0.0.1:1", "cursor": "/seq", "hello": "{cursor}"}
    for name in (KEYED, FILLING):
        keyed = {"table": "raw", "columns": {"seq": "/seq"}, "key": ["seq"]}
        made = harness.feed(name, tenant="acme", sink=keyed, source=source)
    filling = made.spec.model_copy(update={"name": f"{FILLING}~backfill", "initial_cursor": 1})
    harness.store.backfills.begin(made, filling, FeedBackfill(made.id, 1, 5))
    harness.feed(THEIRS, tenant="beta")
    harness.execute('UPDATE feedq.progress SET noticed = \'{"field:price": "numeric"}\'')
    harness.store.feeds.set_target(PAUSED, TargetState.PAUSED)
    harness.schedules.pause(PAUSED)
    harness.schedules.trigger("nightly")
    harness.worker("w@host")
    harness.store.workers.set_target(harness.worker("cordoned@host").id, WorkerTarget.CORDONED)
    harness.queues.set(Queue(name="reports", concurrency=9))
    harness.store.tokens.add("ci", AccessRole.VIEWER, tenant=None, lasts_s=600)
    _land(harness, endpoint, sink_url, harness.store.feeds.get(MINE))


def _land(harness: JobsHarness, endpoint: Endpoint, sink_url: str, feed: Feed) -> None:
    """A cursor that was changed once, the checkpoint of a namesake, and two dead letters."""
    with endpoint.at.open_sink("default") as sink:
        sink.change_checkpoint(
            CheckpointChange(feed.id, feed.name, feed.identity, lambda own: StartCursor(5))
        )
        cursors.changed(harness.store, sink, feed, cursors.CursorVerb.SET, lambda _: 9)
        stranger = Identity(uuid4(), uuid4())
        sink.change_checkpoint(
            CheckpointChange(feed.id + 100, feed.name, stranger, lambda own: StartCursor(3))
        )
    query(
        sink_url,
        "CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload jsonb);"
        "INSERT INTO raw DEFAULT VALUES;"
        "INSERT INTO feedq_dead_letter (environment, feed_id, feed, epoch, record, error) "
        "SELECT %s, %s, %s, 1, '{}', 'refused' FROM generate_series(1, 2)",
        endpoint.at.settings.environment,
        feed.id,
        feed.name,
    )


def refusals(store: PostgresStore) -> list[dict[str, Any]]:
    """What history says of refusals, the oldest first."""
    found = store.history.before(EventFilter((EventKind.ACCESS_REFUSED,)), limit=500)
    return [dict(listed.event.detail) for listed in reversed(found)]


def query(url: str, sql: str, *values: object) -> list[tuple[object, ...]]:
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def rows_of(url: str, *, but: str = "") -> list[tuple[object, ...]]:
    """All rows of all tables; ``but`` says which of history are left out."""
    tables = query(
        url,
        "SELECT table_schema || '.' || table_name FROM information_schema.tables "
        "WHERE table_type = 'BASE TABLE' AND table_schema !~ '^(pg_|information_schema)'",
    )
    selects = [
        f"SELECT '{table}', t::text FROM {table} t"
        + (f" WHERE NOT ({but})" if table == "feedq.event" else "")
        for (table,) in tables
    ]
    return query(url, " UNION ALL ".join(selects) + " ORDER BY 1, 2")
