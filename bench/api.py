"""The HTTP API with 100,000 feeds: a page, a filter, one feed and the fleet, as a client waits for them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg2
from pydantic import SecretStr

from bench.report import Figure, at_most, say
from bench.servers import started
from feedq.api.endpoint import Endpoint
from feedq.control.store.migrate import upgrade
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import AccessRole
from feedq.local.postgres import Postgres
from feedq.settings import Settings
from tests.api_client import ApiClient

FEEDS: Final = 100_000
ROUNDS: Final = 20
PAGE_S: Final = 0.05
FILTER_S: Final = 0.15
STATUS_S: Final = 1.0
FILL: Final = f"""
    INSERT INTO feedq.feed (name, tenant, connector, source, sink, labels, dirty, target_state)
    SELECT 'tenant' || n % 300 || '/feed-' || lpad(n::text, 6, '0'), 'tenant' || n % 300, 'tcp',
        '{{"url": "tcp://source.example:7001"}}', '{{"table": "landed"}}',
        jsonb_build_object('region', 'r' || n % 7), false,
        CASE WHEN n % 1000 = 0 THEN 'paused' ELSE 'running' END
    FROM generate_series(1, {FEEDS}) n;
    INSERT INTO feedq.lease (feed_id, reason)
    SELECT id, CASE target_state WHEN 'paused' THEN 'paused' ELSE 'no_capacity' END FROM feedq.feed;
    ANALYZE feedq.feed, feedq.lease
"""
CASES: Final[tuple[tuple[str, str, dict[str, Any], float], ...]] = (
    ("a page of 100", "/feeds", {}, PAGE_S),
    ("a page of 500", "/feeds", {"limit": 500}, PAGE_S),
    ("filter by status (1 in 1,000)", "/feeds", {"statuses": "paused"}, FILTER_S),
    ("filter by tenant (1 in 300)", "/feeds", {"tenant": "tenant7"}, FILTER_S),
    ("filter by label", "/feeds", {"labels": "region=r3"}, FILTER_S),
    ("filter by text, few", "/feeds", {"text": "feed-0999"}, FILTER_S),
    ("filter by text, none", "/feeds", {"text": "nothing has this"}, FILTER_S),
    ("filter by name", "/feeds", {"match": "tenant299/*"}, FILTER_S),
    ("one feed", "/feeds/tenant7%2Ffeed-000007", {}, PAGE_S),
    ("status of the fleet", "/status", {}, STATUS_S),
)


def measure(directory: Path) -> Iterator[Figure]:
    with started(Postgres(directory)) as postgres:
        url = with_many(postgres, "api")
        store = PostgresStore(url, application_name="bench-api")
        token = store.tokens.add("bench", AccessRole.VIEWER, tenant=None, lasts_s=3_600)
        endpoint = Endpoint.of(store, Settings(database_url=SecretStr(url)))
        with ApiClient(endpoint, token=token) as api:
            for what, path, asked, limit_s in CASES:
                taken = [_timed(api, path, asked) for _ in range(ROUNDS)]
                yield at_most(
                    f"API, {FEEDS:,} feeds: {what}",
                    limit_s * 1_000,
                    statistics.median(taken) * 1_000,
                    "ms",
                    runs=f"median of {ROUNDS}, longest {max(taken) * 1_000:.0f}",
                )
        store.close()


def with_many(postgres: Postgres, name: str) -> str:
    """Make a control database with `FEEDS` feeds and return its address."""
    url = postgres.create_database(name)
    upgrade(url)
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(FILL)
            cursor.execute("VACUUM feedq.feed, feedq.lease")
    say(f"{FEEDS:,} feeds are declared")
    return url


def _timed(api: ApiClient, path: str, asked: dict[str, Any]) -> float:
    began = time.perf_counter()
    answer: httpx.Response = api.get(path, params=asked)
    taken = time.perf_counter() - began
    assert answer.status_code == 200, answer.text
    return taken
