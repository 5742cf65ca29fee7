"""Every change that the API knows is refused to whoever may not make it, changes nothing, and is written down.

The requests are those of `tests.api_examples`, one for each route and method of the OpenAPI document: a route that
is added is tried as well, and needs an example.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg2
import pytest
from pydantic import SecretStr

from feedq.api.app import document_of, make_app
from feedq.api.backend import ApiBackend
from feedq.control.store.history import EventFilter
from feedq.core.model import Feed, FeedBackfill, Identity, StartCursor, TargetState, WorkerTarget
from feedq.core.roles import AccessRole
from feedq.core.schedule.model import Queue
from feedq.local.postgres import Postgres
from feedq.settings import Settings
from feedq.sinks.base import CheckpointChange
from feedq.telemetry.logs import EventKind
from feedq.verbs import feed_cursor
from tests.api_client import ApiClient
from tests.api_examples import (
    BODIES,
    FEED,
    FILLING,
    KEYED,
    MINE,
    OTHERS,
    PAUSED,
    PREFIX,
    Example,
    examples_of,
)
from tests.cluster import wait_until
from tests.contract.jobs_harness import JobsHarness
from tests.contract.sink_harness import empty_database

pytestmark = pytest.mark.servers

ORIGIN = "192.0.2.7"
EXAMPLES = sorted(examples_of(document_of()), key=lambda example: example.operation)
OF_A_TENANT = ("feeds", "bulk")
"""Addresses of what belongs to a tenant. All others belong to the fleet."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Somebody who may not make a change."""

    who: str
    """As history calls them."""
    token: str = ""
    status: tuple[int, ...] = (403, 404)


class Stage:
    """An API over a store that has something for each example to change, and a sink."""

    def __init__(self, harness: JobsHarness, sink_url: str, catalog: Path) -> None:
        self.harness, self.sink_url = harness, sink_url
        urls: dict[str, Any] = {
            "database_url": SecretStr(harness.url),
            "sinks": {"default": SecretStr(sink_url)},
            "catalogs": {"crm": {"kind": "directory", "path": str(catalog)}},
        }
        self.backend = ApiBackend.of(harness.store, Settings(**urls))
        self._declare()
        self._land(harness.store.feeds.get(MINE))
        self.api = ApiClient(make_app(self.backend), client=ORIGIN)

    def _declare(self) -> None:
        harness = self.harness
        for name in (MINE, PAUSED):
            harness.feed(
                name, tenant="acme", sink={"table": "raw", "columns": {"payload": ""}, "drift": "add"}
            )
            harness.schedule(name if name == PAUSED else "nightly")
        source = {"url": "tcp://127.0.0.1:1", "cursor": "/seq", "hello": "{cursor}"}
        for name in (KEYED, FILLING):
            keyed = {"table": "raw", "columns": {"seq": "/seq"}, "key": ["seq"]}
            made = harness.feed(name, tenant="acme", sink=keyed, source=source)
        filling = replace(made.spec, name=f"{FILLING}~backfill", initial_cursor=1)
        harness.store.backfills.begin(made, filling, FeedBackfill(made.id, 1, 5))
        harness.execute('UPDATE feedq.lease SET noticed = \'{"field:price": "numeric"}\'')
        harness.store.feeds.set_target(PAUSED, TargetState.PAUSED)
        harness.schedules.pause(PAUSED)
        harness.schedules.trigger("nightly")
        harness.worker("w@host")
        harness.store.workers.set_target(harness.worker("cordoned@host").id, WorkerTarget.CORDONED)
        harness.queues.set(Queue("reports", concurrency=9))
        self.token("ci", AccessRole.VIEWER)

    def _land(self, feed: Feed) -> None:
        """A cursor that was changed once, the checkpoint of a namesake, and two dead letters."""
        with self.backend.open_sink("default") as sink:
            sink.change_checkpoint(
                CheckpointChange(feed.id, feed.name, feed.identity, lambda own: StartCursor(5))
            )
            feed_cursor.change(self.harness.store, sink, feed, feed_cursor.set_to(feed, 9))
            stranger = Identity(uuid4(), uuid4())
            sink.change_checkpoint(
                CheckpointChange(feed.id + 100, feed.name, stranger, lambda own: StartCursor(3))
            )
        query(
            self.sink_url,
            "CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload jsonb);"
            "INSERT INTO raw DEFAULT VALUES;"
            "INSERT INTO feedq_dead_letter (environment, feed_id, feed, epoch, record, error) "
            "SELECT %s, %s, %s, 1, '{}', 'refused' FROM generate_series(1, 2)",
            self.backend.settings.environment,
            feed.id,
            feed.name,
        )

    def token(self, name: str, role: AccessRole, tenant: str | None = None) -> str:
        return self.backend.store.tokens.add(name, role, tenant=tenant, lasts_s=600)

    def known(self, role: AccessRole, tenant: str | None = None) -> Asker:
        name = f"{role}-{tenant}"
        return Asker(f"token {name}", self.token(name, role, tenant))

    def askers(self) -> Callable[[Example], list[Asker]]:
        """Of an example, all kinds of those to whom it is forbidden."""
        viewer, operator, admin = AccessRole.VIEWER, AccessRole.OPERATOR, AccessRole.ADMIN
        unknown = [Asker("nobody", token, (401,)) for token in ("", "feedq_guessed", *self._ended())]
        may_not = [self.known(viewer), self.known(viewer, "acme"), self.known(operator, "beta")]
        of_a_tenant = [self.known(operator, "acme"), self.known(admin, "acme")]
        of_the_fleet = self.known(operator)

        def found(example: Example) -> list[Asker]:
            return [
                *unknown,
                *may_not,
                *(() if example.kind in OF_A_TENANT else of_a_tenant),
                *((of_the_fleet,) if example.kind in ("tokens", "catalogs") else ()),
            ]

        return found

    def _ended(self) -> tuple[str, str]:
        expired, removed = (self.token(name, AccessRole.ADMIN) for name in ("expired", "removed"))
        self.harness.execute("UPDATE feedq.token SET expires_at = clock_timestamp() WHERE name = 'expired'")
        self.backend.store.tokens.remove("removed")
        return expired, removed

    def ask(self, example: Example, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.api.ask(example.method, example.path, json=example.body, headers=headers)

    def refusals(self) -> list[dict[str, Any]]:
        found = self.backend.store.history.before(EventFilter((EventKind.ACCESS_REFUSED,)))
        return [dict(listed.event.detail) for listed in reversed(found)]

    def everything(self, *, but: str) -> list[tuple[object, ...]]:
        """All rows of all tables of the store and of the sink; ``but`` says which of history are left out."""
        return rows_of(self.harness.url, but=but) + rows_of(self.sink_url)


def query(url: str, sql: str, *values: object) -> list[tuple[object, ...]]:
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def rows_of(url: str, *, but: str = "") -> list[tuple[object, ...]]:
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


@pytest.fixture
def stage(control_database_url: str, postgres: Postgres, tmp_path: Path) -> Iterator[Stage]:
    harness = JobsHarness(control_database_url)
    (tmp_path / "feeds.json").write_text(json.dumps({"feeds": [FEED | {"name": "crm/1"}]}))
    made = Stage(harness, empty_database(postgres), tmp_path)
    yield made
    made.api.close()
    harness.close()


def is_waited_for(*sessions: tuple[str, Any]) -> bool:
    """Whether somebody waits for what these sessions have locked."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE pg_blocking_pids(pid) && %s"
    return any(query(url, sql, [session.info.backend_pid]) for url, session in sessions)


def asked_while_it_changes_hands(stage: Stage, example: Example, token: str) -> httpx.Response:
    """The answer to a request that looks at the feed before, and changes it after, it is another tenant's."""
    control, sink = psycopg2.connect(stage.harness.url), psycopg2.connect(stage.sink_url)
    with closing(control), closing(sink), ThreadPoolExecutor(1) as pool:
        with control.cursor() as held, sink.cursor() as landed:
            held.execute("SELECT FROM feedq.lease FOR UPDATE")
            held.execute("UPDATE feedq.feed SET tenant = 'beta'")
            landed.execute("LOCK TABLE feedq_checkpoint, feedq_dead_letter IN EXCLUSIVE MODE")
        answer = pool.submit(stage.ask, example, token)
        try:
            wait_until(
                lambda: is_waited_for((stage.harness.url, control), (stage.sink_url, sink)),
                limit_s=20,
                what="the request waits for a lock",
            )
        finally:
            control.commit()
            sink.commit()
        return answer.result(timeout=30)


def test_every_change_has_an_example_and_every_example_a_change() -> None:
    assert len(EXAMPLES) > 30
    assert [one.operation for one in EXAMPLES if "//" in one.path or one.path.endswith("/")] == []
    assert [one.operation for one in EXAMPLES if one.needs_body and one.body is None] == []
    assert BODIES.keys() | OTHERS.keys() <= {example.operation for example in EXAMPLES}


def in_order(example: Example) -> tuple[bool, bool]:
    """Changes that others would make impossible come first, and what takes something away last."""
    takes = example.method == "DELETE" or example.operation == "drop_dead_letters"
    return example.operation not in ("move_feed", "replay_dead_letters", "rewind_cursor"), takes


def test_a_change_is_made_for_who_may(stage: Stage) -> None:
    """Without this, what is refused below might be refused for a mistake in the example."""
    token = stage.token("admin", AccessRole.ADMIN)
    before = stage.everything(but="true")
    for example in sorted(EXAMPLES, key=in_order):
        answer = stage.ask(example, token)
        assert answer.status_code in (200, 201), (example, answer.text)
        after = stage.everything(but="true")
        assert after != before, example
        before = after
    assert stage.refusals() == []


def test_a_change_is_refused_to_who_may_not_and_written_down(stage: Stage) -> None:
    """Who may not ask is refused before arguments are looked at. The store judges who may change a feed by itself;
    what a change would do, only the API keeps from others."""
    askers = stage.askers()
    before = stage.everything(but="kind = 'access_refused'")
    for example in EXAMPLES:
        written = []
        paths = [example.path] + ([f"{example.path}?dry_run=true"] if example.kind == "feeds" else [])
        for asker, path in product(askers(example), paths):
            answer = stage.ask(replace(example, path=path), asker.token)
            assert answer.status_code in asker.status, (example, asker.who, answer.text)
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["status"] == answer.status_code
            asked = {"asked": f"{example.method} {PREFIX}{example.path}", "status": answer.status_code}
            written.append(asked | {"by": {"who": asker.who, "from": ORIGIN}})
        wrong = replace(example, path=f"{example.path}?unknown=1")
        viewer = next(asker for asker in askers(example) if asker.who.startswith("token viewer"))
        assert stage.ask(wrong, viewer.token).status_code == 403, example
        assert stage.refusals()[:-1] == written
        assert stage.everything(but="kind = 'access_refused'") == before, example
        stage.harness.execute("DELETE FROM feedq.event WHERE kind = 'access_refused'")


def test_a_backfill_is_begun_once_by_its_key_and_by_one_at_a_time(stage: Stage) -> None:
    (example,) = [one for one in EXAMPLES if one.operation == "begin_backfill"]
    token = stage.token("acme", AccessRole.OPERATOR, "acme")
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "first"}

    def begin() -> httpx.Response:
        return stage.api.ask("POST", example.path, json={"from": "1", "to": 5}, headers=headers)

    first = begin()
    assert (first.status_code, first.json()["begins_after"], first.json()["ends_at"]) == (200, 1, 5)
    assert begin().json()["begun_at"] == first.json()["begun_at"]
    headers["Idempotency-Key"] = "second"
    assert begin().status_code == 409
    ((begun,),) = stage.harness.execute("SELECT count(*) FROM feedq.event WHERE detail ->> 'key' = 'first'")
    assert begun == 1


def is_of_a_feed(example: Example) -> bool:
    """Whether it changes what a tenant has."""
    return example.kind in OF_A_TENANT


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if is_of_a_feed(one)], ids=lambda example: example.operation
)
def test_a_feed_that_changes_hands_in_between_is_not_changed(stage: Stage, example: Example) -> None:
    token = stage.token("acme", AccessRole.OPERATOR, "acme")
    answer = asked_while_it_changes_hands(stage, example, token)
    assert "is not of that tenant" in answer.text
    assert answer.status_code == (200 if example.kind == "bulk" else 403)
    changed = "SELECT name FROM feedq.feed WHERE generation > 2 OR removed_at IS NOT NULL"
    assert stage.harness.execute(changed) == []
    assert query(stage.sink_url, "SELECT count(*) FROM feedq_checkpoint") == [(2,)]
    assert query(stage.sink_url, "SELECT error FROM feedq_dead_letter") == [("refused",)] * 2
